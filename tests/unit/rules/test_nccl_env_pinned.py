"""NCCL's own choices were overruled by variables."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values
from tests.unit.rules.test_slow_network import ranks

RULE = "nccl-env-pinned"
PINNED = {"NCCL_ALGO": "Tree"}


def test_fires_where_a_choice_is_pinned_and_the_network_slow():
    finding = found(trace_of(*ranks(), env=PINNED), RULE, measured_gb_per_s=100.0)
    evidence = values(finding)
    assert (evidence["variable"], evidence["value"]) == ("NCCL_ALGO", "Tree")
    # 33.55 GB/s of 100: see test_slow_network.
    assert evidence["of_reference_pct"] == pytest.approx(33.554432)
    assert finding.severity == "info"
    assert finding.advice[0].code == "unset NCCL_ALGO"
    assert finding.key == "nccl-env-pinned@NCCL_ALGO"


def test_fires_with_other_values_to_try_and_the_reference_it_was_held_against():
    finding = found(trace_of(*ranks(), env={"NCCL_MAX_CTAS": "1"}), RULE, measured_gb_per_s=100.0)
    tried = "NCCL_MAX_CTAS=1,4,8,16,32"
    assert finding.advice[1].code == f"diagnose run --try {tried} -- CMD"
    assert "of 100.0 GB/s (measured_gb_per_s of the configuration)" in finding.sentence
    # A list of algorithms is no single value that --try could take.
    listed = trace_of(*ranks(), env={"NCCL_ALGO": "^NVLS,Tree"})
    advice = found(listed, RULE, measured_gb_per_s=100.0).advice
    assert "NCCL_ALGO=Ring,Tree --" in advice[1].code


def test_fires_where_collectives_hold_many_multiprocessors():
    builders = ranks()
    for builder in builders:
        for event in builder.events:
            if event["cat"] == "kernel" and event["name"].startswith("nccl"):
                event["args"] |= {"grid": [32, 1, 1], "block": [512, 1, 1]}
            elif event["cat"] == "kernel":
                event["args"] |= {"grid": [64, 1, 1], "block": [128, 1, 1]}
        builder.top["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200", "numSms": 128}]
        for step in range(3):
            builder.kernel(
                "gemm",
                step * 2000 + 700,
                500,
                launch=step * 2000 + 7,
                grid=[64, 1, 1],
                block=[128, 1, 1],
            )
    trace = trace_of(*builders, env={"NCCL_MIN_CTAS": "32"}, gpu={"sm_count": 128})
    # 32 blocks on 128 multiprocessors.
    assert values(found(trace, RULE))["multiprocessors_pct"] == 25


def on_blocks(number: int) -> list[TraceBuilder]:
    """As ``ranks``: 1000 us of each step of 2000 are exposed, on so many blocks."""
    builders = ranks()
    for builder in builders:
        for event in builder.events:
            if event["cat"] == "kernel" and event["name"].startswith("nccl"):
                event["args"] |= {"grid": [number, 1, 1], "block": [512, 1, 1]}
    return builders


def test_fires_where_collectives_are_kept_to_few_blocks_whatever_the_links_can_do():
    trace = trace_of(*on_blocks(2), env={"NCCL_MAX_CTAS": "2", "NCCL_ALGO": "Tree"})
    finding = found(trace, RULE)
    evidence = values(finding)
    assert (evidence["variable"], evidence["num_blocks"]) == ("NCCL_MAX_CTAS", 2)
    assert evidence["exposed_ns"] == 1_000_000
    assert (finding.gain.basis, finding.gain.high_ns) == ("upper bound", 1_000_000)


def test_silent_where_the_limit_is_wide_or_does_not_bind():
    for blocks, allowed in ((16, "16"), (2, "4")):
        trace = trace_of(*on_blocks(blocks), env={"NCCL_MAX_CTAS": allowed})
        assert judged(trace, RULE)[0] == ()


def test_silent_where_nothing_is_pinned_or_nothing_suffers():
    assert is_clean(trace_of(*ranks(), env={}), RULE, measured_gb_per_s=100.0)
    assert is_clean(trace_of(*ranks(), env=PINNED), RULE, measured_gb_per_s=50.0)


def test_is_not_judged_where_nothing_says_what_the_links_can_do():
    _, checked = judged(trace_of(*ranks(), env=PINNED), RULE)
    assert [one.because for one in checked.not_checked] == [
        "NCCL_ALGO set, but what the links reach alone is not known"
    ]
