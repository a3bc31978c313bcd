"""The comparison of class powers with the sensor's readings, on a recording with known powers."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import power_table
from tests import simulated_power
from tests.power_tables import UNIX_NS, builder, write_csv

PHASES = {
    "compute": "compute",
    "communication": "communication",
    "overlap": "overlapped",
    "idle": "idle",
}
PHASE_MS = 800.0


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifteen steps of four phases of 0.8 s, with a last kernel that ends the window."""
    folder = tmp_path_factory.mktemp("power")
    stretches = [(name, PHASE_MS) for _ in range(15) for name in PHASES.values()]
    stretches.append(("compute", 20.0))
    sensor = simulated_power.Sensor(noise_w=2.0)
    world = simulated_power.play(
        np.random.default_rng(7), stretches, simulated_power.WATTS, sensor, kernel_spread=0.0
    )
    trace = builder()
    for name, begin, end in world.stretches:
        start, length = 1000 * begin, 1000 * (end - begin)
        if name in ("compute", "overlapped"):
            trace.kernel("gemm", start, length)
        if name in ("communication", "overlapped"):
            trace.collective("allreduce", start, length)
    trace.write(folder)
    columns = world.samples
    write_csv(
        folder / "rank00000.telemetry.csv",
        [
            {"ms": (unix - UNIX_NS) / 1e6, "power_instant_w": watts, "energy_j": joules}
            for unix, watts, joules in zip(
                *(columns[n].tolist() for n in ("unix_ns", "power_instant_w", "energy_j")),
                strict=True,
            )
        ],
    )
    with open(folder / "rank00000.phases.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "phase", "begin_unix_ns", "end_unix_ns"])
        for number, (_, begin, end) in enumerate(world.stretches[:-1]):
            phase = list(PHASES)[number % 4]
            times = [UNIX_NS + round(moment * 1e6) for moment in (begin, end)]
            writer.writerow([number // 4, phase, *times])
    return folder


def test_what_was_read_and_what_is_estimated_meet_the_power_that_was_played(
    recording: Path,
) -> None:
    found = list(power_table.rows(recording))
    assert [row.phase for row in found] == list(PHASES)
    for row in found:
        truth = simulated_power.WATTS[PHASES[row.phase]]
        # The wander of 5 W has a memory of 0.3 s: over 15 phases of 0.5 s some 1.2 W are left.
        assert row.read.mean == pytest.approx(truth, abs=4)
        assert row.read.num_phases == 15
        assert 15 * 4 <= row.read.num_refreshes <= 15 * 6  # one every 100 ms of 500
        assert row.read.in_class_pct == pytest.approx(100)
        value, low, high = row.estimated
        assert low <= truth <= high
        assert value == pytest.approx(truth, rel=0.02)
        assert row.method == "regression"


def test_the_beginning_of_a_phase_is_left_out() -> None:
    rank = {("compute", "0"): (1_000_000_000, 1_800_000_000), ("idle", "0"): (0, 300_000_000)}
    late = {("compute", "0"): (1_100_000_000, 1_700_000_000), ("idle", "0"): (0, 900_000_000)}
    alone = power_table._common([rank])
    assert alone.keys() == {"compute"}  # nothing is left of 0.3 s
    assert alone["compute"].begin.tolist() == [1_300_000_000]
    both = power_table._common([rank, late])["compute"]
    assert (both.begin.tolist(), both.end.tolist()) == ([1_400_000_000], [1_700_000_000])


def test_the_table_goes_between_its_markers(recording: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{power_table.BEGIN}\nold\n{power_table.END}\nafter\n")
    power_table.main([str(recording), "--page", str(page)])
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "old" not in lines
    table = [line for line in lines if line.startswith("| rank 0")]
    assert [line.split(" | ")[1] for line in table] == list(PHASES)
    page.write_text("no markers")
    with pytest.raises(SystemExit, match="class powers: begin"):
        power_table.main([str(recording), "--page", str(page)])


def test_the_page_has_a_place_for_it(root: Path) -> None:
    text = (root / "docs/power.md").read_text()
    assert 0 < text.index(power_table.BEGIN) < text.index(power_table.END)


def test_what_is_missing_is_not_zero() -> None:
    nothing = (float("nan"),) * 3
    read = power_table.Read(*nothing, 0, 0, float("nan"))
    [*_, line] = power_table.table([power_table.Row("rank 0", "idle", read, nothing, "too rare")])
    assert line == "| rank 0 | idle | 0 | 0 | - | - | - | - | too rare |"
