"""The kernel moves memory between NUMA nodes while an AMD job runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from diagnose.trace import Trace
from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "amd-numa-balancing"
TWO_NODES = {"0": "0-3", "1": "4-7"}


def job(*ranks: dict[str, Any], name: str = "AMD Instinct MI300X") -> Trace:
    """A rank for each ``placement``."""
    builders = [
        TraceBuilder(rank=number, world_size=len(ranks)).kernel("gemm", 0, 10, launch=0)
        for number in range(len(ranks))
    ]
    trace = trace_of(*builders, gpu={"name": name})
    sources = [
        replace(source, environment={**source.environment, "placement": noted})
        for source, noted in zip(trace.sources, ranks, strict=True)
    ]
    return replace(trace, sources=tuple(sources))


@pytest.mark.parametrize("value", [1, 3])
def test_fires_where_it_is_on(value):
    off = {"numa_balancing": 0, "node_cpus": TWO_NODES}
    finding = found(job(off, off | {"numa_balancing": value}), RULE)
    assert finding.sentence == (
        f"The host of rank 1 balances memory between NUMA nodes (kernel.numa_balancing = {value})."
    )
    assert values(finding)["value"] == value
    assert finding.advice[0].code == "sysctl -w kernel.numa_balancing=0"


def test_silent_where_it_is_off_or_only_tiers():
    assert is_clean(job({"numa_balancing": 0}), RULE)
    assert is_clean(job({"numa_balancing": 2}), RULE)


def test_silent_on_a_host_of_one_node():
    assert is_clean(job({"numa_balancing": 1, "node_cpus": {"0": "0-7"}}), RULE)


def test_is_not_judged_where_a_host_did_not_say():
    findings, checked = judged(job({"numa_balancing": 0}, {}), RULE)
    assert not findings
    assert "/proc/sys/kernel/numa_balancing" in checked.not_checked[0].remedy


def test_does_not_apply_to_other_gpus():
    _, checked = judged(job({"numa_balancing": 1}, name="NVIDIA H200"), RULE)
    assert len(checked.not_applicable) == 1
