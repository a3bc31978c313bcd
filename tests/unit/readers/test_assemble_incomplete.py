"""Events that were lost: which figures are bounds, and when none can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diagnose import readers
from diagnose.findings import Diagnosis
from diagnose.schema import Detail
from diagnose.trace import Note, Trace
from tests.builder import TraceBuilder


def cut(folder: Path, builder: TraceBuilder, detail: Detail = Detail.ALL) -> Trace:
    """The trace of a file that ends inside its last event."""
    path = builder.write(folder)
    text = path.read_text()
    path.write_text(text[: text.rindex('"dur"')])
    return readers.read(path, detail=detail)


def job(order: Sequence[int]) -> TraceBuilder:
    """Three steps with a launch and a kernel each, whose kernels are written in an order."""
    builder = TraceBuilder(rank=0)
    ids = []
    for number in range(3):
        builder.step(number, 100 * number, 100)
        ids.append(builder.call("cudaLaunchKernel", 100 * number + 5))
    for number in order:
        builder.kernel("gemm", 100 * number + 20, 30, correlation=ids[number])
    return builder


def note(trace: Trace, code: str) -> Note:
    (found,) = [note for note in trace.notes if note.code == code]
    return found


def test_what_is_cut_off_may_be_from_anywhere(tmp_path: Path) -> None:
    trace = cut(tmp_path, job((2, 0, 1)))  # the kernel of step 1 is lost
    said = note(trace, "gpu-work-missing")
    assert (said.severity, said.count) == ("error", 1)
    assert "launches without their GPU work: 1 (1 in ProfilerStep#1)" in said.sentence
    assert "lower bounds" in said.sentence
    assert "upper bound" in said.sentence
    assert not trace.sources[0].complete
    assert Diagnosis(trace).quality.verdict == "not to be trusted"


def test_launches_lost_with_their_work_leave_no_trace_of_it(tmp_path: Path) -> None:
    builder = TraceBuilder(rank=0)
    for number in (2, 0, 1):
        builder.step(number, 100 * number, 100)
        builder.kernel("gemm", 100 * number + 20, 30, launch=100 * number + 5)
    del builder.events[-2]  # the launch; the kernel itself is cut off
    said = note(cut(tmp_path, builder), "gpu-work-missing")
    assert said.severity == "error"
    assert "how much is missing is unknown" in said.sentence
    assert note(cut(tmp_path, builder, Detail.GPU), "gpu-work-missing").severity == "error"


def test_in_order_of_time_a_cut_only_shortens_the_window(tmp_path: Path) -> None:
    builder = TraceBuilder(rank=0)
    for number in range(3):
        builder.step(number, 100 * number, 100)
        builder.kernel("gemm", 100 * number + 20, 30, launch=100 * number + 5)
    trace = cut(tmp_path, builder)
    assert note(trace, "window-shortened").severity == "info"
    assert Diagnosis(trace).quality.verdict == "usable with care"


def test_dropped_events_are_an_error_where_launches_lack_their_work(tmp_path: Path) -> None:
    for lost, severity in (("gemm", "error"), ("ProfilerStep#1", "warning")):
        builder = job((0, 1, 2))
        path = builder.write(tmp_path)
        lines = path.read_text().splitlines()
        row = max(n for n, line in enumerate(lines) if f'"{lost}"' in line and n < len(lines) - 3)
        lines[row] = '  {"ph": "X", "cat": ,'
        path.write_text("\n".join(lines))
        trace = readers.read(path)
        assert note(trace, "gpu-work-missing").severity == severity
        assert not trace.sources[0].complete


def test_a_cut_behind_the_events_loses_none(tmp_path: Path) -> None:
    path = job((2, 0, 1)).write(tmp_path)
    path.write_text(path.read_text().rstrip().rstrip("}"))
    trace = readers.read(path)
    assert trace.sources[0].complete
    assert note(trace, "truncated").severity == "warning"
    assert "gpu-work-missing" not in [note.code for note in trace.notes]
