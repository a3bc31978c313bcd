"""Matrix products run in FP32, without the tensor cores."""

from __future__ import annotations

import pytest

from diagnose.trace import Trace
from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "precision-shifts-bottleneck"
SGEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(Params)"
FFMA = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_ffma_aligna4_execute"
TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_execute"
TENSOR = "cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4"


def job(*names: str, length: float = 40, capability: str | None = "9.0") -> Trace:
    """Three steps of 100 us: the named kernels, and 100 us less their time of others."""
    builder = TraceBuilder(rank=0, world_size=1)
    for step in range(3):
        at = 100.0 * step
        builder.step(step, at, 100)
        for name in names:
            builder.kernel(name, at + 1, length, launch=at)
            at += length
        rest = 99 - length * len(names)
        builder.kernel("elementwise", at + 1, rest, launch=at)
    return trace_of(builder, gpu={"compute_capability": capability} if capability else {})


def test_fires_for_simt_and_ffma():
    finding = found(job(SGEMM, FFMA), RULE)
    evidence = values(finding)
    assert evidence["fp32_ns"] == 80_000
    assert evidence["compute_pct"] == pytest.approx(100 * 80 / 99)
    assert evidence["kernel"] in (SGEMM, FFMA)
    assert finding.gain.changes == (
        "faster-kernels:name=_ffma,factor=2.0",
        "faster-kernels:name=sgemm,factor=2.0",
    )


def test_silent_for_tensor_cores():
    assert is_clean(job(TF32, TENSOR), RULE)


def test_silent_for_a_small_share():
    assert is_clean(job(SGEMM, length=9), RULE)


def test_silent_on_an_older_gpu():
    findings, checked = judged(job(SGEMM, capability="7.0"), RULE)
    assert not findings
    assert checked.clean == ()
    assert len(checked.not_applicable) == 1


def test_is_not_judged_on_an_unknown_gpu():
    _, checked = judged(job(SGEMM, capability=None), RULE)
    assert [one.because for one in checked.not_checked] == [
        "the GPU's compute capability is not known"
    ]
