"""Small collectives on MI200 pay for scratch memory that is given back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.trace import Trace
from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "amd-scratch-reclaim"
MI250 = "AMD Instinct MI250X"


def job(
    name: str = MI250, torch: str = "2.11.0+rocm7.13", elements: int = 1024, **env: str
) -> Trace:
    """Three steps of 100 us, each with two all-reduces of 10 us."""
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(3):
        at = 100.0 * step
        builder.step(step, at, 100)
        builder.collective("allreduce", at + 1, 10, elements=elements, launch=at)
        builder.collective("allreduce", at + 20, 10, elements=elements, launch=at + 1)
        builder.kernel("gemm", at + 30, 70, launch=at + 2)
    trace = trace_of(builder, env=env, gpu={"name": name})
    noted = {**trace.sources[0].environment, "torch": torch}
    return replace(trace, sources=(replace(trace.sources[0], environment=noted),))


def test_fires_for_small_collectives():
    evidence = values(found(job(), RULE))
    assert evidence["small_ns"] == 20_000
    assert evidence["small_pct"] == pytest.approx(20)


def test_silent_for_large_messages():
    assert is_clean(job(elements=8 * 2**20), RULE)


def test_silent_where_they_take_little_time():
    assert is_clean(job(), RULE, min_small_pct=21.0)


@pytest.mark.parametrize(
    "trace",
    [
        job(HSA_NO_SCRATCH_RECLAIM="1"),
        job(torch="2.11.0+rocm7.2"),
        job(torch="2.11.0"),
        job(name="AMD Instinct MI300X"),
    ],
    ids=["kept", "older", "unknown", "another model"],
)
def test_does_not_apply(trace):
    _, checked = judged(trace, RULE)
    assert len(checked.not_applicable) == 1
