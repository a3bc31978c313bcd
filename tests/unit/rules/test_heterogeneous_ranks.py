"""Ranks differ in hardware, software or settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diagnose.trace import Trace
from tests.builder import TraceBuilder, build_trace
from tests.unit.rules.judging import found, is_clean, judged, values

RULE = "heterogeneous-ranks"


def trace(*environments: dict[str, Any]) -> Trace:
    """A rank for each environment."""
    number = len(environments)
    builders = [
        TraceBuilder(rank=rank, world_size=number).kernel("gemm", 0, 10, launch=0)
        for rank in range(number)
    ]
    made = build_trace(*builders)
    noted = zip(made.sources, environments, strict=True)
    return replace(made, sources=tuple(replace(s, environment=e) for s, e in noted))


def noted(watts: float = 700.0, torch: str = "2.11.0", **env: str) -> dict[str, Any]:
    return {"torch": torch, "gpu": {"power_limit": {"enforced_w": watts}}, "env": env}


def test_fires_for_the_odd_rank_out():
    finding = found(trace(noted(), noted(500.0), noted()), RULE)
    assert finding.where.ranks == (1,)
    assert finding.severity == "info"
    assert finding.sentence == (
        "enforced power limit (W) differs: 500.0 on rank 1, 700.0 on the others."
    )
    assert values(finding)["num_odd"] == 1
    assert finding.key == "heterogeneous-ranks@rank 1@enforced power limit (W)"


def test_fires_for_each_thing_that_differs():
    findings, _ = judged(trace(noted(), noted(torch="2.10.0", NCCL_ALGO="Ring")), RULE)
    assert {values(one)["what"] for one in findings} == {"PyTorch", "NCCL_ALGO"}
    algorithm = next(one for one in findings if values(one)["what"] == "NCCL_ALGO")
    assert values(algorithm)["usual"] == "not set"


def test_silent_where_all_say_the_same():
    assert is_clean(trace(noted(NCCL_ALGO="Ring"), noted(NCCL_ALGO="Ring")), RULE)


def test_silent_for_what_differs_by_nature_or_was_not_noted():
    assert is_clean(trace(noted(NCCL_IB_HCA="mlx5_0", RANK="0"), noted(RANK="1")), RULE)
    assert is_clean(trace(noted(), {"env": {}}), RULE)
