"""Class powers of a real H200 against what its sensor read in phases of 0.8 s.

17 steps of compute, communication, both and nothing (70 s; two ranks under MPS on halves of
the GPU), recorded by ``benchmarks/gpu/jobs/power_phases.py`` and made small by
``benchmarks/gpu/slim_phases.py``. What was read needs no class and no trace: it is the mean of
the sensor's values between two times that the job wrote down.
"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from benchmarks.gpu import power_table
from diagnose.analyzers.power.doing import Doing

DATA = Path(__file__).parent / "test_power_data" / "phases"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, power_table.Row]:
    folder = tmp_path_factory.mktemp("phases") / "recording"
    shutil.copytree(DATA, folder)
    packed = folder / "rank00000.telemetry.csv.gz"
    (folder / "rank00000.telemetry.csv").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    return {row.phase: row for row in power_table.rows(folder)}


@pytest.mark.parametrize("phase", ["compute", "communication"])
def test_the_estimate_is_what_the_sensor_read(rows: dict[str, power_table.Row], phase: str) -> None:
    row = rows[phase]
    assert row.read.num_phases >= 16
    assert row.read.in_class_pct > 99
    value, low, high = row.estimated
    assert value == pytest.approx(row.read.mean, rel=0.01)
    # The two intervals meet: neither is a point, and the sensor's calibration is the same.
    assert low <= row.read.high
    assert high >= row.read.low


def test_idle_includes_the_moments_after_work_which_the_reading_leaves_out(
    rows: dict[str, power_table.Row],
) -> None:
    row = rows["idle"]
    assert row.read.num_phases >= 16
    assert row.read.mean <= row.estimated[0] <= 1.03 * row.read.mean


def test_phases_that_are_mostly_of_another_class_are_shown_to_be(
    rows: dict[str, power_table.Row],
) -> None:
    """Two ranks under MPS finish their communication long before their compute."""
    overlap = rows["overlap"]
    assert power_table.CLASSES["overlap"] == Doing.OVERLAPPED
    assert overlap.read.in_class_pct < 20
