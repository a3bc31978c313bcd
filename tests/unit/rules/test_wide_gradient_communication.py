"""Gradients are reduced in 32 bits though the model computes in 16."""

from __future__ import annotations

import pytest

from diagnose.rules.wide_gradient_communication import _NARROW
from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "wide-gradient-communication"
STEP, BACKWARD = 1000, 77
BF16 = "nvjet_sm90_tst_128x256_64x4_4x2_h_bz_coopA_NNN"
TF32 = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64"


def job(dtype: str = "Float", gemm: str = BF16, at: int = 800, thread: int = BACKWARD):
    """Three steps: 400 us forward, 400 us backward, and a reduction of 200 us from ``at`` on."""
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(3):
        begin = step * STEP
        builder.step(step, begin, STEP - 1)
        builder.kernel(gemm, begin, 400, launch=begin + 1)
        builder.kernel(gemm, begin + 400, 400, launch=begin + 5, thread=BACKWARD)
        builder.collective(
            "allreduce",
            begin + at,
            200,
            launch=begin + 9,
            elements=1 << 20,
            dtype=dtype,
            thread=thread,
        )
        builder.kernel("adam", begin + 990, 10, launch=begin + 20)
    return builder


def test_fires_for_exposed_float_reductions_of_a_bfloat16_model():
    evidence = values(found(trace_of(job()), RULE))
    # 200 us, of which the optimizer covers the last 10.
    assert evidence["exposed_ns"] == 190_000
    assert evidence["exposed_pct"] == 19
    assert evidence["gradient_bytes"] == 4 * 2**20
    assert evidence["narrow_gemm_pct"] == 100


def test_silent_for_narrow_gradients_wide_compute_and_hidden_reductions():
    assert is_clean(trace_of(job(dtype="BFloat16")), RULE)
    assert is_clean(trace_of(job(gemm=TF32)), RULE)
    assert is_clean(trace_of(job(at=500)), RULE)


def test_silent_for_reductions_that_are_not_of_gradients():
    builder = job(thread=4242)
    assert is_clean(trace_of(builder), RULE)


@pytest.mark.parametrize(
    ("name", "narrow"),
    [
        (BF16, True),
        ("nvjet_hsh_128x128", True),
        ("ampere_fp16_s16816gemm_fp16_128x64", True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", True),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128", True),
        (TF32, False),
        ("nvjet_sss_128x128", False),
        ("ampere_sgemm_128x64_nn", False),
        ("Cijk_Ailk_Bljk_SB_MT128x128", False),
    ],
)
def test_types_are_told_by_name(name, narrow):
    assert bool(_NARROW.search(name)) == narrow
