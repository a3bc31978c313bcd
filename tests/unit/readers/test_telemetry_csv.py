"""Sensor readings and environments: small files beside a trace."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from diagnose.readers import environment, telemetry_csv
from diagnose.schema import SAMPLES


def write(path: Path, *lines: str, end: str = "\n") -> str:
    file = path / "rank00000.telemetry.csv"
    file.write_text(end.join(lines) + end, newline="")
    return str(file)


def test_values_are_exact_and_empty_fields_unknown(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "unix_ns,power_avg_w,clocks_event_reasons,gpm_sm_util_pct",
        "1796133376454815723,488.855,4,",
        "1796133376481937521,490,0x400,12.5",
    )
    samples, notes = telemetry_csv.read(path)
    assert notes == []
    assert samples is not None
    assert set(samples) == {c.name for c in SAMPLES.columns} - {"source"}
    assert samples["unix_ns"].tolist() == [1796133376454815723, 1796133376481937521]
    assert samples["power_avg_w"].tolist() == [488.855, 490.0]
    assert samples["clocks_event_reasons"].tolist() == [4.0, 1024.0]
    assert math.isnan(samples["gpm_sm_util_pct"][0])
    assert samples["gpm_sm_util_pct"][1] == 12.5
    assert np.isnan(samples["temperature_c"]).all()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_rows_are_sorted_by_time_whatever_the_line_ends(tmp_path: Path, end: str) -> None:
    path = write(tmp_path, "power_limit_w,unix_ns", "700,30", "600,10", "", "500,20", end=end)
    samples, notes = telemetry_csv.read(path)
    assert notes == []
    assert samples is not None
    assert samples["unix_ns"].tolist() == [10, 20, 30]
    assert samples["power_limit_w"].tolist() == [600, 500, 700]


def test_damaged_lines_and_values_are_counted(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "unix_ns,power_avg_w,temperature_c",
        "10,1,2",
        "20,1",
        "1.5e9,1,2",
        "-5,1,2",
        "99999999999999999999,1,2",
        "30,many,inf",
        "40,N/A,[Not Supported]",
        "50,1,2,3",
    )
    samples, notes = telemetry_csv.read(path)
    assert samples is not None
    assert samples["unix_ns"].tolist() == [10, 30, 40]
    assert np.isnan(samples["power_avg_w"]).tolist() == [False, True, True]
    found = {note.code: (note.count, note.severity) for note in notes}
    assert found == {"telemetry-damaged": (5, "warning"), "telemetry-value": (2, "warning")}
    assert all(note.sentence.startswith(path) for note in notes)


def test_unknown_columns_are_ignored_and_said(tmp_path: Path) -> None:
    samples, (note,) = telemetry_csv.read(write(tmp_path, "unix_ns,mood,fan", "10,good,3"))
    assert samples is not None
    assert "mood" not in samples
    assert (note.code, note.severity, note.count) == ("telemetry-column", "info", 2)
    assert "mood, fan" in note.sentence


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"time,power_avg_w\n1,2\n", "names no column unix_ns"),
        (b"unix_ns,unix_ns\n1,2\n", "names a column twice"),
        (b"\x00\xff\xfe", "names no column unix_ns"),
    ],
)
def test_what_is_no_telemetry(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "x.telemetry.csv"
    path.write_bytes(content)
    samples, (note,) = telemetry_csv.read(str(path))
    assert samples is None
    assert (note.code, note.severity) == ("telemetry-unreadable", "warning")
    assert problem in note.sentence


def test_missing_and_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples, (note,) = telemetry_csv.read(str(tmp_path / "none.telemetry.csv"))
    assert samples is None
    assert note.code == "telemetry-unreadable"
    monkeypatch.setattr(telemetry_csv, "MAX_BYTES", 16)
    _, (note,) = telemetry_csv.read(write(tmp_path, "unix_ns", "1", "2", "3", "4", "5", "6"))
    assert "larger than" in note.sentence


# ---- environment ----


def test_an_environment_is_kept_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "rank00000.env.json"
    path.write_text('{"rank": 0, "nccl": "2.28.9", "env": {"NCCL_DEBUG": "WARN"}, "x": NaN}')
    content, notes = environment.read(str(path))
    assert notes == []
    assert content == {"rank": 0, "nccl": "2.28.9", "env": {"NCCL_DEBUG": "WARN"}, "x": None}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "empty"),
        (b'{"rank": ', "damaged"),
        (b"[1]", "not a JSON object"),
        (b"\xff\xff", "damaged"),
        (b"[" * 100_000, "damaged"),
    ],
)
def test_a_damaged_environment_is_a_note(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "rank00000.env.json"
    path.write_bytes(data)
    content, (note,) = environment.read(str(path))
    assert content == {}
    assert (note.code, note.severity) == ("environment-unreadable", "warning")
    assert note.sentence.startswith(f"{path}: {problem}")


def test_an_environment_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "MAX_BYTES", 8)
    path = tmp_path / "rank00000.env.json"
    path.write_text('{"rank": 0}')
    assert "larger than" in environment.read(str(path))[1][0].sentence
    assert environment.read(str(tmp_path / "none"))[1][0].code == "environment-unreadable"
