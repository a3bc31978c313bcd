"""Playing recorded readings, at their own pace or as fast as asked."""

from __future__ import annotations

import pytest

from diagnose.telemetry import TelemetryUnavailableError, open_source
from tests.unit.telemetry.simulated_nvml import Clock

TEXT = """\
unix_ns,power_avg_w,power_instant_w,energy_j,clocks_event_reasons
1000000000,100.5,,76281.286,4
1100000000,101.5,90.0,76291.0,4
1300000000,102.5,91.0,76301.0,0x44
1300000000,cut
"""


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "rank00003.telemetry.csv"
    path.write_text(TEXT)
    return path


def test_row_by_row(recorded):
    source = open_source("replay", paths=[recorded], speed=None)
    assert source.sample(0) == {
        "power_avg_w": 100.5,
        "energy_j": 76281.286,
        "clocks_event_reasons": 4,
    }
    assert source.sample(0)["power_instant_w"] == 90.0
    assert source.sample(0)["clocks_event_reasons"] == 0x44
    assert source.sample(0) == {}  # the fourth is cut off
    assert source.sample(1) == source.sample(-1) == {}


@pytest.mark.parametrize("speed", [1, 2])
def test_at_its_own_pace(recorded, speed):
    clock = Clock()
    source = open_source("replay", paths=[recorded], speed=speed, steady_s=clock.steady_s)
    assert source.sample(0)["power_avg_w"] == 100.5
    clock.pass_s(0.09 / speed)
    assert source.sample(0)["power_avg_w"] == 100.5
    clock.pass_s(0.011 / speed)
    assert source.sample(0)["power_avg_w"] == 101.5
    clock.pass_s(0.198 / speed)
    assert source.sample(0)["power_avg_w"] == 101.5
    clock.pass_s(0.002 / speed)
    assert source.sample(0) == {}  # past the last row


def test_identity(recorded):
    source = open_source("replay", paths=[recorded, recorded])
    assert [gpu.uuid for gpu in source.gpus()] == ["GPU-rank00003"] * 2
    assert [gpu.index for gpu in source.gpus()] == [0, 1]
    assert source.describe(0) == {"name": "replayed GPU"}
    assert source.describe(2) == {}
    assert source.pending(0) == source.processes(0) == source.mig_devices() == []
    source.close()


@pytest.mark.parametrize("text", ["", "unix_ns\n", "power_avg_w\n5\n", "\0\0\0"])
def test_nothing_to_play(tmp_path, text):
    path = tmp_path / "a.telemetry.csv"
    path.write_text(text)
    with pytest.raises(TelemetryUnavailableError, match="holds no reading"):
        open_source("replay", paths=[path])


def test_no_file(tmp_path):
    with pytest.raises(TelemetryUnavailableError, match="cannot be read"):
        open_source("replay", paths=[tmp_path / "a.telemetry.csv"])


@pytest.mark.parametrize("speed", [0, -1])
def test_impossible_speed(recorded, speed):
    with pytest.raises(ValueError, match="speed"):
        open_source("replay", paths=[recorded], speed=speed)
