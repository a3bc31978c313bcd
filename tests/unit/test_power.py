"""The tables of power on traces with telemetry beside them, and the verb that prints them."""

from __future__ import annotations

import csv
import io
import json
import math
from importlib import resources

import jsonschema
import numpy as np
import pytest

import diagnose
from diagnose import engine, manifest
from diagnose.analysis import Unavailable
from diagnose.analyzers.power import clock_reasons, power_classes, power_steps, power_summary
from diagnose.analyzers.power.cards import cards
from diagnose.analyzers.power.doing import Doing, class_times
from diagnose.cli import execute as command_line
from diagnose.manifest import RankFiles
from diagnose.reporters import Page
from diagnose.reporters._power import write
from tests.power_tables import UNIX_NS, builder, write_csv
from tests.property.hand_made import rows_of

MPS = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}


def row_of(table):
    (row,) = rows_of(table)
    return row


def telemetry(until_ms, watts_at, *, row_ms=20, clock=1980, reasons=0, first_ms=-1000):
    """A counter and a power reading that are new every 100 ms, as exact as they can be.

    ``watts_at``: the power at a time in ms. A reading is the mean of the 100 ms before it.
    """
    fine = np.arange(first_ms - 200, until_ms, 1.0)
    joules = np.concatenate([[0.0], np.cumsum([watts_at(t) / 1000 for t in fine])])
    beats = np.arange(first_ms + 35, until_ms, 100.0)
    counter = np.interp(beats, np.append(fine, until_ms), joules) + 5000
    rows = []
    for ms in np.arange(first_ms + 145, until_ms, row_ms):
        at = int(np.searchsorted(beats, ms, "right")) - 1
        # A constant power would never look new: a hair tells refreshes apart.
        instant = (counter[at] - counter[at - 1]) * 10 + 0.001 * (at % 2)
        rows.append(
            {
                "ms": float(ms),
                "power_instant_w": round(instant, 3),
                "energy_j": round(counter[at], 6),
                "sm_clock_mhz": clock(ms) if callable(clock) else clock,
                "temperature_c": 50 + at % 2,
                "clocks_event_reasons": reasons,
                "power_limit_w": 700.0,
            }
        )
    return rows


def write_rank(folder, trace, rows, rank=0, environment=None):
    trace.write(folder)
    write_csv(folder / f"rank{rank:05d}.telemetry.csv", rows)
    if environment is not None:
        (folder / f"rank{rank:05d}.env.json").write_text(json.dumps(environment))


def steps_of(num, length_ms, rank=0, world_size=1):
    """Steps of one kernel each, without a pause."""
    trace = builder(rank, world_size)
    for step in range(num):
        start = step * length_ms * 1000
        trace.step(step, start, length_ms * 1000)
        trace.kernel("gemm", start + 20, length_ms * 1000 - 20, launch=start + 5)
    return trace


@pytest.fixture
def steady(tmp_path):
    """20 steps of 0.5 s at 600 W."""
    write_rank(tmp_path, steps_of(20, 500), telemetry(11_500, lambda t: 600.0))
    return diagnose.load(tmp_path).trace


def test_the_energy_of_a_step_at_constant_power(steady):
    row = row_of(power_summary(steady))
    assert row["why"] is None
    assert (row["num_ranks"], row["shared_by"], row["sensor"]) == (1, None, "energy_j")
    assert row["refresh_ns"] == pytest.approx(100e6, rel=1e-3)
    # 19 step times (the first has none), each 0.5 s of 600 W.
    assert row["num_steps"] == 19
    assert row["step_energy_j"] == pytest.approx(300, rel=2e-3)
    assert row["step_energy_low_j"] <= 300 <= row["step_energy_high_j"]
    assert row["step_energy_high_j"] - row["step_energy_low_j"] < 3
    assert row["mean_w"] == pytest.approx(600, rel=2e-3)
    assert row["step_energy_why"] is None
    assert row["temperature_most_c"] == 51
    assert row["num_over_limit"] == 0


def test_one_class_alone_has_its_power_from_whole_refreshes_or_the_fit(steady):
    (row,) = [row for row in rows_of(power_classes(steady)) if row["doing"] == Doing.COMPUTE]
    assert row["mean_w"] == pytest.approx(600, rel=2e-3)
    assert row["time_pct"] > 99.9


