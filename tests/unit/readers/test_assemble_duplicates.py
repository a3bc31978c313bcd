"""Events that a file holds more than once."""

from __future__ import annotations

import copy

from diagnose.trace import Trace
from tests.builder import TraceBuilder, build_trace


def job() -> TraceBuilder:
    builder = TraceBuilder(rank=0, world_size=2)
    for number in range(3):
        builder.step(number, 100 * number, 100)
        builder.kernel("gemm", 100 * number + 20, 30, launch=100 * number + 5)
        builder.collective("allreduce", 100 * number + 40, 20, launch=100 * number + 10)
    return builder


def codes(trace: Trace) -> dict[str, int]:
    return {note.code: note.count for note in trace.notes}


def test_a_file_with_every_event_several_times_is_the_file_with_each_once() -> None:
    once, often = job(), job()
    often.events += copy.deepcopy(once.events) * 4
    trace, expected = build_trace(often), build_trace(once)
    assert codes(trace) == {"duplicate-events": 6 * 4}
    assert len(trace.gpu_ops) == 6
    for table in ("gpu_ops", "launches", "collectives"):
        for column in ("start_ns", "end_ns", "step_row", "launch_row", "bytes"):
            if column in getattr(trace, table).columns:
                found, right = getattr(trace, table)[column], getattr(expected, table)[column]
                assert found.tolist() == right.tolist()
    (note,) = trace.notes
    assert note.severity == "warning"
    assert "24 (and 24 such calls)" in note.sentence


def test_operations_that_differ_in_anything_are_kept() -> None:
    builder = TraceBuilder(rank=0)
    builder.kernel("a", 0, 10, correlation=1)
    builder.kernel("b", 0, 10, correlation=1).kernel("a", 0, 10, correlation=2)
    builder.kernel("a", 0, 11, correlation=1).kernel("a", 0, 10, correlation=1, stream=8)
    builder.kernel("a", 0, 10, correlation=1, device=1)
    builder.kernel("a", 0, 10, correlation=1, **{"graph node id": 4})
    trace = build_trace(builder)
    assert len(trace.gpu_ops) == 7
    assert "duplicate-events" not in codes(trace)


def test_what_cannot_be_known_to_be_the_same_is_kept() -> None:
    builder = TraceBuilder(rank=0)
    for _ in range(2):
        builder.kernel("instant", 0, 0, correlation=0)
        builder.event("kernel", "streamless", 5, 10, pid=0, args={"device": 0, "correlation": 3})
    assert len(build_trace(builder).gpu_ops) == 4
