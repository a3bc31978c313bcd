"""AMD GPUs connected over PCIe do not reach each other directly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.trace import Trace
from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "amd-p2p-pcie"
OVER_PCIE = {"num_gpus": 4, "num_xgmi": 0, "num_pcie": 0}


def job(
    links: dict[str, int] | None = OVER_PCIE, exposed: float = 20, ranks: int = 4, **env: str
) -> Trace:
    """Three steps of 100 us: compute, then an all-reduce beside nothing."""
    builder = TraceBuilder(rank=0, world_size=4)
    for step in range(3):
        at = 100.0 * step
        builder.step(step, at, 100)
        builder.kernel("gemm", at + 1, 99 - exposed, launch=at)
        builder.collective("allreduce", at + 100 - exposed, exposed, launch=at + 1)
    trace = trace_of(builder, env=env, gpu={"name": "AMD Radeon PRO W7900"})
    noted = {
        **trace.sources[0].environment,
        "placement": {"amd_links": links, "ranks_per_node": ranks},
    }
    return replace(trace, sources=(replace(trace.sources[0], environment=noted),))


def test_fires_without_a_direct_path():
    finding = found(job(), RULE)
    evidence = values(finding)
    assert (evidence["num_gpus"], evidence["num_xgmi"], evidence["num_pcie"]) == (4, 0, 0)
    assert evidence["exposed_ns"] == 20_000
    assert evidence["exposed_pct"] == pytest.approx(20)
    assert finding.advice[0].code == "HSA_FORCE_FINE_GRAIN_PCIE=1"


def test_silent_where_it_is_asked_for():
    assert is_clean(job(HSA_FORCE_FINE_GRAIN_PCIE="1"), RULE)


def test_silent_where_communication_is_short():
    assert is_clean(job(exposed=2), RULE)


@pytest.mark.parametrize(
    "links",
    [
        {"num_gpus": 8, "num_xgmi": 56, "num_pcie": 0},
        {"num_gpus": 1, "num_xgmi": 0, "num_pcie": 0},
    ],
)
def test_does_not_apply_to_xgmi_or_one_gpu(links):
    findings, checked = judged(job(links), RULE)
    assert not findings
    assert len(checked.not_applicable) == 1


def test_does_not_apply_to_one_rank_a_host():
    findings, checked = judged(job(ranks=1), RULE)
    assert not findings
    assert len(checked.not_applicable) == 1


@pytest.mark.parametrize("links", [None, {"num_gpus": 4}])
def test_is_not_judged_without_the_topology(links):
    findings, checked = judged(job(links), RULE)
    assert not findings
    assert checked.not_checked[0].because == "how the GPUs are connected was not noted"
