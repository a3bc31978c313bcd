"""A transfer has one buffer: it is filled again only when the transfer that uses it has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diagnose import readers
from diagnose.trace import Trace
from tests.builder import HOST_PID, TraceBuilder
from tests.execution_traces import Tensor, node, tensor, write
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "single-buffered-transfer"
COMPUTE, COPY = 7, 20
MIB = 1 << 20
COPY_SCHEMA = "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)"
SUM_SCHEMA = "aten::sum.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)"
FILL_SCHEMA = "aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)"
ADD_SCHEMA = "aten::add_.Scalar(Tensor(a!) self, Scalar other) -> Tensor(a!)"
HOST = tensor(90, 91, [MIB], [1], device="cpu")
SUM = tensor(80, 81, [1], [1])


class Job:
    """Steps of 1,000 us, and the execution trace beside their profile."""

    def __init__(self) -> None:
        self.builder = TraceBuilder(rank=0, world_size=1)
        self.nodes: list[dict[str, Any]] = []

    def operator(self, name: str, at: float, schema: str, *given: Any) -> int:
        function = len(self.nodes) + 1
        self.nodes.append(node(function, name, schema, list(given)))
        return self.builder.operator(name, at, 4, **{"Record function id": function})

    def copy_in(self, at: float, start: float, duration: float, buffer: Tensor) -> None:
        parent = self.operator("aten::copy_", at, COPY_SCHEMA, buffer, HOST, True)
        self.builder.copy("HtoD", start, duration, launch=at + 1, parent=parent, stream=COPY)

    def copy_out(self, at: float, start: float, duration: float, buffer: Tensor) -> None:
        parent = self.operator("aten::copy_", at, COPY_SCHEMA, HOST, buffer, True)
        self.builder.copy("DtoH", start, duration, launch=at + 1, parent=parent, stream=COPY)

    def read(self, at: float, start: float, duration: float, buffer: Tensor) -> None:
        parent = self.operator("aten::sum", at, SUM_SCHEMA, buffer, SUM)
        self.builder.kernel("reduce", start, duration, launch=at + 1, parent=parent)

    def fill(
        self, at: float, start: float, duration: float, buffer: Tensor, schema: str = FILL_SCHEMA
    ) -> None:
        name = schema.partition(".")[0]
        parent = self.operator(name, at, schema, buffer, 1)
        self.builder.kernel("elementwise", start, duration, launch=at + 1, parent=parent)

    def trace(self, folder: Path) -> Trace:
        path = self.builder.write(folder)
        write(folder, *self.nodes, rank=0, pid=HOST_PID)
        (folder / "rank0.execution_trace.json").rename(folder / "rank00000.execution_trace.json")
        return readers.read([str(path)])


def slot(number: int, of: int, elements: int = MIB) -> Tensor:
    """The buffer of one turn, in a storage of its own as two tensors have."""
    return tensor(10 + number % of, 11 + 10 * (number % of), [elements], [1])


TURNS = 5
COPY_US = 298.0


def prefetching(
    buffers: int = 1,
    *,
    late: float = 0,
    ahead: float | None = None,
    asked: float | None = None,
    copied: Tensor | None = None,
) -> Job:
    """Reads of 600 us, each of what a copy of 298 us has brought before.

    With one buffer the copy follows 2 us (and ``late``) behind the read, and the next read 2 us
    behind the copy. The host asks for both far ahead of the GPU, or for the read ``ahead`` of its
    start and for the copy ``asked`` behind the start of the read before.
    """
    job = Job()
    for turn in range(TURNS):
        begins = 200 + (902 + late) * turn
        early = 300.0 * turn
        job.read(early if ahead is None else begins - ahead, begins, 600, slot(turn, buffers))
        start = begins + 602 + late if buffers == 1 else begins + 10
        ask = early + 20 if asked is None else begins + asked
        job.copy_in(ask, start, COPY_US, copied or slot(turn + 1, buffers))
    return job


def test_fires_where_a_prefetch_into_the_only_buffer_holds_up_the_next_read(tmp_path: Path) -> None:
    finding = found(prefetching().trace(tmp_path), RULE)
    # From 200 to 902 * 4 + 200 + 900 us; four of the five copies have a read behind them.
    seen = values(finding)
    assert seen["num_refills"] == TURNS
    assert seen["wait_ns"] == 4 * COPY_US * 1000
    assert seen["wait_pct"] == pytest.approx(100 * 4 * COPY_US / 4508)
    assert seen["transfer_bytes"] == 4 * MIB
    assert finding.where.streams == (COMPUTE, COPY)
    assert finding.confidence == "medium"
    assert finding.gain.basis == "upper bound"


def test_until_the_host_asks_for_the_read_nothing_is_held_up(tmp_path: Path) -> None:
    finding = found(prefetching(ahead=52, asked=20).trace(tmp_path), RULE)
    # Launched 51 us before the read begins, which is 49 us before the copy ends.
    assert values(finding)["wait_ns"] == 4 * 49_000


def test_fires_where_a_buffer_that_is_sent_holds_up_what_fills_it(tmp_path: Path) -> None:
    job = Job()
    for turn in range(TURNS):
        begins = 200.0 + 902 * turn
        job.fill(300 * turn, begins, 600, slot(0, 1))
        job.copy_out(300 * turn + 20, begins + 601, 299, slot(0, 1))
    finding = found(job.trace(tmp_path), RULE)
    # Fill 1 to 4 wait for the copy before, from the end of their own stream's work: 300 us each.
    assert values(finding)["num_refills"] == TURNS - 1
    assert values(finding)["wait_ns"] == (TURNS - 1) * 300_000


def test_one_wait_for_two_buffers_counts_once(tmp_path: Path) -> None:
    job = Job()
    schema = "aten::add.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)"
    for turn in range(TURNS):
        begins = 200 + 902 * turn
        parent = job.operator("aten::add", 300 * turn, schema, slot(0, 2), slot(1, 2), SUM)
        job.builder.kernel("elementwise", begins, 600, launch=300 * turn + 1, parent=parent)
        for place in (0, 1):
            asked = 300 * turn + 20 + 5 * place
            parent = job.operator("aten::copy_", asked, COPY_SCHEMA, slot(place, 2), HOST, True)
            stream = COPY + place
            job.builder.copy(
                "HtoD", begins + 602, COPY_US, launch=asked + 1, parent=parent, stream=stream
            )
    seen = values(found(job.trace(tmp_path), RULE))
    assert (seen["num_refills"], seen["wait_ns"]) == (2 * TURNS, 4 * COPY_US * 1000)


def test_a_transfer_could_have_run_earlier_by_no_more_than_it_waited_itself(tmp_path: Path) -> None:
    # Asked for 100 us before the read ends: only so much of the 298 us could have been hidden.
    finding = found(prefetching(ahead=900, asked=499).trace(tmp_path), RULE)
    assert values(finding)["wait_ns"] == 4 * 100_000


def test_silent_where_a_kernel_without_an_operator_keeps_the_stream_busy(tmp_path: Path) -> None:
    job = prefetching()
    for turn in range(TURNS):
        begins = 200 + 902 * turn
        job.builder.kernel("triton", begins + 10, 588, launch=300.0 * turn + 15, stream=COPY)
    assert is_clean(job.trace(tmp_path), RULE)


def test_silent_with_two_buffers(tmp_path: Path) -> None:
    assert is_clean(prefetching(2).trace(tmp_path), RULE)


def test_silent_where_one_tensor_holds_both_buffers(tmp_path: Path) -> None:
    halves = [tensor(10, 11, [MIB], [1]), tensor(12, 11, [MIB], [1], offset=MIB)]
    job = prefetching()
    job.fill(5, 150, 20, halves[1])
    assert is_clean(job.trace(tmp_path), RULE)


def test_silent_where_the_host_asks_for_the_copy_late(tmp_path: Path) -> None:
    trace = prefetching(asked=600.5).trace(tmp_path)
    assert is_clean(trace, RULE)


def test_fires_where_the_event_is_recorded_behind_more_than_the_reader(tmp_path: Path) -> None:
    job = prefetching(late=100)
    for turn in range(TURNS):
        begins = 200 + 1002 * turn
        job.builder.kernel("other", begins + 601, 99, launch=300.0 * turn + 10, parent=7)
    finding = found(job.trace(tmp_path), RULE)
    assert values(finding)["wait_ns"] == 4 * COPY_US * 1000


def test_silent_where_the_copy_waits_for_something_else(tmp_path: Path) -> None:
    assert is_clean(prefetching(late=30).trace(tmp_path), RULE)


def test_silent_where_another_buffer_is_copied_into(tmp_path: Path) -> None:
    trace = prefetching(copied=tensor(70, 71, [MIB], [1])).trace(tmp_path)
    assert is_clean(trace, RULE)


def test_silent_where_the_new_content_comes_from_the_old(tmp_path: Path) -> None:
    job = Job()
    for turn in range(TURNS):
        begins = 200.0 + 902 * turn
        job.fill(300 * turn, begins, 600, slot(0, 1), ADD_SCHEMA)
        job.copy_out(300 * turn + 20, begins + 601, 299, slot(0, 1))
    assert is_clean(job.trace(tmp_path), RULE)


def test_silent_where_the_allocator_gave_the_memory_out_again(tmp_path: Path) -> None:
    job = prefetching()
    function = len(job.nodes) + 1
    schema = "aten::empty.memory_format(SymInt[] size) -> Tensor"
    job.nodes.append(node(function, "aten::empty", schema, [[MIB]], [slot(0, 1)]))
    job.builder.operator("aten::empty", 1490, 4, **{"Record function id": function})
    assert is_clean(job.trace(tmp_path), RULE)


def test_not_checked_without_an_execution_trace() -> None:
    findings, checked = judged(trace_of(prefetching().builder), RULE)
    assert not findings
    assert [one.rule for one in checked.not_checked] == [RULE]
    assert "--check-sync" in checked.not_checked[0].remedy


def test_ranks_without_an_execution_trace_are_named(tmp_path: Path) -> None:
    watched = prefetching(2)
    watched.trace(tmp_path)
    other = TraceBuilder(rank=1, world_size=2)
    other.kernel("sum", 10, 5, launch=1)
    other.write(tmp_path)
    paths = sorted(str(path) for path in tmp_path.glob("*.trace.json"))
    findings, checked = judged(readers.read(paths), RULE)
    assert not findings
    assert [one.sentence.rpartition(": ")[2] for one in checked.seen] == ["not seen is rank 1."]