def test_steps_shorter_than_ten_refreshes_take_the_powers_of_the_classes(steady):
    rows = rows_of(power_steps(steady))
    assert len(rows) == 19
    for row in rows:
        assert row["num_refreshes"] in (4, 5)
        assert row["method"] in ("class powers", None)
        assert row["compute_ns"] == pytest.approx(499_980_000, abs=1)


@pytest.fixture
def phased(tmp_path):
    """40 steps: 0.6 s compute at 600 W, 0.4 s communication at 300 W, 0.3 s both at 700 W,
    and 0.2 s of nothing at 100 W."""
    trace, power = builder(), []
    t = 0
    for step in range(40):
        trace.step(step, t * 1000, 1_500_000)
        trace.kernel("gemm", t * 1000 + 1, 599_999, launch=t * 1000)
        trace.collective("allreduce", (t + 600) * 1000, 700_000, launch=t * 1000 + 2)
        trace.kernel("gemm", (t + 1000) * 1000, 300_000, launch=t * 1000 + 3)
        power += [(t, 600.0), (t + 600, 300.0), (t + 1000, 700.0), (t + 1300, 100.0)]
        t += 1500
    starts = [start for start, _ in power]

    def watts(ms):
        at = int(np.searchsorted(starts, ms, "right")) - 1
        return power[at][1] if at >= 0 and ms < t else 100.0

    def clock(ms):
        return 1500 if int(ms // 200) % 2 else 1800

    rows = telemetry(t + 2000, watts, clock=clock, reasons=4)
    write_rank(tmp_path, trace, rows)
    return tmp_path


def test_the_powers_of_the_classes_are_those_that_were_drawn(phased):
    table = power_classes(diagnose.load(phased).trace)
    rows = {Doing(row["doing"]): row for row in rows_of(table)}
    drawn = {
        Doing.COMPUTE: (600, 0.6),
        Doing.OVERLAPPED: (700, 0.3),
        Doing.COMMUNICATION: (300, 0.4),
        Doing.IDLE: (100, 0.2),
    }
    assert set(rows) == set(drawn)
    for doing, (watts, seconds) in drawn.items():
        row = rows[doing]
        assert row["method"] == "regression"
        assert row["mean_w"] == pytest.approx(watts, abs=3), doing
        # The last stretch of nothing is after the window of GPU work.
        length = 40 * seconds - (0.2 if doing == Doing.IDLE else 0)
        assert row["time_ns"] == pytest.approx(1e9 * length, abs=2e5)
        assert row["energy_j"] == pytest.approx(watts * length, rel=0.03)
        assert row["whole_w"] == pytest.approx(watts, abs=3)
    assert sum(row["energy_pct"] for row in rows.values()) == pytest.approx(100)


def test_long_steps_are_read_off_the_counter(phased):
    rows = rows_of(power_steps(diagnose.load(phased).trace))
    # From one step's last work to the next's: 0.2 x 100 + 0.6 x 600 + 0.4 x 300 + 0.3 x 700.
    counted = [row for row in rows if row["method"] == "counter"]
    assert len(counted) >= 38
    for row in counted:
        assert row["step_ns"] == pytest.approx(1.5e9, abs=1e5)
        assert row["energy_j"] == pytest.approx(710, abs=12)
        assert row["energy_low_j"] <= 710 <= row["energy_high_j"]
        assert row["compute_j"] == pytest.approx(360, abs=4)
        assert row["overlapped_j"] == pytest.approx(210, abs=3)
        assert row["peak_w"] == pytest.approx(700, abs=2)


def test_peaks_clocks_reasons_and_where_a_cap_would_hurt(phased):
    trace = diagnose.load(phased).trace
    row = row_of(power_summary(trace))
    assert row["limit_w"] == 700
    assert row["peak_w"] == pytest.approx(700, abs=1)
    assert (row["clock_least_mhz"], row["clock_most_mhz"]) == (1500, 1800)
    assert row["clock_mhz"] == pytest.approx(1650, abs=5)
    assert row["clock_swing_mhz"] == 300
    # The clock changes every 200 ms, back and forth: 2.5 Hz, and refreshes show up to that.
    assert row["clock_nyquist_hz"] == pytest.approx(2.5, rel=0.02)
    # A fifth of the time draws 700 W, so 5 % of refreshes lie over 699 and half over 450 or so.
    assert row["cap_begins_w"] == pytest.approx(700, abs=2)
    assert 300 <= row["cap_half_w"] <= 600
    assert row["slowed_ns"] == row["power_capped_ns"] == row["window_ns"]
    reason = row_of(clock_reasons(trace))
    assert (reason["reason"], reason["slows"]) == ("sw_power_cap", True)
    assert reason["held_pct"] == pytest.approx(100)
    # 0.9 of 1.5 s compute; the clock is at 1500 of 1800 MHz in half of it: 1/12 of 60 %.
    assert reason["cost_pct"] == pytest.approx(100 * 0.6 / 12, abs=0.5)
    assert reason["cost_ns"] > 0


# Which GPU, and whether anything is known of it


def two_ranks(tmp_path, environments=(None, None), *, watts=(600.0, 600.0), shift_ms=0):
    for rank in (0, 1):
        trace = steps_of(20, 500, rank, 2)
        rows = telemetry(11_500, lambda t, w=watts[rank]: w, row_ms=20 + rank)
        write_rank(tmp_path, trace, rows, rank, environments[rank])
    return diagnose.load(tmp_path).trace


def test_ranks_on_one_gpu_count_once_by_its_uuid(tmp_path):
    named = {"gpu": {"uuid": "GPU-1"}, "env": MPS}
    trace = two_ranks(tmp_path, (named, named))
    row = row_of(power_summary(trace))
    assert (row["num_ranks"], row["shared_by"], row["caution"]) == (2, "uuid", None)
    # One GPU at 600 W, not two.
    assert row["step_energy_j"] == pytest.approx(300, rel=3e-3)
    assert row["num_steps"] == 19


def test_where_environments_name_no_gpu_the_manifest_does(tmp_path):
    """Two counters that run together, and a manifest that tells the GPUs apart, or the same."""
    two_ranks(tmp_path, ({"gpu": {"uuid": "GPU-1"}}, {"env": MPS}), watts=(600.0, 500.0))

    def shared(*uuids):
        ranks = tuple(
            RankFiles(
                rank,
                f"rank{rank:05d}.trace.json",
                telemetry=f"rank{rank:05d}.telemetry.csv",
                env=f"rank{rank:05d}.env.json",
                gpu_uuid=uuid,
            )
            for rank, uuid in enumerate(uuids)
        )
        (tmp_path / "recording.json").unlink(missing_ok=True)
        manifest.write(manifest.Manifest(ranks=ranks, world_size=2), tmp_path)
        trace = diagnose.load(tmp_path).trace
        return [(len(card.gpus), card.told_by) for card in cards(trace)], trace

    assert shared(None, "GPU-1")[0] == [(2, "uuid")]
    assert shared("GPU-2", "GPU-2")[0] == [(1, None), (1, None)]  # rank 0's own word counts more
    found, trace = shared(None, "GPU-2")
    assert found == [(1, None), (1, None)]
    assert [source.gpu_uuid for source in trace.sources] == ["GPU-1", "GPU-2"]


def test_ranks_on_one_gpu_count_once_by_their_energy_counter(tmp_path):
    row = row_of(power_summary(two_ranks(tmp_path)))
    assert (row["num_ranks"], row["shared_by"]) == (2, "energy counter")


def test_gpus_with_other_counters_are_other_gpus(tmp_path):
    rows = rows_of(power_summary(two_ranks(tmp_path, watts=(600.0, 500.0))))
    assert [row["num_ranks"] for row in rows] == [1, 1]
    assert [round(row["step_energy_j"]) for row in rows] == [300, 250]


def test_uuids_beat_equal_counters(tmp_path):
    named = tuple({"gpu": {"uuid": f"GPU-{rank}"}} for rank in (0, 1))
    assert len(cards(two_ranks(tmp_path, named))) == 2


def test_a_share_of_a_gpu_alone_says_what_is_in_its_figures(tmp_path):
    write_rank(tmp_path, steps_of(20, 500), telemetry(11_500, lambda t: 600.0), 0, {"env": MPS})
    row = row_of(power_summary(diagnose.load(tmp_path).trace))
    assert row["caution"].startswith("MPS gives the recorded ranks 50 % of this GPU")


def test_classes_of_a_shared_gpu_are_of_all_its_ranks(tmp_path):
    """Rank 0 computes from 0 to 10 ms, rank 1 communicates from 5 to 12 and starts at 2 ms."""
    first, second = builder(0, 2), builder(1, 2)
    first.kernel("gemm", 0, 10_000).kernel("gemm", 14_000, 1_000)
    second.kernel("gemm", 2_000, 1_000).collective("allreduce", 5_000, 7_000)
    second.kernel("gemm", 14_500, 1_500)
    first.write(tmp_path)
    second.write(tmp_path)
    trace = diagnose.load(tmp_path).trace
    times = class_times(trace, trace.gpus)
    # Known of both from 2 to 15 ms: compute 2-5 and 14-15, both 5-10, comm. 10-12, idle 12-14.
    assert (times.start_ns, times.end_ns) == (UNIX_NS + 2_000_000, UNIX_NS + 15_000_000)
    assert times.total_ns.tolist() == [4_000_000, 5_000_000, 2_000_000, 0, 2_000_000]


def test_without_telemetry_there_is_a_remedy(tmp_path):
    steps_of(4, 100).write(tmp_path)
    trace = diagnose.load(tmp_path).trace
    for table in (power_summary(trace), power_classes(trace), power_steps(trace)):
        assert isinstance(table, Unavailable)
        assert table.because == "no telemetry was recorded for rank 0"
        assert "diagnose attach" in table.remedy


def test_one_rank_without_telemetry_is_a_row_with_the_reason(tmp_path):
    write_rank(tmp_path, steps_of(20, 500, 0, 2), telemetry(11_500, lambda t: 600.0))
    steps_of(20, 500, 1, 2).write(tmp_path)
    first, second = rows_of(power_summary(diagnose.load(tmp_path).trace))
    assert first["why"] is None
    assert second["why"] == "no telemetry was recorded for rank 1"
    assert second["mean_w"] is None
    assert second["num_refreshes"] is None


def test_a_window_under_ten_refreshes_is_refused_with_what_would_do(tmp_path):
    write_rank(tmp_path, steps_of(6, 40), telemetry(2000, lambda t: 600.0))
    row = row_of(power_summary(diagnose.load(tmp_path).trace))
    assert row["step_energy_j"] is None
    # 5 step times of 40 ms; ten refreshes are 1 s: 25 step times, of 26 steps.
    assert row["step_energy_why"] == (
        "the 5 timed steps last 200 ms, less than 10 refreshes of the power sensor (100 ms each); "
        "record 26 steps or more"
    )
    assert row["energy_j"] is None
    assert "too few refreshes of the power sensor" in row["cap_why"]


def test_classes_in_the_same_proportion_everywhere_cannot_be_told_apart(tmp_path):
    trace = builder()
    for step in range(1000):
        t = step * 10_000
        trace.kernel("gemm", t, 6_000).collective("allreduce", t + 6_000, 4_000)
    write_rank(tmp_path, trace, telemetry(11_500, lambda t: 600.0))
    rows = rows_of(power_classes(diagnose.load(tmp_path).trace))
    assert {Doing(row["doing"]) for row in rows} == {Doing.COMPUTE, Doing.COMMUNICATION}
    for row in rows:
        assert row["mean_w"] is None
        assert row["why"].startswith("compute and communication come in the same proportion")


def test_telemetry_of_another_time_is_not_used(tmp_path):
    rows = [row | {"ms": row["ms"] + 3_600_000} for row in telemetry(3000, lambda t: 600.0)]
    write_rank(tmp_path, steps_of(4, 100), rows)
    table = power_summary(diagnose.load(tmp_path).trace)
    assert table.because == "the telemetry is of another time than the GPU work"


def test_a_trace_without_unix_time_cannot_be_aligned(tmp_path):
    trace = steps_of(4, 100)
    del trace.top["baseTimeNanoseconds"]
    write_rank(tmp_path, trace, telemetry(3000, lambda t: 600.0))
    assert "does not say its unix time" in power_summary(diagnose.load(tmp_path).trace).because


def test_two_gpus_of_one_process_are_not_told_apart_by_its_telemetry(tmp_path):
    trace = builder()
    trace.kernel("gemm", 0, 1000, device=0).kernel("gemm", 0, 1000, device=1)
    write_rank(tmp_path, trace, telemetry(3000, lambda t: 600.0))
    assert "uses 2 GPUs" in power_summary(diagnose.load(tmp_path).trace).because


# Shipped recordings


def test_two_real_ranks_on_one_real_gpu(recordings):
    row = row_of(power_summary(diagnose.load(recordings / "healthy").trace))
    assert (row["num_ranks"], row["shared_by"]) == (2, "energy counter")
    assert row["step_energy_j"] is None
    assert row["step_energy_why"].startswith("the 2 timed steps last 78 ms")
    assert row["limit_w"] == 700
    assert row["peak_w"] == 707.872
    assert row["power_capped_ns"] == row["window_ns"]


# What is printed


def diagnosis_of(trace):
    requests = {
        "summary": "power_summary",
        "classes": "power_classes",
        "steps": "power_steps",
        "reasons": "clock_reasons",
    }
    return engine.diagnose(trace, {k: engine.Request(v) for k, v in requests.items()}, debug=True)


def validator():
    text = resources.files("diagnose").joinpath("schemas", "power.schema.json").read_text()
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_json_fits_its_schema_and_leaves_nothing_open(phased, recordings):
    for path in (phased, recordings / "healthy"):
        document = json.loads(
            write(diagnosis_of(diagnose.load(path).trace), "class", "json", Page())
        )
        validator().validate(document)
        for part in ("gpus", "classes", "reasons"):
            changed = json.loads(json.dumps(document))
            changed[part][0]["surprise"] = 1
            assert not validator().is_valid(changed)
            del changed[part][0]["surprise"], changed[part][0]["rank"]
            assert not validator().is_valid(changed)


def test_csv_holds_the_rows_of_by(phased):
    diagnosis = diagnosis_of(diagnose.load(phased).trace)
    found = {
        by: list(csv.DictReader(io.StringIO(write(diagnosis, by, "csv", Page()))))
        for by in ("class", "step", "reason")
    }
    assert [row["class"] for row in found["class"]] == [
        "compute",
        "overlapped",
        "communication",
        "idle",
    ]
    assert len(found["step"]) == 39
    assert found["reason"][0]["reason"] == "sw_power_cap"


def test_the_text_says_what_is_known_and_how(phased):
    diagnosis = diagnosis_of(diagnose.load(phased).trace)
    text = write(diagnosis, "class", "text", Page(120))
    assert "compute + comm." in text
    assert "regression" in text
    said = " ".join(text.split())
    assert "each the mean of 100 ms and 0 ms late (fitted)" in said
    assert "The present limit of 700 W lowered clocks for 100.0 % of the window." in said
    assert "would act in 5 % of the refreshes" in said
    assert "<= " in write(diagnosis, "reason", "text", Page(120))
    assert "counter" in write(diagnosis, "step", "text", Page(120))
    for by in ("class", "step", "reason"):
        narrow = write(diagnosis, by, "text", Page(80, unicode=False))
        assert narrow.isascii()
        assert max(map(len, narrow.splitlines())) <= 80


def test_the_text_says_why_figures_are_absent(recordings):
    text = write(diagnosis_of(diagnose.load(recordings / "healthy").trace), "class", "text", Page())
    said = " ".join(text.split())
    assert "2 ranks share this GPU (same energy counter); it counts once." in said
    assert "No energy of a step: the 2 timed steps last 78 ms" in said
    assert "No estimate of where a cap would hurt" in said


def test_the_verb(recordings, capsys, tmp_path):
    assert command_line(["power", str(recordings / "healthy"), "--format", "json"]) == 0
    validator().validate(json.loads(capsys.readouterr().out, parse_constant=pytest.fail))
    steps_of(4, 100).write(tmp_path)
    assert command_line(["power", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "no telemetry was recorded for rank 0" in said
    assert "hint: record with telemetry" in said


def test_hostile_names_reach_no_terminal(tmp_path, capsys):
    folder = tmp_path / "a\x1b[31mb"
    folder.mkdir()
    write_rank(folder, steps_of(4, 100), telemetry(3000, lambda t: 600.0))
    assert command_line(["power", str(folder)]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_nothing_is_nan_in_json(phased):
    document = write(diagnosis_of(diagnose.load(phased).trace), "class", "json", Page())
    json.loads(document, parse_constant=pytest.fail)
    assert not math.isnan(json.loads(document)["gpus"][0]["mean_w"])
