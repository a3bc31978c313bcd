"""The sampling thread, on simulated and replayed GPUs."""

from __future__ import annotations

import threading
import time

import pytest

from diagnose.errors import OutputError, UsageError
from diagnose.readers import telemetry_csv
from diagnose.telemetry import Sampler, open_source
from diagnose.telemetry.nvml import NvmlSource
from tests.unit.telemetry.simulated_nvml import SimulatedNvml, hopper, mig_parent


def rows_of(path):
    samples, notes = telemetry_csv.read(str(path))
    assert notes == []
    assert samples is not None
    return samples


@pytest.fixture
def source():
    nvml = SimulatedNvml([hopper(0), hopper(1), mig_parent(2)])
    return NvmlSource(nvml)


def wait_for(condition, seconds=10):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.005)


def test_files_appear_whole_and_rows_have_the_time_of_reading(source, tmp_path):
    path = tmp_path / "rank00000.telemetry.csv"
    before_ns = time.time_ns()
    with Sampler(source, {0: path}) as sampler:
        wait_for(lambda: sampler.num_readings >= 5)
        assert not path.exists()
        assert path.with_name(path.name + ".part").exists()
    after_ns = time.time_ns()
    result = sampler.stop()
    assert result.files == (path,)
    assert result.notes == ()
    assert [item.name for item in tmp_path.iterdir()] == [path.name]
    samples = rows_of(path)
    times = samples["unix_ns"].tolist()
    assert len(times) == result.num_readings >= 6
    assert before_ns <= times[0]
    assert times == sorted(set(times))
    assert times[-1] <= after_ns
    assert set(samples["power_instant_w"].tolist()) == {612.5}


def test_first_and_last_row_have_what_changes_slowly(source, tmp_path):
    path = tmp_path / "a.telemetry.csv"
    with Sampler(source, {0: path}) as sampler:
        wait_for(lambda: sampler.num_readings >= 4)
    limits = rows_of(path)["power_limit_w"]
    assert limits[0] == limits[-1] == 700.0
    assert sum(limit == 700.0 for limit in limits.tolist()) < len(limits)


def test_ranks_that_share_a_gpu_share_one_sampling(source, tmp_path):
    first, second, other = (tmp_path / f"rank0000{n}.telemetry.csv" for n in range(3))
    with Sampler(source, {0: [first, second], hopper(1).uuid: other}) as sampler:
        sampler.ready.wait(10)
    assert set(sampler.stop().files) == {first, second, other}
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes() != other.read_bytes()


def test_a_gpu_named_twice_is_sampled_once(source, tmp_path):
    by_index, by_uuid = tmp_path / "a.telemetry.csv", tmp_path / "b.telemetry.csv"
    with Sampler(source, {1: by_index, hopper(1).uuid: by_uuid}) as sampler:
        sampler.ready.wait(10)
    assert by_index.read_bytes() == by_uuid.read_bytes()


def test_a_mig_instance_is_sampled_through_its_gpu(source, tmp_path):
    path = tmp_path / "a.telemetry.csv"
    with Sampler(source, {"MIG-66666666-eeee-0000-0000-000000000006": path}) as sampler:
        sampler.ready.wait(10)
    assert rows_of(path)["power_avg_w"][0] == 401.25


@pytest.mark.parametrize("target", [3, -1, "GPU-nobody", ""])
def test_a_gpu_that_does_not_exist(source, tmp_path, target):
    with pytest.raises(UsageError) as caught:
        Sampler(source, {target: tmp_path / "a.telemetry.csv"})
    assert hopper(1).uuid in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_made_leaves_no_other(source, tmp_path):
    (tmp_path / "taken.telemetry.csv").write_text("mine")
    targets = {0: tmp_path / "a.telemetry.csv", 1: tmp_path / "taken.telemetry.csv"}
    sampler = Sampler(source, targets)
    with pytest.raises(OutputError):
        sampler.start()
    assert [item.name for item in tmp_path.iterdir()] == ["taken.telemetry.csv"]
    assert sampler.stop().files == ()


