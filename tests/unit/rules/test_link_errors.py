"""Links or memory of a GPU report errors."""

from __future__ import annotations

from math import nan

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values
from tests.unit.rules.telemetry import with_samples

RULE = "link-errors"


def job():
    return trace_of(TraceBuilder(rank=0, world_size=1).kernel("gemm", 0, 10, launch=0))


def test_fires_where_a_counter_grew():
    finding = found(with_samples(job(), nvlink_crc_errors=[100, nan, 112]), RULE)
    assert values(finding)["num_errors"] == 12
    assert "12 damaged packets on NVLink" in finding.sentence
    assert finding.severity == "info"
    assert finding.key == "link-errors@nvlink_crc_errors"


def test_fires_for_a_reported_xid():
    finding = found(with_samples(job(), xid_error=[nan, 79.0]), RULE)
    assert "XID 79 (the GPU fell off the bus)" in finding.sentence


def test_silent_for_what_happened_before_the_recording():
    samples = with_samples(job(), ecc_volatile_uncorrected=[3, 3], nvlink_crc_errors=[9, 9])
    assert is_clean(samples, RULE)


def test_is_not_judged_without_telemetry():
    _, checked = judged(job(), RULE)
    assert [one.because for one in checked.not_checked] == ["no telemetry"]
