"""Nothing waits for a collective before its result may be used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diagnose import readers
from tests.builder import HOST_PID, TraceBuilder
from tests.execution_traces import node, tensor, write
from tests.unit.analyzers.hazards.programs import Program, X, Y, memory
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "missing-stream-sync"
COMPUTE, COMM, OTHER = 7, 20, 30


def job(
    *, stream: int = COMM, starts: float = 30, graph: bool = False, number: int = 4
) -> TraceBuilder:
    """Per 100 us: an all-reduce from 10 to 60 us after which the next kernel starts at ``starts``.

    The communicator's stream waits for the compute stream, as NCCL's process group makes it.
    """
    builder = TraceBuilder(rank=0, world_size=2)
    for place in range(number):
        at = 100.0 * place
        builder.kernel("backward", at + 1, 8, launch=at)
        wait(builder, at + 1.5, stream=COMM)
        if graph:
            graph_launch = builder.call("cudaGraphLaunch", at + 2)
            builder.collective("allreduce", at + 10, 50, stream=stream, correlation=graph_launch)
        else:
            builder.collective("allreduce", at + 10, 50, stream=stream, launch=at + 2)
        builder.kernel("optimizer", at + starts, 10, launch=at + 5)
    return builder


def wait(
    builder: TraceBuilder, at: float, *, stream: int, event_stream: int | None = None
) -> TraceBuilder:
    """A stream is told to wait for an event; of which stream is often not recorded."""
    correlation = builder.call("cudaStreamWaitEvent", at, 0.2)
    args = {"cuda_sync_kind": "Stream Wait Event", "stream": stream, "device": 0}
    args |= {"correlation": correlation}
    args |= {} if event_stream is None else {"wait_on_stream": event_stream}
    builder.event("cuda_sync", "Stream Wait Event", at, 1, pid=0, tid=stream, args=args)
    return builder


def test_fires_where_kernels_overtake_and_nothing_waits():
    finding = found(trace_of(job()), RULE)
    evidence = values(finding)
    assert (evidence["num_collectives"], evidence["num_early"]) == (4, 4)
    assert evidence["untied_pct"] == 100
    # The kernel starts at 30 us, the collective ends at 60 us.
    assert evidence["overtaken_ns"] == 30_000
    assert finding.where.streams == (COMM,)
    assert (finding.severity, finding.confidence) == ("hint", "low")


def test_fires_where_the_compute_stream_waits_for_a_third():
    builder = wait(job(), 390, stream=COMPUTE, event_stream=OTHER)
    assert values(found(trace_of(builder), RULE))["num_early"] == 4


@pytest.mark.parametrize("event_stream", [None, COMM])
def test_silent_where_the_compute_stream_waits(event_stream):
    builder = wait(job(), 390, stream=COMPUTE, event_stream=event_stream)
    assert is_clean(trace_of(builder), RULE)


def test_silent_where_the_host_waits_for_the_device():
    builder = job()
    correlation = builder.call("cudaDeviceSynchronize", 390, 5)
    builder.sync("Context Sync", 390, 5, correlation=correlation)
    assert is_clean(trace_of(builder), RULE)


def test_fires_where_only_a_watchdog_waits():
    builder = job()
    correlation = builder.call("cudaEventSynchronize", 390, 5, thread=99)
    builder.sync("Event Sync", 390, 5, correlation=correlation)
    assert values(found(trace_of(builder), RULE))["untied_pct"] == 100


def test_silent_where_kernels_start_later():
    assert is_clean(trace_of(job(starts=61)), RULE)


def test_silent_on_the_compute_stream():
    assert is_clean(trace_of(job(stream=COMPUTE)), RULE)


def test_silent_in_a_graph():
    assert is_clean(trace_of(job(graph=True)), RULE)


def test_is_not_judged_without_stream_waits():
    builder = TraceBuilder(rank=0, world_size=2).collective("allreduce", 0, 10, launch=0)
    _, checked = judged(trace_of(builder), RULE)
    assert [one.because for one in checked.not_checked] == ["no wait of a stream was recorded"]


def training(*, waits: bool, synchronise: bool = True) -> TraceBuilder:
    """Three steps: backward, an all-reduce from 20 to 80 us, and the optimizer from 50 us."""
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(3):
        at = 200.0 * step
        builder.step(step, at, 200)
        builder.kernel("backward", at + 1, 40, launch=at)
        wait(builder, at + 1.5, stream=COMM)
        for place in range(2):
            begin = at + 20 + 30 * place
            builder.collective("allreduce", begin, 30, stream=COMM, launch=at + 4 + place)
        if waits:
            wait(builder, at + 7, stream=COMPUTE)
        builder.operator("Optimizer.step#AdamW.step", at + 10, 40, category="user_annotation")
        builder.kernel("adam", at + 45, 10, launch=at + 12)
        if synchronise:
            correlation = builder.call("cudaDeviceSynchronize", at + 60, 30)
            builder.sync("Context Sync", at + 60, 30, correlation=correlation)
    return builder


def test_fires_where_the_optimizer_starts_before_anything_waited():
    finding = found(trace_of(training(waits=False)), RULE)
    evidence = values(finding)
    # The optimizer starts at 45 us, the two all-reduces end at 50 and 80 us.
    assert (evidence["num_collectives"], evidence["num_early"]) == (6, 6)
    assert evidence["overtaken_ns"] == 35_000
    assert "the optimizer" in finding.sentence


def test_silent_where_the_stream_waits_before_the_optimizer():
    assert is_clean(trace_of(training(waits=True)), RULE)


def test_ranks_without_an_execution_trace_are_judged_by_their_profile(tmp_path: Path):
    watched = TraceBuilder(rank=0, world_size=2)
    parent = watched.operator("aten::mul", 1, 4, **{"Record function id": 1})
    watched.kernel("mul", 10, 5, launch=2, parent=parent)
    paths = [str(watched.write(tmp_path))]
    schema = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor"
    write(tmp_path, node(1, "aten::mul", schema, [tensor(1, 2, [4], [1])]), pid=HOST_PID).rename(
        tmp_path / "rank00000.execution_trace.json"
    )
    other = job()
    other.rank = 1
    paths.append(str(other.write(tmp_path)))
    trace = readers.read(paths)
    assert np.unique(trace.accesses["source"]).tolist() == [0]
    finding = found(trace, RULE)
    assert (finding.severity, [gpu.source for gpu in finding.where.gpus]) == ("hint", [1])


def test_a_proven_one_is_of_the_gpus_that_take_part(tmp_path: Path):
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.op("read", reads=[X])
    program.op("elsewhere", writes=[Y], stream=11, device=1)
    finding = found(program.trace(tmp_path), RULE)
    assert finding.severity == "critical"
    assert [gpu.device for gpu in finding.where.gpus] == [0]


def test_of_very_many_races_it_says_how_many_are_not_listed(tmp_path):
    program = Program()
    for number in range(53):
        touched = memory(100 + number)
        program.op(f"write {number}", writes=[touched], stream=20)
        program.op(f"read {number}", reads=[touched])
    findings, _ = judged(program.trace(tmp_path), RULE)
    assert len(findings) == 50
    assert "3 more pairs of operators not listed." in findings[0].caveats
    assert {one.severity for one in findings} == {"critical"}
