"""Traffic between GPUs is kept from its direct path."""

from __future__ import annotations

import pytest

from tests.unit.rules.judging import found, is_clean, judged, trace_of, values
from tests.unit.rules.test_slow_network import ranks

RULE = "transport-fallback"


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_P2P_DISABLE", "1"), ("NCCL_IB_DISABLE", "1"), ("NCCL_P2P_LEVEL", "LOC")],
)
def test_fires_where_a_transport_is_forbidden_and_the_network_slow(name, value):
    finding = found(trace_of(*ranks(), env={name: value}), RULE, measured_gb_per_s=100.0)
    assert finding.sentence.startswith(f"{name}={value} is set on ranks 0-1: ")
    # 33.55 GB/s of 100: see test_slow_network.
    assert values(finding)["of_reference_pct"] == pytest.approx(33.554432)
    assert finding.gain.changes == ("faster-collectives:bus_gb_per_s=100,kind=all_reduce",)


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_P2P_DISABLE", "0"), ("NCCL_P2P_LEVEL", "SYS"), ("NCCL_ALGO", "Ring")],
)
def test_silent_where_nothing_is_forbidden(name, value):
    assert is_clean(trace_of(*ranks(), env={name: value}), RULE, measured_gb_per_s=100.0)


def test_silent_where_the_network_is_fast_all_the_same():
    trace = trace_of(*ranks(), env={"NCCL_P2P_DISABLE": "1"})
    assert is_clean(trace, RULE, measured_gb_per_s=50.0)


def test_is_not_judged_where_nothing_says_what_the_links_can_do():
    _, checked = judged(trace_of(*ranks(), env={"NCCL_SHM_DISABLE": "1"}), RULE)
    assert [one.because for one in checked.not_checked] == [
        "NCCL_SHM_DISABLE set, but what the links reach alone is not known"
    ]
