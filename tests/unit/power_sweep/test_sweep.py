"""A whole sweep over simulated GPUs: what is set when, what is measured, what is printed."""

from __future__ import annotations

import csv
import io
import json
import sys
from importlib import resources

import jsonschema
import pytest

from diagnose.cli import execute as command_line
from diagnose.errors import UsageError
from diagnose.power_sweep import Measured, Outcome, plan, sweep
from diagnose.power_sweep.journal import Journal
from diagnose.reporters import Page
from diagnose.reporters._power_sweep import planned, write
from diagnose.telemetry import limits as limits_module
from diagnose.telemetry.limits import PowerLimits
from tests.conftest import ROOT
from tests.simulated_limits import FileNvml

OLD = {"GPU-a": 700.0, "GPU-b": 650.0}


@pytest.fixture
def nvml(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    FileNvml.create(tmp_path / "limits", OLD)
    return FileNvml(tmp_path / "limits")


def run_sweep(nvml, tmp_path, job, measure=lambda window: Measured(), caps=(600, 500), **options):
    limits = PowerLimits(nvml)
    options = {"as_root": True, "say": lambda text: None} | options
    return sweep(
        plan(limits, caps),
        limits,
        job,
        measure,
        journal=Journal(tmp_path / "own" / "journal.json"),
        watchdog=[sys.executable, str(ROOT / "tests" / "simulated_limits.py"), str(nvml.path)],
        **options,
    )


def test_the_job_runs_as_found_and_under_each_cap(nvml, tmp_path):
    seen = []

    def job(cap):
        seen.append((cap, nvml.limits_w()))
        return Outcome(0, tmp_path / f"window{cap}")

    runs = run_sweep(nvml, tmp_path, job, lambda window: Measured(step_ns=float(len(str(window)))))
    assert seen == [
        (None, OLD),
        (600, {"GPU-a": 600, "GPU-b": 600}),
        (500, {"GPU-a": 500, "GPU-b": 500}),
    ]
    assert [run.cap_w for run in runs] == [None, 600, 500]
    assert [run.problem for run in runs] == ["", "", ""]
    assert all(run.measured.step_ns == len(str(run.window)) for run in runs)
    assert nvml.limits_w() == OLD


def test_a_job_that_fails_ends_the_sweep(nvml, tmp_path):
    runs = run_sweep(nvml, tmp_path, lambda cap: Outcome(1, None, "no window, it crashed"))
    assert [(run.cap_w, run.status) for run in runs] == [(None, 1)]
    assert nvml.limits_w() == OLD


def test_an_interrupted_job_ends_the_sweep(nvml, tmp_path):
    def job(cap):
        return Outcome(130 if cap == 600 else 0, tmp_path)

    assert [run.cap_w for run in run_sweep(nvml, tmp_path, job)] == [None, 600]
    assert nvml.limits_w() == OLD


def test_a_job_that_raises_leaves_no_limit(nvml, tmp_path):
    def job(cap):
        raise OSError("no such command")

    with pytest.raises(OSError, match="no such command"):
        run_sweep(nvml, tmp_path, job)
    assert nvml.limits_w() == OLD


def test_a_limit_that_somebody_else_changes_spoils_the_run_and_says_so(nvml, tmp_path):
    def job(cap):
        if cap == 600:
            nvml.nvmlDeviceSetPowerManagementLimit("GPU-b", 300_000)
        return Outcome(0)

    runs = run_sweep(nvml, tmp_path, job)
    assert "limit of GPU 1 was changed by something else" in runs[1].problem
    assert nvml.limits_w() == OLD


def test_what_a_killed_sweep_left_is_restored_before_anything_is_run(nvml, tmp_path):
    FileNvml.create(nvml.path, {"GPU-a": 400.0, "GPU-b": 400.0})
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "own" / "journal.json").write_text(json.dumps(OLD))
    seen, said = [], []

    def job(cap):
        seen.append(nvml.limits_w())
        return Outcome(0)

    run_sweep(nvml, tmp_path, job, caps=(600,), say=said.append)
    assert seen[0] == OLD
    assert nvml.limits_w() == OLD
    assert "earlier sweep was killed" in said[0]


