"""Jobs without a GPU: what their environment says decides what their traces are blamed for."""

from __future__ import annotations

import json
import math

import pytest

import diagnose
from diagnose import engine
from diagnose.analyzers.host_steps import Seen
from diagnose.findings import Diagnosis
from diagnose.readers.assemble import Origin
from diagnose.schema import Detail
from diagnose.trace import ON_CPU, HostIntervals
from tests.builder import TraceBuilder, build_trace

CPU = {"torch": "2.13.0+cpu", "cuda": None, "gpu": None}
UNUSED = {"torch": "2.13.0+cu130", "cuda": "13.0", "gpu": None}
ROCM = {"torch": "2.13.0+rocm6.4", "cuda": None, "gpu": None}


def job(rank=0):
    builder = TraceBuilder(rank=rank, world_size=2).step(1, 0, 100).step(2, 100, 140)
    builder.operator("aten::mm", 10, 50)
    return builder


def trace_of(environment, builder=None, **options):
    return build_trace(builder or job(), origins=[Origin(environment=environment)], **options)


def codes(trace):
    return [note.code for note in trace.notes]


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (CPU, "its PyTorch (2.13.0+cpu) is built without CUDA"),
        (UNUSED, "no GPU was in use in it"),
        (ROCM, "no GPU was in use in it"),  # built for GPUs, though not for CUDA
        ({"torch": "2.13.0", "gpu": None}, "no GPU was in use in it"),  # the build is not said
    ],
)
def test_a_job_on_the_cpu_is_not_blamed_for_having_no_gpu_work(environment, said):
    trace = trace_of(environment)
    [note] = trace.notes
    assert (note.code, note.severity) == (ON_CPU, "info")
    assert said in note.sentence
    assert trace.on_cpu
    assert Diagnosis(trace).quality.verdict == "good"


@pytest.mark.parametrize(
    "environment",
    [
        {},  # no environment file
        {"torch": "2.13.0+cu130", "cuda": "13.0"},  # it does not say whether there was a GPU
        {"torch": "2.13.0+cu130", "cuda": "13.0", "gpu": {"name": "NVIDIA H200"}},
        {"torch": None, "cuda": None, "gpu": None},  # PyTorch was not loaded: nothing is known
    ],
)
def test_missing_gpu_work_is_a_warning_where_nothing_says_why(environment):
    trace = trace_of(environment)
    assert codes(trace) == ["no-gpu-events"]
    assert not trace.on_cpu
    assert Diagnosis(trace).quality.verdict == "not to be trusted"


def test_a_call_into_the_gpu_runtime_proves_that_there_was_a_gpu():
    builder = job()
    builder.call("cudaLaunchKernel", 20, 5)
    assert codes(trace_of(UNUSED, builder)) == ["no-gpu-events"]


def test_a_rank_on_the_cpu_among_others_on_gpus_is_a_warning():
    first = job(0).kernel("gemm", 20, 30, launch=15)
    trace = build_trace(first, job(1), origins=[Origin(), Origin(environment=UNUSED)])
    [note] = [note for note in trace.notes if note.code == ON_CPU]
    assert (note.severity, note.source) == ("warning", 1)
    assert not trace.on_cpu
    assert Diagnosis(trace).quality.verdict == "usable with care"


def test_one_rank_of_which_nothing_is_known_is_enough_for_doubt():
    trace = build_trace(job(0), job(1), origins=[Origin(environment=CPU), Origin()])
    assert not trace.on_cpu
    assert Diagnosis(trace).quality.verdict == "not to be trusted"


# Steps on the host.


def steps(*intervals, detail=Detail.ALL):
    origins = [Origin(environment=CPU, host_intervals=known) for known in intervals]
    builders = [job(rank) for rank in range(len(intervals))]
    trace = build_trace(*builders, detail=detail, origins=origins)
    table = engine.run(engine.analyzers()["host_steps"], trace)
    return {name: column.tolist() for name, column in table.columns.items()}


def test_times_outside_of_the_window_come_first():
    rows = steps(HostIntervals(before=(10, 30), within=(99,), after=(40,)))
    assert rows["seen"] == [Seen.OUTSIDE]
    # Of 10, 30 and 40.
    assert (rows["num_steps"], rows["median_step_ns"], rows["longest_step_ns"]) == ([3], [30], [40])


def test_then_those_in_it_then_step_marks():
    rows = steps(HostIntervals(within=(50, 70)), None)
    assert rows["seen"] == [Seen.WITHIN, Seen.MARKS]
    # Marks of 100 and 140 us.
    assert rows["median_step_ns"] == [60, 120_000]
    assert rows["longest_step_ns"] == [70, 140_000]
    assert rows["num_ops"] == [1, 1]
    # Timed in different places: neither is compared with the other.
    assert rows["slower_pct"] == [0, 0]


def test_ranks_are_compared_with_the_fastest():
    rows = steps(HostIntervals(after=(20,)), HostIntervals(after=(25,)))
    assert rows["slower_pct"] == [0, 25]


def test_nothing_timed_is_null_and_operators_not_read_are_too():
    trace = build_trace(TraceBuilder(rank=0).kernel("gemm", 0, 5), detail=Detail.GPU)
    table = engine.run(engine.analyzers()["host_steps"], trace)
    assert table["seen"].tolist() == [Seen.NOWHERE]
    assert math.isnan(table["median_step_ns"][0])
    assert not table.known("longest_step_ns")[0]
    assert not table.known("num_ops")[0]


def test_the_manifest_and_the_environment_beside_it_reach_the_report(tmp_path):
    """As ``diagnose attach`` leaves them."""
    job().write(tmp_path, "rank00000.trace.json")
    (tmp_path / "rank00000.env.json").write_text(json.dumps(CPU))
    times = {"before": [1000, 3000], "within": [9000], "after": [5000]}
    rank = {"rank": 0, "trace": "rank00000.trace.json", "step_times_ns": times}
    manifest = {"format": 1, "world_size": 1, "ranks": [{**rank, "env": "rank00000.env.json"}]}
    (tmp_path / "recording.json").write_text(json.dumps(manifest))
    trace = diagnose.load(str(tmp_path)).trace
    assert trace.on_cpu
    assert trace.sources[0].host_intervals == HostIntervals((1000, 3000), (9000,), (5000,))
