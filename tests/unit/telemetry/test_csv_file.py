"""The file of readings: its text, its name, a disk that is full."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest

from diagnose.errors import OutputError
from diagnose.readers import telemetry_csv
from diagnose.telemetry import COLUMNS
from diagnose.telemetry.csv_file import TelemetryFile


def test_rows_and_name(tmp_path):
    path = tmp_path / "rank00000.telemetry.csv"
    file = TelemetryFile(path)
    assert not path.exists()
    file.write(
        1796133376454473729, {"power_avg_w": 401.25, "energy_j": 7.00049, "xid_error": 79}, 0
    )
    file.write(1796133376454473730, {"power_avg_w": 0, "power_instant_w": None}, 0)
    assert file.finish()
    assert [item.name for item in tmp_path.iterdir()] == [path.name]
    header, *rows = path.read_text().splitlines()
    assert header == ",".join(("unix_ns", *COLUMNS))
    empty = [""] * len(COLUMNS)
    first, second = list(empty), list(empty)
    first[COLUMNS.index("power_avg_w")] = "401.25"
    first[COLUMNS.index("energy_j")] = "7.0"
    first[COLUMNS.index("xid_error")] = "79"
    second[COLUMNS.index("power_avg_w")] = "0"
    assert rows == [
        "1796133376454473729," + ",".join(first),
        "1796133376454473730," + ",".join(second),
    ]


def test_what_is_no_number_is_empty_and_an_empty_row_is_none(tmp_path):
    file = TelemetryFile(tmp_path / "a.telemetry.csv")
    file.write(5, {"power_avg_w": math.nan, "energy_j": math.inf}, 0)
    file.write(6, {}, 0)
    assert file.num_rows == 0
    assert not file.finish()
    assert list(tmp_path.iterdir()) == []


def test_the_reader_reads_it(tmp_path):
    file = TelemetryFile(tmp_path / "a.telemetry.csv")
    file.write(20, {"pcie_tx_bytes": 2**52 + 1, "clocks_event_reasons": 0x44}, 0)
    file.write(10, {"power_sample_w": 399.5}, 0)  # a row of the driver's, from before
    file.finish()
    samples, notes = telemetry_csv.read(str(file.path))
    assert notes == []
    assert samples is not None
    assert samples["unix_ns"].tolist() == [10, 20]
    assert samples["power_sample_w"][0] == 399.5
    assert samples["pcie_tx_bytes"][1] == 2**52 + 1
    assert np.isnan(samples["power_avg_w"]).all()


def test_a_killed_process_loses_at_most_half_a_second(tmp_path):
    file = TelemetryFile(tmp_path / "a.telemetry.csv")
    for tenth in range(20):  # two seconds, a row every 100 ms
        file.write(tenth, {"power_avg_w": 1.5}, tenth / 10)
    written = (tmp_path / "a.telemetry.csv.part").read_text().splitlines()[1:]
    assert [line.split(",")[0] for line in written] == [str(i) for i in range(16)]
    file.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.telemetry.csv", "a.telemetry.csv.part"])
def test_nothing_is_overwritten(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        TelemetryFile(tmp_path / "a.telemetry.csv")
    assert (tmp_path / name).read_text() == "mine"


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(OutputError) as caught:
        TelemetryFile(tmp_path / "no" / "a.telemetry.csv")
    assert "a.telemetry.csv: cannot be written" in caught.value.message
    assert caught.value.hint


class FullDisk(io.StringIO):
    def flush(self):
        raise OSError(28, "No space left on device")


def test_a_full_disk_ends_the_file_and_raises_nothing(tmp_path):
    file = TelemetryFile(tmp_path / "a.telemetry.csv")
    file.write(1, {"power_avg_w": 1.5}, 0)
    real, file._file = file._file, FullDisk()
    file.write(2, {"power_avg_w": 1.5}, 1)
    file.write(3, {"power_avg_w": 1.5}, 2)
    assert file.problem is not None
    assert "No space left on device" in file.problem
    real.close()
    assert file.finish()
    assert len((tmp_path / "a.telemetry.csv").read_text().splitlines()) == 2
