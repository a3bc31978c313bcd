"""The optimizer updates parameters with many small kernels."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "unfused-optimizer"
SMALL = "vectorized_elementwise_kernel"


def job(name: str = SMALL, number: int = 40, every: float = 10, gemm: float = 1000) -> TraceBuilder:
    """Three steps: a product, then ``number`` kernels of 3 us launched by the optimizer."""
    builder, at = TraceBuilder(rank=0, world_size=1), 0.0
    for step in range(3):
        length = gemm + number * every
        builder.step(step, at, length)
        builder.kernel("gemm", at + 1, gemm - 1, launch=at)
        begin = at + gemm
        builder.operator(
            "Optimizer.step#AdamW.step", begin, number * every, category="user_annotation"
        )
        for place in range(number):
            builder.kernel(name, begin + every * place + 5, 3, launch=begin + every * place + 1)
        at += length
    return builder


def test_fires_for_many_small_kernels():
    finding = found(trace_of(job()), RULE)
    evidence = values(finding)
    assert (evidence["optimizer"], evidence["num_kernels"]) == ("AdamW", 40)
    # From 5 us to 395 + 3 us; a step takes 1400 us.
    assert evidence["phase_ns"] == 393_000
    assert evidence["phase_pct"] == pytest.approx(100 * 393 / 1400)
    assert (evidence["busy_ns"], evidence["host_ns"]) == (120_000, 400_000)
    assert finding.gain.changes == ("fused-optimizer",)
    assert finding.advice[0].code == "torch.optim.AdamW(parameters, ..., fused=True)"


def test_silent_for_a_fused_optimizer():
    assert is_clean(trace_of(job("multi_tensor_apply_kernel<FusedAdamMathFunctor>")), RULE)


def test_silent_for_few_kernels():
    assert is_clean(trace_of(job(number=20)), RULE)


def test_silent_where_it_takes_little_of_the_step():
    assert is_clean(trace_of(job(gemm=20_000)), RULE)


def test_is_not_judged_without_an_optimizer():
    builder = TraceBuilder(rank=0, world_size=1).kernel("gemm", 0, 100, launch=0)
    builder.operator("aten::mm", 0, 5)
    _, checked = judged(trace_of(builder), RULE)
    assert [one.because for one in checked.not_checked] == [
        "no optimizer step with kernels of its own was recorded"
    ]
