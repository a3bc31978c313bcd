"""Hiding communication costs about as much as it saves."""

from __future__ import annotations

from tests.unit.rules.judging import found, is_clean, judged, trace_of, values
from tests.unit.rules.test_compute_slowed_by_overlap import job

RULE = "overlap-net-negative"


def test_fires_where_contention_eats_the_gain():
    # 4 GEMMs of 400 us, 100 us alone, beside 400 us of all-reduce: 1200 of 1600 us.
    finding = found(trace_of(job(400)), RULE)
    evidence = values(finding)
    assert round(evidence["hidden_ns"]) == 1_600_000
    assert round(evidence["contention_ns"]) == 1_200_000
    assert round(evidence["eaten_ratio"], 9) == 0.75
    assert finding.cost is None
    assert "still saves more" in finding.gain.reason


def test_silent_where_overlap_pays():
    # 4 * 50 us lost of 4 * 150 us hidden: a third.
    assert is_clean(trace_of(job(150)), RULE)


def test_silent_just_below_its_ratio():
    # 4 * 200 us lost of 4 * 300 us hidden: 0.667.
    assert is_clean(trace_of(job(300)), RULE)


def test_nothing_is_claimed_without_twins():
    findings, _ = judged(trace_of(job(400, num_alone=0)), RULE)
    assert findings == ()
