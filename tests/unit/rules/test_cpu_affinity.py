"""A process may not run where its GPU is, or ranks share CPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from diagnose.trace import Trace
from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "cpu-affinity"
NODES = {"0": "0-3", "1": "4-7"}


def rank(number: int, call_us: float, kernel_us: float = 4) -> TraceBuilder:
    """40 kernels, one every 20 us: an operator launches each, and it starts when the call ends."""
    builder = TraceBuilder(rank=number, world_size=2)
    for place in range(40):
        at = place * 20
        operator = builder.operator("aten::add", at, 20)
        call = builder.call("cudaLaunchKernel", at + 1, call_us, parent=operator)
        builder.kernel("add", at + 1 + call_us, kernel_us, correlation=call)
    return builder


def place(cpus: str, gpu_cpus: str | None = "0-3", **more: Any) -> dict[str, Any]:
    noted = {"allowed_cpus": cpus, "online_cpus": "0-7", "gpu_cpus": gpu_cpus, "num_threads": 1}
    return noted | {"gpu_numa_node": 0, "ranks_per_node": 2} | more


def job(first: dict[str, Any] | None, second: dict[str, Any] | None, call_us: float = 9) -> Trace:
    """Rank 0 launches in 5 us, rank 1 in ``call_us``."""
    trace = trace_of(rank(0, 5), rank(1, call_us))
    noted = [{} if one is None else {"placement": one} for one in (first, second)]
    sources = [
        replace(source, host="node7", environment=content)
        for source, content in zip(trace.sources, noted, strict=True)
    ]
    return replace(trace, sources=tuple(sources))


def test_fires_for_cpus_of_another_node():
    finding = found(job(place("0-3"), place("4-7")), RULE)
    evidence = values(finding)
    assert evidence["launch_ratio"] == pytest.approx(9 / 5)
    assert (evidence["launch_ns"], evidence["others_launch_ns"]) == (9000, 5000)
    assert evidence["reasons"] == "far"
    assert "4 of its 4 CPUs are not at its GPU" in finding.sentence
    # 40 launches are 4 us slower; the GPU idles 39 gaps of 16 us.
    assert finding.cost.per_step_ns == 160_000
    assert [gpu.rank for gpu in finding.where.gpus] == [1]
    assert finding.advice[1].code == "numactl --cpunodebind=0 --preferred=0"


def test_fires_where_ranks_share_cpus():
    finding = found(job(place("0-1"), place("1-2")), RULE)
    assert values(finding)["reasons"] == "shared"


def test_fires_for_more_threads_than_cpus():
    # Nobody is bound, and both GPUs are near all CPUs: two ranks of six threads on eight.
    free = place("0-7", "0-7", num_threads=6)
    finding = found(job(free, free), RULE)
    assert values(finding)["reasons"] == "crowded"
    assert "2 ranks of 6 threads each run on 8 CPUs" in finding.sentence
    assert finding.advice[0].code == "OMP_NUM_THREADS"


def test_fires_by_the_number_of_the_node_where_its_cpus_are_not_named():
    trace = job(place("0-3"), place("4-7", None, node_cpus=NODES))
    noted = dict(trace.sources[1].environment) | {"gpu": {"numa_node": 0}}
    trace = replace(trace, sources=(trace.sources[0], replace(trace.sources[1], environment=noted)))
    assert values(found(trace, RULE))["reasons"] == "far"


def test_silent_where_launches_are_as_fast():
    # 1.4 times: whatever the CPUs are.
    assert is_clean(job(place("0-3"), place("4-7"), call_us=7), RULE)
    assert is_clean(job(None, None, call_us=7), RULE)


def test_silent_where_the_cpus_are_right():
    assert is_clean(job(place("0-1"), place("2-3")), RULE)
    # A container of four CPUs: nobody was bound to those of another rank.
    assert is_clean(job(place("0-3"), place("0-3")), RULE)


def test_is_not_judged_where_the_place_is_unknown():
    for second in (None, place("2-3", None)):
        findings, checked = judged(job(place("0-1"), second), RULE)
        assert not findings
        because = checked.not_checked[0].because
        assert because.startswith("rank 1 launches slowly, and on which CPUs")
        assert "PCI address" in checked.not_checked[0].remedy


def test_silent_where_the_gpu_does_not_wait():
    # Kernels of 20 us: the GPU is busy without a pause.
    trace = trace_of(rank(0, 5, 20), rank(1, 9, 20))
    sources = tuple(
        replace(s, environment={"placement": place(cpus)})
        for s, cpus in zip(trace.sources, ("0-3", "4-7"), strict=True)
    )
    assert is_clean(replace(trace, sources=sources), RULE)
