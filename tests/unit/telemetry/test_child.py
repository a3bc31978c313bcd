"""``python -m diagnose.telemetry``: how it begins, and everything that ends it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from diagnose import telemetry
from diagnose.readers import telemetry_csv
from diagnose.telemetry import __main__ as child
from diagnose.telemetry.nvml import NvmlSource
from tests.unit.telemetry.simulated_nvml import SimulatedNvml, hopper

# The command with two simulated GPUs. Its input and output are those of the real one.
PROGRAM = """
import sys
from diagnose.telemetry.__main__ import main
from diagnose.telemetry.nvml import NvmlSource
from tests.unit.telemetry.simulated_nvml import SimulatedNvml, hopper
sys.exit(main(source=NvmlSource(SimulatedNvml([hopper(0), hopper(1)]))))
"""


@pytest.fixture
def started(root, tmp_path):
    """Starts the command; whatever is left of it is killed at the end."""
    running = []

    def start(*arguments, stdin=subprocess.PIPE):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "--output", str(tmp_path / "out"), *arguments],
            cwd=root,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process, json.loads(process.stdout.readline())

    yield start
    for process in running:
        process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        process.wait()


def finished(process):
    last = json.loads(process.stdout.readline())
    assert process.wait(20) == 0
    return last


def num_rows(path):
    samples, notes = telemetry_csv.read(str(path))
    assert notes == []
    return len(samples["unix_ns"])


def test_ends_when_its_input_closes(started, tmp_path):
    process, ready = started()
    assert ready["ready"] is True
    assert [gpu["uuid"] for gpu in ready["gpus"]] == [hopper(0).uuid, hopper(1).uuid]
    process.stdin.close()
    last = finished(process)
    assert sorted(last["files"]) == [
        str(tmp_path / "out" / f"{hopper(n).uuid}.telemetry.csv") for n in (0, 1)
    ]
    assert last["notes"] == []
    assert all(num_rows(path) >= 2 for path in last["files"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ends_at_a_signal_with_whole_files(started, number):
    """Without any input (/dev/null) it goes on until it is told to stop."""
    process, _ = started("--gpu", "1", stdin=subprocess.DEVNULL)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(number)
    [path] = finished(process)["files"]
    assert num_rows(path) >= 2


def test_names_for_ranks_that_share_a_gpu_and_seconds(started, tmp_path):
    uuid = hopper(1).uuid
    ranks = ["--gpu", uuid, uuid, "--name", "rank00000", "--name", "rank00001"]
    process, _ = started(*ranks, "--seconds", "0.2")
    last = finished(process)
    files = [tmp_path / "out" / f"rank0000{n}.telemetry.csv" for n in (0, 1)]
    assert last["files"] == [str(path) for path in files]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_killed_leaves_what_it_had(started, tmp_path):
    process, _ = started("--gpu", "0")
    process.kill()
    process.wait()
    [part] = (tmp_path / "out").iterdir()
    assert part.name == f"{hopper(0).uuid}.telemetry.csv.part"
    assert len(part.read_text().splitlines()) >= 2  # the names and the first row


def test_no_driver_is_a_sentence(monkeypatch, capsys, tmp_path):
    def none():
        raise telemetry.TelemetryUnavailableError("no NVIDIA driver", hint="fine")

    monkeypatch.setattr(telemetry, "open_source", none)
    assert child.main(["--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "error: no NVIDIA driver\nhint: fine\n"


def test_a_gpu_that_is_not_there(capsys, tmp_path):
    nvml = SimulatedNvml([hopper()])
    assert child.main(["--gpu", "7", "--output", str(tmp_path)], source=NvmlSource(nvml)) == 2
    assert "there is no GPU 7" in capsys.readouterr().err
    assert nvml.running == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--output", "x", "--seconds", "0"],
        ["--output", "x", "--seconds", "nan"],
        ["--output", "x", "--interval-ms", "-5"],
        ["--output", "x", "--name", "a"],
        [],
    ],
)
def test_wrong_use(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        child.main(arguments)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err
