"""Between machines the network is slow, within them it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.trace import Trace
from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "ib-path"
STEP = 4000
KNOWN = {"measured_gb_per_s": 50.0, "measured_within_gb_per_s": 100.0}


def trace(between: int = 2000, within: int = 400, hosts: str = "aabb") -> Trace:
    """Four ranks on two machines: per step 32 MiB reduced by pairs of neighbours, then of halves.

    Ranks 0 and 1 share a machine, as do 2 and 3; groups of halves are 0 and 2, 1 and 3.
    """
    builders = []
    for rank in range(4):
        builder = TraceBuilder(rank=rank, world_size=4)
        for step in range(3):
            begin = step * STEP
            builder.step(step, begin, STEP - 1)
            builder.kernel("gemm", begin, 400, launch=begin + 1)
            near, far = f"near{rank // 2}", f"far{rank % 2}"
            builder.collective(
                "allreduce", begin + 500, within, launch=begin + 5, elements=1 << 24, group=near
            )
            builder.collective(
                "allreduce", begin + 1500, between, launch=begin + 9, elements=1 << 24, group=far
            )
        for event in builder.events:
            group = event.get("args", {}).get("Process Group Name", "")
            first = rank // 2 * 2 if group.startswith("near") else rank % 2
            if group:
                other = first + (1 if group.startswith("near") else 2)
                event["args"]["Process Group Ranks"] = str([first, other])
        builders.append(builder)
    made = trace_of(*builders)
    placed = zip(made.sources, hosts, strict=True)
    return replace(made, sources=tuple(replace(s, host=host) for s, host in placed))


def test_fires_where_only_the_way_between_machines_is_slow():
    evidence = values(found(trace(), RULE, **KNOWN))
    # 33 554 432 bytes in 2 ms of 50 GB/s, in 0.4 ms of 100; the bus factor of two ranks is 1.
    assert evidence["busbw_gb_per_s"] == pytest.approx(16.777216)
    assert evidence["of_measured_pct"] == pytest.approx(33.554432)
    assert evidence["within_pct"] == pytest.approx(83.88608)


def test_silent_where_the_fabric_is_fast_or_the_machines_are_slow_too():
    assert is_clean(trace(between=1000), RULE, **KNOWN)
    assert is_clean(trace(within=800), RULE, **KNOWN)


def test_does_not_apply_to_one_machine():
    _, checked = judged(trace(hosts="aaaa"), RULE, **KNOWN)
    assert checked.not_applicable == (RULE,)


def test_is_not_judged_without_references():
    _, checked = judged(trace(), RULE)
    assert len(checked.not_checked) == 1
