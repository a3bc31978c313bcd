"""Collectives of 2 or 4 GPUs on MI300X use few links."""

from __future__ import annotations

import pytest

from diagnose.trace import Trace
from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "amd-partial-node"


def job(
    group_size: int = 4, exposed: float = 20, name: str = "AMD Instinct MI300X", **env: str
) -> Trace:
    """Three steps of 100 us: compute, then an all-reduce beside nothing."""
    builder = TraceBuilder(rank=0, world_size=8)
    for step in range(3):
        at = 100.0 * step
        builder.step(step, at, 100)
        builder.kernel("gemm", at + 1, 99 - exposed, launch=at)
        builder.collective(
            "allreduce", at + 100 - exposed, exposed, launch=at + 1, group_size=group_size
        )
    return trace_of(builder, env=env, gpu={"name": name})


@pytest.mark.parametrize("group_size", [2, 4])
def test_fires_for_small_groups(group_size):
    evidence = values(found(job(group_size), RULE))
    assert evidence["num_gpus"] == group_size
    assert evidence["exposed_ns"] == 20_000
    assert evidence["exposed_pct"] == pytest.approx(20)


def test_silent_for_a_whole_node():
    assert is_clean(job(8), RULE)


def test_silent_where_little_is_exposed():
    assert is_clean(job(exposed=2), RULE)


def test_silent_where_channels_were_set():
    assert is_clean(job(NCCL_MIN_NCHANNELS="32"), RULE)


def test_does_not_apply_to_another_model():
    _, checked = judged(job(name="AMD Instinct MI250X"), RULE)
    assert len(checked.not_applicable) == 1
