"""Which GPU's readings go into which rank's file, and what is said where there are none."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from diagnose.attach.session import Member
from diagnose.collect import _sensors
from diagnose.collect._sensors import Sensors
from diagnose.manifest import RecordingNote
from diagnose.telemetry import GpuIdentity, TelemetryUnavailableError
from tests.unit.attach.fake_agent import OwnProcess

UUIDS = ("GPU-0a000000-0000-0000-0000-000000000000", "GPU-1b000000-0000-0000-0000-000000000000")


class TwoGpus:
    """A driver with two GPUs that draw 100 and 101 W, and one process on the second."""

    kind = "test"

    def __init__(self, computing: Mapping[int, list[int]] = {}) -> None:
        self.notes = ["GPU 1: no memory temperature"]
        self.closed = 0
        self.computing = computing

    def gpus(self) -> list[GpuIdentity]:
        return [GpuIdentity(n, uuid, f"00000000:0{n}:00.0") for n, uuid in enumerate(UUIDS)]

    def mig_devices(self) -> list[Any]:
        return []

    def prepare(self, index: int) -> None:
        """Nothing to prepare."""

    def sample(self, index: int, *, everything: bool = False) -> dict[str, float | None]:
        return {"power_avg_w": 100.0 + index}

    def pending(self, index: int, *, everything: bool = False) -> list[Any]:
        return []

    def describe(self, index: int) -> dict[str, Any]:
        return {"uuid": UUIDS[index], "driver": "580.1"}

    def processes(self, index: int) -> list[int]:
        return self.computing.get(index, [])

    def close(self) -> None:
        self.closed += 1


def member(tmp_path: Path, rank: int, **status: Any) -> Member:
    process = OwnProcess(tmp_path)
    return Member(object(), process.pid, rank=rank, process=process, status=status)  # type: ignore[arg-type]


def powers(path: Path) -> set[str]:
    with path.open(newline="") as file:
        return {row["power_avg_w"] for row in csv.DictReader(file)} - {""}


def test_each_rank_gets_the_readings_of_its_own_gpu(tmp_path: Path) -> None:
    source, notes = TwoGpus(), list[RecordingNote]()
    sensors = Sensors(open_sensors=lambda: source)
    ranks = [member(tmp_path, 0, gpu_uuid=UUIDS[1]), member(tmp_path, 1, gpu_uuid=UUIDS[0])]
    files = {m: tmp_path / f"rank{m.rank}.telemetry.csv" for m in ranks}
    sensors.start(files, notes)
    time.sleep(0.1)
    sensors.stop_after_refresh(notes, time.monotonic())
    sensors.stop(notes)
    assert powers(files[ranks[0]]) == {"101.0"}
    assert powers(files[ranks[1]]) == {"100.0"}
    assert sensors.uuid(ranks[0]) == UUIDS[1]
    assert sensors.describe(ranks[1])["driver"] == "580.1"
    sensors.close()
    sensors.close()
    assert source.closed == 1
    assert [note.sentence for note in notes] == ["GPU 1: no memory temperature"]


def test_two_ranks_on_one_gpu_share_its_readings(tmp_path: Path) -> None:
    sensors, notes = Sensors(open_sensors=TwoGpus), list[RecordingNote]()
    ranks = [member(tmp_path, rank, gpu_uuid=UUIDS[0]) for rank in range(2)]
    sensors.start({m: tmp_path / f"{m.rank}.telemetry.csv" for m in ranks}, notes)
    time.sleep(0.05)
    sensors.stop(notes)
    sensors.close()
    texts = [(tmp_path / f"{rank}.telemetry.csv").read_text() for rank in range(2)]
    assert texts[0] == texts[1]
    assert texts[0].count("\n") >= 2


def test_without_the_word_of_torch_the_driver_is_asked_who_computes_where(tmp_path: Path) -> None:
    source, notes = TwoGpus({1: [os.getpid()]}), list[RecordingNote]()
    sensors = Sensors(open_sensors=lambda: source)
    rank = member(tmp_path, 0, gpu_uuid=None, cuda_device=None)
    sensors.start({rank: tmp_path / "0.telemetry.csv"}, notes)
    sensors.stop(notes)
    assert sensors.uuid(rank) == UUIDS[1]
    sensors.close()


def test_a_gpu_that_is_not_known_is_not_guessed(tmp_path: Path) -> None:
    sensors, notes = Sensors(open_sensors=TwoGpus), list[RecordingNote]()
    rank = member(tmp_path, 3, gpu_uuid="GPU-ffffffff-0000-0000-0000-000000000000")
    sensors.start({rank: tmp_path / "3.telemetry.csv"}, notes)
    sensors.stop_after_refresh(notes, time.monotonic())
    sensors.close()
    assert list(tmp_path.glob("*.csv*")) == []
    [note] = notes
    assert (note.code, note.severity) == ("telemetry-missing", "info")
    assert note.sentence.startswith("no telemetry of rank 3: which GPU it uses is unknown, ")
    assert sensors.describe(rank) == {}


def test_no_driver_is_a_note(tmp_path: Path) -> None:
    def refuse() -> TwoGpus:
        raise TelemetryUnavailableError("no NVIDIA driver is installed here")

    notes: list[RecordingNote] = []
    sensors = Sensors(open_sensors=refuse)
    sensors.start({member(tmp_path, 0): tmp_path / "0.telemetry.csv"}, notes)
    sensors.stop_after_refresh(notes, time.monotonic())
    sensors.close()
    assert notes == [
        RecordingNote(
            "telemetry-missing", "info", "no telemetry: no NVIDIA driver is installed here"
        )
    ]


def test_a_file_that_cannot_be_made_is_a_note(tmp_path: Path) -> None:
    sensors, notes = Sensors(open_sensors=TwoGpus), list[RecordingNote]()
    rank = member(tmp_path, 0, gpu_uuid=UUIDS[0])
    sensors.start({rank: tmp_path / "no" / "0.telemetry.csv"}, notes)
    sensors.stop(notes)
    sensors.close()
    assert [note.code for note in notes] == ["telemetry-missing"]


@pytest.mark.parametrize(("ago_s", "left_s"), [(0.0, 0.4), (0.1, 0.3), (5.0, None)])
def test_readings_go_on_past_the_last_work_of_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ago_s: float, left_s: float | None
) -> None:
    """At least 300 ms of readings, of which the last may be 100 ms old; less what has passed."""
    slept: list[float] = []
    sensors, notes = Sensors(open_sensors=TwoGpus), list[RecordingNote]()
    sensors.start({member(tmp_path, 0, gpu_uuid=UUIDS[0]): tmp_path / "0.telemetry.csv"}, notes)
    monkeypatch.setattr(_sensors.time, "sleep", slept.append)
    monkeypatch.setattr(_sensors.time, "monotonic", lambda: 1000.0)
    sensors.stop_after_refresh(notes, 1000.0 - ago_s)
    monkeypatch.undo()
    sensors.close()
    assert slept == ([] if left_s is None else [pytest.approx(left_s)])
