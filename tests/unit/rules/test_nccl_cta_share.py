"""Communication occupies many multiprocessors, or too few."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.trace import Trace
from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "nccl-cta-share"


def job(beside_us: float, blocks: int) -> TraceBuilder:
    """Four GEMMs of 100 us alone, four beside an all-reduce of ``blocks`` blocks."""
    builder, at = TraceBuilder(rank=0, world_size=2), 1000.0
    builder.top["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200", "numSms": 132}]
    for number in range(8):
        length = beside_us if number >= 4 else 100
        shape = {"grid": [132, 1, 1], "block": [128, 1, 1]}
        builder.kernel("gemm", at, length, launch=number * 3, **shape)
        if number >= 4:
            shape = {"grid": [blocks, 1, 1], "block": [512, 1, 1]}
            builder.collective("allreduce", at, length, launch=number * 3 + 0.5, **shape)
        at += length
    return builder


def test_fires_for_many_blocks_that_slow_compute():
    finding = found(trace_of(job(150, 33)), RULE)
    evidence = values(finding)
    assert evidence["num_blocks"] == 33
    assert evidence["num_multiprocessors"] == 132
    assert evidence["multiprocessors_pct"] == 25
    assert evidence["slowdown_ratio"] == pytest.approx(1.5)
    assert finding.advice[0].code == "NCCL_MAX_CTAS=16"


def test_silent_for_few_blocks():
    # 13 of 132: 9.8 %.
    assert is_clean(trace_of(job(150, 13)), RULE)


def test_silent_where_nothing_is_slower():
    assert is_clean(trace_of(job(104, 33)), RULE)


def few(blocks: int, *, duration: float = 1000, link: float | None = 300, **env: str) -> Trace:
    """Three steps of a GEMM of 1 ms and an all-reduce of 64 MiB alone, on two ranks.

    The bus bandwidth of two ranks is the size over the duration: 67.1 GB/s for 1000 us.
    """
    builders = []
    for rank in range(2):
        builder, at = TraceBuilder(rank=rank, world_size=2), 1000.0
        for step in range(4):
            builder.step(step, at - 900, 1000 + duration)
            builder.kernel("gemm", at, 1000, launch=at - 800)
            shape = {"grid": [blocks, 1, 1], "block": [512, 1, 1]}
            builder.collective(
                "allreduce", at + 1000, duration, elements=1 << 25, launch=at - 700, **shape
            )
            at += 1000 + duration
        builders.append(builder)
    trace = trace_of(*builders, env=env)
    if link is None:
        return trace
    linked = [
        replace(s, environment={**s.environment, "link_gb_per_s": link}) for s in trace.sources
    ]
    return replace(trace, sources=tuple(linked))


def test_fires_for_few_blocks_that_do_not_fill_the_link():
    finding = found(few(1, NCCL_MAX_CTAS="1"), RULE)
    evidence = values(finding)
    assert evidence["num_blocks"] == 1
    assert evidence["busbw_gb_per_s"] == pytest.approx(67.108864)
    assert evidence["of_reference_pct"] == pytest.approx(100 * 67.108864 / 300)
    assert evidence["exposed_ns"] == 1_000_000
    assert evidence["exposed_pct"] == pytest.approx(50)
    assert finding.cost.per_step_ns == pytest.approx(1e6 * (1 - 67.108864 / 300))
    assert [fix.code for fix in finding.advice] == ["unset NCCL_MAX_CTAS", "NCCL_MIN_CTAS=4"]


@pytest.mark.parametrize(
    ("blocks", "link"),
    # Five blocks; and 67.1 GB/s of 100 that the link has, 67 %.
    [(5, 300), (4, 100)],
)
def test_silent_for_more_blocks_and_for_a_fast_link(blocks, link):
    findings, _ = judged(few(blocks, link=link), RULE)
    assert not findings


def test_fires_by_nccl_tests_too():
    assert not judged(few(4, link=None), RULE, measured_gb_per_s=110.0)[0]
    evidence = values(found(few(4, link=None), RULE, measured_gb_per_s=120.0))
    assert evidence["of_reference_pct"] == pytest.approx(100 * 67.108864 / 120)


def test_is_not_judged_where_nothing_says_what_the_links_can_do():
    findings, checked = judged(few(2, link=None), RULE)
    assert not findings
    assert checked.not_checked[0].because.startswith("large collectives run in few blocks, and ")
