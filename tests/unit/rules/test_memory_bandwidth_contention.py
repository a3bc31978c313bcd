"""Compute and communication share the GPU's memory bandwidth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diagnose.trace import Trace
from tests.power_tables import builder, samples
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "memory-bandwidth-contention"
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdam>"


def job(
    kernel: str = ADAM, *, alone_pct: float = 60, beside_pct: float = 92, refresh_ms: float = 100
) -> Trace:
    """Five kernels of 100 ms alone, then five of 140 ms each beside a reduce-scatter."""
    one, at = builder(world_size=2), 0
    for number in range(10):
        length = 140_000 if number >= 5 else 100_000
        one.kernel(kernel, at, length, launch=at, grid=[132, 1, 1], block=[128, 1, 1])
        if number >= 5:
            one.collective("_reduce_scatter_base", at, length, launch=at + 3)
        at += length
    ms = np.arange(0, 1201, refresh_ms) + 0.05
    used = np.where(ms < 501, alone_pct, beside_pct)
    busy = np.full(len(ms), 90.0)
    sensed = samples(ms=ms, gpm_dram_bw_util_pct=used, gpm_sm_util_pct=busy)
    return replace(trace_of(one), samples=sensed)


def test_fires_where_memory_fills_up_and_what_lives_from_it_is_slower():
    finding = found(job(), RULE)
    evidence = values(finding)
    assert (evidence["alone_pct"], evidence["beside_pct"]) == (60, 92)
    # 5 * 40 ms of a window of 500 + 700 ms.
    assert evidence["cost_ns"] == pytest.approx(200e6)
    assert evidence["cost_pct"] == pytest.approx(100 / 6)
    assert evidence["of_cost_pct"] == 100
    assert "Beside reduce_scatter 92.0 % of the memory bandwidth is in use" in finding.sentence


def test_silent_where_memory_was_as_busy_alone_or_is_not_full():
    assert is_clean(job(alone_pct=75), RULE)
    assert is_clean(job(beside_pct=80), RULE)


def test_silent_where_gemms_are_slower():
    assert is_clean(job("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"), RULE)


def test_is_not_judged_by_phases_shorter_than_the_sensors_interval():
    findings, checked = judged(job(refresh_ms=400), RULE)
    assert not findings
    assert [one.because for one in checked.not_checked] == [
        "no phase of one state is as long as the sensor of memory bandwidth needs"
    ]


def test_is_not_judged_without_the_sensor():
    trace = job()
    findings, checked = judged(replace(trace, samples=trace.samples.take(np.arange(0))), RULE)
    assert not findings
    assert [one.rule for one in checked.not_checked] == [RULE]
