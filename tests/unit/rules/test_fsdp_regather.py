"""FSDP frees parameters and gathers them again at once."""

from __future__ import annotations

from tests.unit.rules.fsdp_job import job
from tests.unit.rules.judging import found, is_clean, trace_of, values
from tests.unit.rules.telemetry import with_samples

RULE = "fsdp-regather"


def test_fires_for_the_last_unit_of_the_forward_pass():
    finding = found(trace_of(job()), RULE)
    evidence = values(finding)
    # Unit c, 50 us of a step of 2000.
    assert evidence["repeated_ns"] == 50_000
    assert evidence["repeated_pct"] == 2.5
    assert evidence["keep_bytes"] == 4 * 2**20
    assert "unit c" in finding.sentence
    assert finding.key == "fsdp-regather@last unit"


def test_fires_for_all_units_where_memory_was_free():
    trace = trace_of(job(regather_last=False), gpu={"memory_bytes": 100 * 2**20})
    # Three units of 4 MiB; of these b and a are gathered again.
    evidence = values(found(with_samples(trace, mem_used_bytes=[80 * 2**20]), RULE))
    assert evidence["repeated_ns"] == 100_000
    assert evidence["keep_bytes"] == 12 * 2**20


def test_silent_where_memory_is_short():
    trace = trace_of(job(regather_last=False), gpu={"memory_bytes": 100 * 2**20})
    assert is_clean(with_samples(trace, mem_used_bytes=[90 * 2**20]), RULE)


def test_silent_where_the_last_unit_keeps_its_parameters_or_costs_little():
    assert is_clean(trace_of(job(regather_last=False)), RULE)
    assert is_clean(trace_of(job(gather=15)), RULE)  # 15 us of 2000
