"""A GPU's PCIe link runs below its class."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "pcie-link-degraded"


def trace(generation: int, width: int, copy_us: int = 1000, num_bytes: int = 32_000_000):
    """One copy from pinned memory; the link could be 16 lanes of generation 5: 63.0 GB/s."""
    builder = TraceBuilder(rank=0, world_size=1)
    builder.copy("HtoD", 0, copy_us, launch=0, bytes=num_bytes)
    builder.kernel("gemm", copy_us, 100, launch=3)
    pcie = {"generation": generation, "width": width, "max_generation": 5, "max_width": 16}
    return trace_of(builder, gpu={"pcie": pcie})


def test_fires_for_missing_lanes():
    finding = found(trace(5, 8), RULE)
    assert "8 of 16 lanes" in finding.sentence
    assert values(finding)["copy_gb_per_s"] == 32
    # Half of the 1000 us that the copy takes.
    assert finding.cost.per_step_ns == 500_000


def test_fires_for_a_low_generation_only_where_copies_are_slow():
    evidence = values(found(trace(3, 16, copy_us=2000), RULE))
    # 16 GB/s of 63.008.
    assert round(evidence["of_link_pct"], 2) == 25.39


def test_silent_for_a_full_link_and_an_idle_one():
    assert is_clean(trace(5, 16), RULE)
    assert is_clean(trace(1, 16, copy_us=640), RULE)  # 50 GB/s: it woke up
    assert is_clean(trace(1, 16, num_bytes=1_000_000), RULE)  # too small to tell


def test_is_not_judged_where_no_link_was_noted():
    builder = TraceBuilder(rank=0, world_size=1).kernel("gemm", 0, 10, launch=0)
    _, checked = judged(trace_of(builder, gpu={"name": "NVIDIA H200"}), RULE)
    assert [one.because for one in checked.not_checked] == ["the PCIe link of no GPU was noted"]