def test_without_root_nothing_happens(nvml, tmp_path):
    with pytest.raises(UsageError, match="needs root"):
        run_sweep(nvml, tmp_path, lambda cap: pytest.fail("it ran"), as_root=False)
    assert nvml.log() == []


def example(nvml, tmp_path):
    figures = {
        None: Measured(40e6, 29, 24.0, 23.5, 24.5, 4e6, 3e6, 5e6, 1800.0, 700.0),
        600: Measured(44e6, 29, 22.8, 22.3, 23.3, 3e6, 2e6, 4e6, 1600.0, 610.0),
        500: Measured(50e6, 29, why=("power: no telemetry was recorded for rank 0",)),
    }
    caps = iter(figures)

    def job(cap):
        return Outcome(0, tmp_path / "window")

    runs = run_sweep(nvml, tmp_path, job, lambda window: figures[next(caps)])
    return plan(PowerLimits(nvml), (600, 500)), runs


def test_the_table_compares_with_the_limits_as_found(nvml, tmp_path):
    text = write(*example(nvml, tmp_path), "text", Page(120))
    rows = [line.split() for line in text.splitlines()]
    # 44 over 40 ms is 10 % more, 22.8 over 24 J is 5 % less; 50 over 40 ms is 25 % more.
    assert ["as", "found", "40.00", "+0.0", "24.0", "+0.0", "4.00"] in [row[:7] for row in rows]
    assert ["600", "44.00", "+10.0", "22.8", "-5.0", "3.00"] in [row[:6] for row in rows]
    assert ["500", "50.00", "+25.0", "-", "-", "-"] in [row[:6] for row in rows]
    assert "500 W: power: no telemetry was recorded for rank 0" in text


def test_json_fits_its_schema_and_csv_has_the_same_figures(nvml, tmp_path):
    done = example(nvml, tmp_path)
    found = json.loads(write(*done, "json", Page()))
    text = resources.files("diagnose").joinpath("schemas", "power_sweep.schema.json").read_text()
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(found)
    assert [run["cap_w"] for run in found["runs"]] == [None, 600, 500]
    assert found["runs"][1]["step_us"] == 44000
    assert found["gpus"][1]["limit_w"] == 650
    rows = list(csv.DictReader(io.StringIO(write(*done, "csv", Page()))))
    assert [row["cap_w"] for row in rows] == ["", "600", "500"]
    assert rows[2]["step_energy_j"] == ""


def test_the_dry_run_names_limits_and_flag_and_changes_nothing(nvml):
    text = planned(plan(PowerLimits(nvml), (600, 500)), ["torchrun", "a b.py"], Page(100))
    assert "200 to 700" in text
    assert "Would run 3 times: torchrun 'a b.py'" in text
    assert "--allow-set-power-limit" in text
    assert nvml.log() == []


def test_the_verb_is_a_dry_run_unless_allowed(nvml, monkeypatch, capsys):
    monkeypatch.setattr(limits_module, "_binding", lambda: nvml)
    assert command_line(["power-sweep", "--caps", "600,500", "--gpus", "1", "--", "true"]) == 0
    out = capsys.readouterr().out
    assert "Nothing was changed" in out
    assert "650" in out
    assert command_line(["power-sweep", "--caps", "100", "--", "true"]) == 2
    assert "it allows 200 to 700 W" in capsys.readouterr().err
    assert nvml.log() == []


def test_the_verb_without_a_driver_says_why(monkeypatch, capsys):
    import pynvml

    from tests.unit.telemetry.simulated_nvml import SimulatedNvml

    absent = SimulatedNvml([], init_error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    monkeypatch.setattr(limits_module, "_binding", lambda: absent)
    assert command_line(["power-sweep", "--caps", "600", "--", "true"]) == 2
    assert "power limits can be neither read nor set" in capsys.readouterr().err
