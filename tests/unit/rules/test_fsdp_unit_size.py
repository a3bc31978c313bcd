"""Units of FSDP compute too little to hide the next unit's all-gather."""

from __future__ import annotations

from tests.unit.rules.fsdp_job import job
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "fsdp-unit-size"


def test_fires_where_transfers_are_longer_than_the_compute_before_them():
    evidence = values(found(trace_of(job(gather=80, forward=30)), RULE))
    assert evidence["of_units_pct"] == 100
    assert evidence["transfer_ns"] == 80_000
    assert evidence["compute_ns"] == 30_000
    # Units b and c: 50 us each, of a step of 2000.
    assert evidence["beyond_ns"] == 100_000
    assert evidence["beyond_pct"] == 5


def test_silent_where_compute_is_longer():
    assert is_clean(trace_of(job(gather=50, forward=100)), RULE)


def test_silent_where_it_costs_little():
    assert is_clean(trace_of(job(gather=35, forward=30)), RULE)  # 10 us of 2000
