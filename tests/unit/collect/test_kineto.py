"""Windows through Kineto's daemon: whether the ranks recorded the same steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.collect._kineto import apart, window_ns

MS = 1_000_000


def test_ranks_within_a_step_are_together() -> None:
    """Three steps in 60 and 66 ms: a step takes 20 ms, and they began 20 ms apart."""
    assert apart({1: 500 * MS, 2: 520 * MS}, {1: 60 * MS, 2: 66 * MS}, 3) == []


def test_ranks_more_than_a_step_apart_are_doubted() -> None:
    [note] = apart({1: 500 * MS, 2: 521 * MS}, {1: 60 * MS, 2: 66 * MS}, 3)
    assert (note.code, note.severity) == ("ranks-not-aligned", "warning")
    assert note.sentence.startswith("the ranks began 21.0 ms apart, and a step takes 20.0 ms")


@pytest.mark.parametrize(
    ("starts", "lengths"),
    [({1: 0}, {1: 60 * MS}), ({1: 0, 2: None}, {1: 9, 2: 9}), ({1: 0, 2: 9 * MS}, {1: None})],
)
def test_without_two_starts_and_a_length_nothing_is_said(
    starts: dict[int, int | None], lengths: dict[int, int | None]
) -> None:
    assert apart(starts, lengths, 3) == []


def test_the_length_of_a_window_stands_at_the_end_of_its_trace(tmp_path: Path) -> None:
    trace = tmp_path / "rank00000.trace.json"
    end = (
        '{"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g",\n'
        '"pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": 5276350543950.312},\n'
        '{"name": "Record Window End", "ph": "i", "s": "g",\n'
        '"pid": "", "tid": "", "ts": 5276350738234.933}], "traceName": "/tmp/x.json"}'
    )
    trace.write_text('{"traceEvents": [' + '{"ph": "X", "name": "gemm", "ts": 1.0},' * 3000 + end)
    # 738234.933 - 543950.312 microseconds; a double holds such a ts to half a nanosecond or so.
    assert window_ns(trace) == pytest.approx(194_284_621, abs=1000)
    trace.write_text('{"traceEvents": []}')
    assert window_ns(trace) is None
    assert window_ns(tmp_path / "absent") is None
