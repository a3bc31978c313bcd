"""What recording cost, as a sentence and as JSON."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pandas as pd
import pytest

from diagnose import cli, engine, manifest, readers
from diagnose.analysis import Unavailable
from diagnose.findings import Diagnosis
from diagnose.manifest import Manifest, RankFiles, RecordingNote
from diagnose.reporters import Page
from diagnose.reporters._observer import observer_record, observer_sentence
from diagnose.reporters._records import encode
from diagnose.trace import Observer
from tests.builder import TraceBuilder
from tests.property.hand_made import Mark, Op, make_trace

MS = 1_000_000


THREE = [Mark(0, 10), Mark(10, 20), Mark(20, 30)]
ON_HOST = "recording costs time on the host, not on the GPU, so idle time reads high, and overlap"
SLOWED = f"; {ON_HOST} may read low because kernels are launched later."
VARIES = (
    "; before and after differ by more than the steps before it among each other: the job itself "
    "varies, so recording may cost more or less than this."
)


def effect(observer: Observer, *gpu_step_ns: int) -> Diagnosis:
    """Of a recording with these step times on its GPU, after a first step that has none."""
    ends = list(accumulate(gpu_step_ns, initial=9))
    ops = [Op(end - 1, end, step=n) for n, end in enumerate(ends)] if gpu_step_ns else [Op(0, 9)]
    trace = make_trace(ops, THREE[: len(ends)] if gpu_step_ns else [])
    return engine.diagnose(replace(trace, observer=observer), {}, debug=True)


@pytest.mark.parametrize(
    ("observer", "sentence"),
    [
        (
            Observer(16_500_000, 17_200_000, 16_400_000, 10, 6, 10, 200_000),
            "The window slowed the step by 4 %: 16.5 ms before, 17.2 in it (on the host), 16.4 "
            "after" + SLOWED,
        ),
        (
            Observer(20 * MS, 20_199_999, 20 * MS, 10, 6, 10),
            "The window did not change the step time: 20.0 ms before, 20.2 in it (on the host), "
            "20.0 after.",
        ),
        (
            Observer(20 * MS, 18 * MS, None, 10, 6, 0),
            "Steps in the window were 10 % shorter: 20.0 ms before, 18.0 in it (on the host); the "
            "job itself varies more than recording costs.",
        ),
        (
            Observer(None, 30 * MS, 20 * MS, 2, 6, 10),
            "The window slowed the step by 50 %: 30.0 ms in it (on the host), 20.0 after" + SLOWED,
        ),
        (
            Observer(None, 1_234_567_890, None, 4, 6, 0),
            "Steps took 1,234.6 ms in the window (on the host); too few were seen outside of it "
            "to say what recording cost.",
        ),
        (
            Observer(100_000, 101_100, 100_000, 9, 6, 9),
            "The window slowed the step by 1 %: 0.100 ms before, 0.101 in it (on the host), 0.100 "
            "after" + SLOWED,
        ),
        # After less before is 2 ms: more than the spread of 1.9, not more than one of 2.
        (
            Observer(20 * MS, 25 * MS, 22 * MS, 10, 6, 10, 1_900_000),
            "The window slowed the step by 25 %: 20.0 ms before, 25.0 in it (on the host), 22.0 "
            "after" + VARIES,
        ),
        (
            Observer(20 * MS, 25 * MS, 22 * MS, 10, 6, 10, 2 * MS),
            "The window slowed the step by 25 %: 20.0 ms before, 25.0 in it (on the host), 22.0 "
            "after" + SLOWED,
        ),
        # A job that became slow by itself: in the window and after it alike.
        (
            Observer(21_200_000, 41_400_000, 41_500_000, 50, 6, 20, 20_600_000),
            "What recording cost is not told from the job's own variation: steps took 21.2 ms "
            "before, 41.4 in it (on the host), 41.5 after.",
        ),
        # Steps that alternate between 1 and 67 ms: the window happened to catch two long ones.
        (
            Observer(34_300_000, 67_700_000, 34_300_000, 40, 3, 20, 65_600_000),
            "What recording cost is not told from the job's own variation: steps took 34.3 ms "
            "before, 67.7 in it (on the host), 34.3 after.",
        ),
        # No spread at all, but less than 1 % apart.
        (
            Observer(20 * MS, 20 * MS, 20_150_000, 10, 6, 10, 0),
            "The window did not change the step time: 20.0 ms before, 20.0 in it (on the host), "
            "20.1 after.",
        ),
        (Observer(20 * MS, None, 20 * MS, 10, 0, 10), ""),
        (Observer(), ""),
    ],
)
def test_the_change_is_a_figure_and_the_overlap_only_a_direction(
    observer: Observer, sentence: str
) -> None:
    assert observer_sentence(effect(observer)) == sentence


def test_the_step_in_the_window_is_the_gpus_where_it_has_one() -> None:
    # The host filled its queue in the window, at 28 ms; the GPU went on at 31 and 33.
    host = Observer(32 * MS, 28 * MS, 32 * MS, 10, 6, 10, MS)
    found = effect(host, 31 * MS, 33 * MS)
    assert observer_sentence(found) == (
        "The window did not change the step time: 32.0 ms before, 32.0 in it (on the GPU), "
        "32.0 after."
    )
    assert json.loads(encode(observer_record(found) or {})) == {
        "before_us": 32000,
        "before_spread_us": 1000,
        "within_us": 32000,
        "within_from": "gpu",
        "after_us": 32000,
        "num_before": 10,
        "num_within": 2,
        "num_after": 10,
        "beyond_variation": False,
        "job_varies": False,
    }
    assert observer_sentence(effect(replace(host, before_ns=None, after_ns=None), 30 * MS)) == (
        "Steps took 30.0 ms in the window (on the GPU); too few were seen outside of it to say "
        "what recording cost."
    )


@pytest.mark.parametrize("verb", ["report", "info", "overlap --by step", "ranks", "stalls"])
def test_every_verb_says_the_same_at_its_head(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(__file__).parents[1] / "data" / "attached_first"
    assert cli.execute([*verb.split(), str(path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    expected = "The window did not change the step time: 31.7 ms before, 31.8 in it (on the GPU)."
    assert expected in out


def test_without_launches_the_hosts_intervals_do_not_stand_for_the_gpus(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = Path(__file__).parents[1] / "data" / "attached_first"
    assert cli.execute(["overlap", str(path)]) == 0  # reads GPU activity alone
    assert "window" in (out := capsys.readouterr().out)
    assert "in it" not in out


def test_what_no_recorder_said_is_not_reported() -> None:
    found = engine.diagnose(make_trace([Op(0, 9)]), {}, debug=True)
    assert observer_sentence(found) == ""
    assert observer_record(found) is None
    assert not found.unavailable
    answer = engine.run(engine.analyzers()["observer_effect"], found.trace)
    assert isinstance(answer, Unavailable)
    assert "around its window" in answer.because


def test_two_real_windows_of_a_job_whose_host_runs_ahead() -> None:
    """Two ranks that share one H200 in turns; the host had up to three steps in the queue.

    The host's intervals in the window had a median of 28.0 and 34.4 ms, while the job's
    own log says 31.73 ms a step outside of all windows.
    """
    for name in ("attached_first", "attached_sixth"):
        trace = readers.read(Path(__file__).parents[1] / "data" / name)
        row = engine.diagnose(trace, {}, debug=True).tables["observer_effect"].frame().loc[0]
        assert row["within_from"] == "gpu"
        assert row["num_within"] == 4
        assert row["within_ns"] == pytest.approx(31.73e6, rel=0.005)
        assert row["before_ns"] == pytest.approx(31.73e6, rel=0.005)
        # Only the five intervals of an earlier recorder, four of them of a host catching up.
        assert row["after_ns"] is pd.NA
        # What was in the queue when the window began ran before all that was launched in it.
        own = trace.gpu_ops["launch_row"] >= 0
        for gpu in trace.gpus:
            launched, start = own[trace.on(gpu)], trace.gpu_ops["start_ns"][trace.on(gpu)]
            assert start[~launched].max() < start[launched].min()


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    builder = TraceBuilder(rank=0).step(1, 0, 50).kernel("gemm", 0, 10, launch=1)
    builder.write(tmp_path, "rank00000.trace.json")
    content = Manifest(
        (RankFiles(0, "rank00000.trace.json"),),
        world_size=3,
        observer=manifest.Observer(10 * MS, 12 * MS, None, 5, 3, 2),
        missing_ranks=(1, 2),
        notes=(RecordingNote("rank-not-recorded", "warning", "rank 1: \x1b[31mit was stopped"),),
    )
    manifest.write(content, tmp_path)
    return tmp_path


def rendered(folder: Path, name: str) -> str:
    out = io.StringIO()
    diagnosis = engine.diagnose(readers.read(folder), debug=True)
    engine.reporters()[name].render(diagnosis, out, Page(width=100))
    return out.getvalue()


@pytest.mark.parametrize("name", ["text", "markdown"])
def test_reports_say_it_at_their_head_with_the_ranks_left_out(recording: Path, name: str) -> None:
    text = rendered(recording, name)
    head = " ".join(" ".join(text.split("\n")[:6]).split())
    assert "The window slowed the step by 20 %: 10.0 ms before, 12.0 in it (on the host);" in head
    assert "rank 0 of 3" in head
    assert "it was stopped" in text
    assert "\x1b" not in text  # what a process says of itself moves no cursor


def test_the_json_has_it_in_microseconds(recording: Path) -> None:
    report = json.loads(rendered(recording, "json"))
    assert report["observer"] == {
        "before_us": 10000,
        "before_spread_us": None,
        "within_us": 12000,
        "within_from": "host",
        "after_us": None,
        "num_before": 5,
        "num_within": 3,
        "num_after": 2,
        "beyond_variation": True,
        "job_varies": False,
    }
    assert report["missing_ranks"] == [1, 2]
    assert {note["code"] for note in report["notes"]} >= {"rank-not-recorded"}


def test_of_two_recordings_given_together_neither_speaks_for_both(
    recording: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "rank00001.trace.json").write_bytes((recording / "rank00000.trace.json").read_bytes())
    content = Manifest((RankFiles(1, "rank00001.trace.json"),), missing_ranks=(0, 2))
    manifest.write(content, other)
    trace = readers.read([recording, other])
    assert trace.observer is None
    assert trace.missing_ranks == (2,)


def test_an_execution_trace_beside_the_traces_is_no_trace(recording: Path) -> None:
    (recording / "rank00000.execution_trace.json").write_text('{"nodes": []}')
    codes = {note.code for note in readers.read(recording).notes}
    assert not codes & {"trace-unlisted", "not-a-trace"}
    (recording / "recording.json").unlink()
    codes = {note.code for note in readers.read(recording).notes}
    assert not codes & {"trace-unlisted", "not-a-trace"}