def test_a_gpu_that_gives_nothing_has_no_file_but_a_note(tmp_path):
    source = NvmlSource(SimulatedNvml([hopper(no_handle=True)]))
    with Sampler(source, {0: tmp_path / "a.telemetry.csv"}) as sampler:
        sampler.ready.wait(10)
    result = sampler.stop()
    assert result.files == ()
    assert "a.telemetry.csv: this GPU gave no reading, so there is no file" in result.notes
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_is_lost_midway_keeps_its_rows(tmp_path):
    nvml = SimulatedNvml([hopper()])
    path = tmp_path / "a.telemetry.csv"
    with Sampler(NvmlSource(nvml), {0: path}) as sampler:
        wait_for(lambda: sampler.num_readings >= 2)
        nvml.gpus[0].gone_at_s = 0
        seen = sampler.num_readings
        wait_for(lambda: sampler.num_readings >= seen + 5)
    result = sampler.stop()
    assert result.files == (path,)
    assert "GPU 0: nothing of it is answered any more" in result.notes
    assert 2 <= len(rows_of(path)["unix_ns"]) < result.num_readings


def test_a_defect_ends_the_sampling_not_the_recording(source, tmp_path, monkeypatch):
    path = tmp_path / "a.telemetry.csv"
    monkeypatch.setattr(source, "pending", lambda index, everything=False: 1 / 0)
    with Sampler(source, {0: path}) as sampler:
        sampler.ready.wait(10)
    [note] = [note for note in sampler.stop().notes if "ended early" in note]
    assert "ZeroDivisionError" in note


def test_a_driver_that_hangs_holds_nobody_up(source, tmp_path, monkeypatch):
    path, hang = tmp_path / "a.telemetry.csv", threading.Event()
    readings = []

    def hanging(index, everything=False):
        readings.append(index)
        if len(readings) > 2:
            hang.wait(30)
        return {"power_avg_w": 1.5}

    monkeypatch.setattr(source, "sample", hanging)
    monkeypatch.setattr("diagnose.telemetry.sampler._STOP_PATIENCE_S", 0.2)
    sampler = Sampler(source, {0: path})
    sampler.start()
    wait_for(lambda: len(readings) > 2)
    began = time.monotonic()
    result = sampler.stop()
    assert time.monotonic() - began < 5
    assert len(rows_of(path)["unix_ns"]) == 2
    assert any("has not answered" in note for note in result.notes)
    hang.set()


def test_costs_are_reported_and_the_thread_is_gone(source, tmp_path):
    with Sampler(source, {0: tmp_path / "a.telemetry.csv"}, interval_s=0.01) as sampler:
        wait_for(lambda: sampler.num_readings >= 6)
    result = sampler.stop()
    assert result.median_interval_s is not None
    assert result.median_interval_s >= 0.01
    assert result.median_cost_s is not None
    assert 0 < result.median_cost_s <= result.median_interval_s
    assert 0 < result.processor_s < 5
    assert not [t for t in threading.enumerate() if t.name == "diagnose-telemetry"]
    with pytest.raises(RuntimeError):
        sampler.start()


def test_shipped_readings_come_back_from_a_replay(recordings, tmp_path):
    recorded = recordings / "healthy" / "rank00000.telemetry.csv"
    source = open_source("replay", paths=[recorded], speed=None)
    path = tmp_path / "rank00000.telemetry.csv"
    whole = rows_of(recorded)
    with Sampler(source, {0: path}, interval_s=0.001) as sampler:
        wait_for(lambda: sampler.num_readings > len(whole["unix_ns"]))
    again = rows_of(path)
    for column in ("power_instant_w", "energy_j", "sm_clock_mhz", "clocks_event_reasons"):
        assert again[column].tolist() == whole[column].tolist()
    assert any("older recording" in note for note in sampler.stop().notes)
