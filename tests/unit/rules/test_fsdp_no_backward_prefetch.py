"""FSDP gathers each unit only when its backward pass needs it."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.fsdp_job import job
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "fsdp-no-backward-prefetch"


def test_fires_where_each_unit_is_gathered_when_due():
    evidence = values(found(trace_of(job()), RULE))
    # Units b and a, 50 us each; c is the first of the backward pass. The step takes 2000 us.
    assert evidence["exposed_ns"] == 100_000
    assert evidence["exposed_pct"] == 5
    assert evidence["not_prefetched_pct"] == 100


def test_silent_where_the_next_unit_is_prefetched():
    assert is_clean(trace_of(job(prefetch=True)), RULE)


def test_silent_where_gathers_are_hidden_or_short():
    assert is_clean(trace_of(job(beside=True)), RULE)
    assert is_clean(trace_of(job(gather=25)), RULE)  # 50 us of 2000


def test_does_not_apply_without_fsdp():
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(3):
        builder.step(step, step * 100, 99)
        builder.operator("aten::mm", step * 100, 5)
        builder.kernel("gemm", step * 100, 50, launch=step * 100 + 1)
        builder.collective("allreduce", step * 100 + 50, 50, launch=step * 100 + 2)
    _, checked = judged(trace_of(builder), RULE)
    assert checked.not_applicable == (RULE,)
