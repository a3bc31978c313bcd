"""A hot GPU runs at a lower clock, and the others wait for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diagnose.schema import SAMPLES
from diagnose.trace import Strings, Table, Trace
from tests.builder import TraceBuilder
from tests.power_tables import builder, samples
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "thermal-straggler"


def rank(number: int, arrival: float, kernels: int) -> TraceBuilder:
    """Ten steps of 10 ms: compute until ``arrival``, then an all-reduce to the step's end."""
    one = builder(number, 3)
    for step in range(10):
        at = 10_000.0 * step
        one.step(step, at, 9_999)
        for place in range(kernels):
            length = arrival / kernels
            one.kernel("gemm", at + place * length, length, launch=at + 1 + place)
        begin = at + arrival
        one.collective(
            "allreduce", begin, at + 10_000 - begin, launch=at + 50, group_size=3, elements=1 << 20
        )
    return one


def job(
    clock: float = 1900, heat: float = 75, arrival: float = 9_000, kernels: int = 4, sensed: int = 3
) -> Trace:
    """Ranks 0 and 1 run at 2000 MHz and 60 and 62 C; rank 2 as told."""
    trace = trace_of(rank(0, 5_000, 4), rank(1, 5_000, 4), rank(2, arrival, kernels))
    ms = np.arange(0, 100, 10)
    tables = [
        samples(
            ms=ms,
            sm_clock_mhz=np.full(10, (2000, 2000, clock)[number], float),
            temperature_c=np.full(10, (60, 62, heat)[number], float),
            power_instant_w=500.0 + 10 * (ms // 20) + number,
        )
        for number in range(sensed)
    ]
    columns = {
        name: np.concatenate([table[name] for table in tables]) for name in tables[0].columns
    }
    columns["source"] = np.repeat(np.arange(sensed), 10).astype(columns["source"].dtype)
    return replace(trace, samples=Table(SAMPLES, columns, Strings()))


def test_fires_for_the_hot_rank_that_is_last():
    finding = found(job(), RULE)
    assert finding.where.ranks == (2,)
    evidence = values(finding)
    assert evidence["clock_gap_pct"] == pytest.approx(5)
    assert (evidence["clock_mhz"], evidence["others_clock_mhz"]) == (1900, 2000)
    assert (evidence["temperature_c"], evidence["others_temperature_c"]) == (75, 61)
    assert evidence["last_pct"] == 100
    # 9 ms of compute a step, 5 % slower.
    assert finding.cost.per_step_ns == pytest.approx(0.45e6)
    assert "14 degrees hotter" in finding.sentence


def test_silent_where_the_clock_is_the_same():
    assert is_clean(job(clock=1980), RULE)


def test_silent_where_it_is_not_hotter():
    assert is_clean(job(heat=62), RULE)


def test_silent_where_another_rank_is_late():
    assert is_clean(job(arrival=4_000), RULE)


def test_silent_where_it_has_more_work():
    assert is_clean(job(kernels=5), RULE)


def test_is_not_judged_with_telemetry_of_one_gpu():
    _, checked = judged(job(sensed=1), RULE)
    assert [one.because for one in checked.not_checked] == [
        "clock and temperature of fewer than two GPUs were recorded"
    ]
