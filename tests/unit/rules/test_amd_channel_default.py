"""RCCL's default number of channels on MI350X may not suit the job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.trace import Trace
from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "amd-channel-default"
MI350X = "AMD Instinct MI350X"
FEW, MANY = "2.13.0+rocm7.14", "2.14.0+rocm10.0"


def exposing(exposed: float = 20) -> TraceBuilder:
    """Three steps of 100 us: compute, then an all-reduce beside nothing."""
    builder = TraceBuilder(rank=0, world_size=16)
    for step in range(3):
        at = 100.0 * step
        builder.step(step, at, 100)
        builder.kernel("gemm", at + 1, 99 - exposed, launch=at)
        builder.collective("allreduce", at + 100 - exposed, exposed, launch=at + 1)
    return builder


def slowing(beside: float) -> TraceBuilder:
    """Four GEMMs of 100 us alone, four beside an all-reduce."""
    builder, at = TraceBuilder(rank=0, world_size=16), 1000.0
    for number in range(8):
        length = beside if number >= 4 else 100
        shape = {"grid": [256, 1, 1], "block": [256, 1, 1]}
        builder.kernel("gemm", at, length, launch=number * 3, **shape)
        if number >= 4:
            builder.collective("allreduce", at, length, launch=number * 3 + 0.5)
        at += length
    return builder


def job(builder: TraceBuilder, torch: str, name: str = MI350X, **env: str) -> Trace:
    trace = trace_of(builder, env={"LOCAL_WORLD_SIZE": "8", **env}, gpu={"name": name})
    noted = {**trace.sources[0].environment, "torch": torch}
    return replace(trace, sources=(replace(trace.sources[0], environment=noted),))


def test_fires_for_48_channels_where_communication_is_exposed():
    finding = found(job(exposing(), FEW), RULE)
    evidence = values(finding)
    assert (evidence["num_channels"], evidence["exposed_ns"]) == (48, 20_000)
    assert evidence["exposed_pct"] == pytest.approx(20)
    assert finding.advice[0].code == "NCCL_MIN_NCHANNELS=64"


def test_fires_for_64_channels_where_compute_is_slower():
    finding = found(job(slowing(120), MANY), RULE)
    evidence = values(finding)
    assert evidence["num_channels"] == 64
    assert evidence["slowdown_ratio"] == pytest.approx(1.2)
    assert finding.advice[0].code == "NCCL_MAX_NCHANNELS=48"


def test_silent_where_the_default_does_no_harm():
    assert is_clean(job(exposing(2), FEW), RULE)
    assert is_clean(job(exposing(), MANY), RULE)
    assert is_clean(job(slowing(104), MANY), RULE)


@pytest.mark.parametrize(
    ("torch", "name", "env"),
    [
        ("2.12.0+rocm7.13", MI350X, {}),
        ("2.13.0", MI350X, {}),
        (FEW, "AMD Instinct MI300X", {}),
        (FEW, MI350X, {"LOCAL_WORLD_SIZE": "16"}),
        (FEW, MI350X, {"NCCL_MIN_NCHANNELS": "64"}),
        (FEW, MI350X, {"NCCL_MAX_CTAS": "32"}),
    ],
)
def test_does_not_apply_elsewhere(torch, name, env):
    findings, checked = judged(job(exposing(), torch, name, **env), RULE)
    assert not findings
    assert len(checked.not_applicable) == 1


def test_is_not_judged_where_the_size_of_a_node_is_unknown():
    findings, checked = judged(job(exposing(), FEW, LOCAL_WORLD_SIZE=""), RULE)
    assert not findings
    assert "LOCAL_WORLD_SIZE" in checked.not_checked[0].remedy
