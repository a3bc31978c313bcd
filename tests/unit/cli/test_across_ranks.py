"""``ranks``, ``stalls``, ``critical-path`` and ``compare`` as commands: formats, gates, errors."""

from __future__ import annotations

import csv
import io
import json

import pytest

from diagnose import cli
from tests.builder import TraceBuilder


def rank_builder(rank, compute, arrives, period=100, steps=4):
    """Per step from t: compute [t+5, t+5+c), all-reduce [t+arrives, t+70)."""
    builder = TraceBuilder(rank=rank, world_size=2)
    for step in range(steps):
        t = step * period
        builder.step(step + 1, t, period)
        builder.kernel("gemm", t + 5, compute, launch=t + 1)
        builder.collective("allreduce", t + arrives, 70 - arrives, elements=2**20, launch=t + 2)
    return builder


def written(folder, late=False, period=100, steps=4):
    """Two ranks; rank 1 arrives 20 us late if ``late``."""
    folder.mkdir()
    rank_builder(0, 30, 40, period, steps).write(folder)
    second = (50, 60) if late else (30, 40)
    rank_builder(1, *second, period, steps).write(folder)
    return str(folder)


@pytest.fixture
def late(tmp_path):
    return written(tmp_path / "late", late=True)


@pytest.fixture
def even(tmp_path):
    return written(tmp_path / "even")


def answer(capsys, *arguments, status=0):
    assert cli.execute(list(arguments)) == status
    return capsys.readouterr().out


def read_csv(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_ranks_name_the_straggler_with_its_evidence(late, capsys):
    text = answer(capsys, "ranks", late)
    assert "Rank 1 holds the others up: late in 4 of 4 steps, last in 100.0 %" in text
    # 20 us of a step of 100.
    assert "(20.0 % of the step time)" in text
    document = json.loads(answer(capsys, "ranks", late, "--format", "json"))
    [verdict] = document["stragglers"]
    assert (verdict["pattern"], verdict["rank"]) == ("constant", 1)
    assert verdict["lost_per_step_us"] == 20
    assert [rank["num_last"] for rank in document["ranks"]] == [0, 4]
    assert [rank["wait_us"] for rank in document["ranks"]] == [80, 0]
    # 2 MiB in the 10 us from the last arrival: 209.7 GB/s; two ranks have the factor 1.
    [size] = document["transfer_bandwidth"]
    assert size["median_busbw_gb_per_s"] == pytest.approx(2**21 / 10_000)
    assert size["of_link_pct"] is None


def test_ranks_without_a_straggler_say_so(even, capsys):
    assert "No straggler" in answer(capsys, "ranks", even)


def test_ranks_compare_with_the_link(even, capsys):
    document = json.loads(
        answer(capsys, "ranks", even, "--link-gb-per-s", "100", "--format", "json")
    )
    # 2 MiB in 30 us.
    assert document["transfer_bandwidth"][0]["of_link_pct"] == pytest.approx(2**21 / 30_000)


@pytest.mark.parametrize("rate", ["0", "-5", "nan", "inf"])
def test_a_link_without_a_rate_is_refused(even, rate, capsys):
    assert cli.execute(["ranks", even, f"--link-gb-per-s={rate}"]) == 2
    assert "rate" in capsys.readouterr().err


def test_ranks_of_one_gpu_say_what_is_missing(tmp_path, capsys):
    path = rank_builder(0, 30, 40).write(tmp_path)
    assert cli.execute(["ranks", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "one GPU only" in err
    assert "hint: " in err


@pytest.mark.parametrize("by", ["cause", "step", "interval"])
def test_stalls_sum_to_idle_and_copies_alone(recordings, capsys, by):
    path = str(recordings / "pageable_copy")
    document = json.loads(answer(capsys, "stalls", path, "--by", by, "--format", "json"))
    rows = read_csv(answer(capsys, "stalls", path, "--by", by, "--format", "csv"))
    assert len(rows) == len(document["rows"])
    overlap = json.loads(answer(capsys, "overlap", path, "--format", "json"))["rows"]
    for gpu, measured in zip(document["gpus"], overlap, strict=True):
        assert gpu["idle_us"] == measured["idle_us"]
        own = [row for row in document["rows"] if row["rank"] == gpu["rank"]]
        nanoseconds = sum(round(row["length_us"] * 1000) for row in own)
        assert nanoseconds == round((gpu["idle_us"] + gpu["memory_only_us"]) * 1000)


def test_stalls_put_the_induced_cause_first(recordings, capsys):
    for name, label in (
        ("host_sync", "host synchronisation"),
        ("data_stall", "data loading"),
        ("pageable_copy", "copy from pageable memory"),
        ("launch_bound", "host busy in operators"),
    ):
        lines = answer(capsys, "stalls", str(recordings / name)).splitlines()
        titles = [at for at, line in enumerate(lines) if line.startswith("Stalls of rank")]
        assert len(titles) == 2
        for at in titles:
            assert lines[at + 3].startswith(label), lines[at : at + 4]


def test_stalls_list_host_synchronisations_with_their_operator(recordings, capsys):
    document = json.loads(
        answer(capsys, "stalls", str(recordings / "host_sync"), "--format", "json")
    )
    first = document["host_waits"][0]
    # `.item()` once in each of 6 layers, 3 steps, 2 ranks.
    assert (first["operator"], first["num_calls"]) == ("aten::item", 36)


def test_the_critical_path_fills_each_step(recordings, capsys):
    path = str(recordings / "healthy")
    document = json.loads(answer(capsys, "critical-path", path, "--format", "json"))
    overlap = answer(capsys, "overlap", path, "--by", "step", "--format", "csv")
    times = {(row["rank"], row["step"]): row["step_us"] for row in read_csv(overlap)}
    assert len(document["steps"]) == 4
    for step in document["steps"]:
        key = (str(step["rank"]), step["step"])
        assert step["length_us"] == float(times[key])
        parts = [
            value for name, value in step.items() if name.endswith("_us") and name != "length_us"
        ]
        assert sum(round(part * 1000) for part in parts) == round(step["length_us"] * 1000)
        segments = [s for s in document["segments"] if (str(s["rank"]), s["step"]) == key]
        total = sum(round(segment["length_us"] * 1000) for segment in segments)
        assert total == round(step["length_us"] * 1000)


def test_the_critical_path_of_one_rank_and_step(recordings, capsys):
    arguments = ["critical-path", str(recordings / "healthy"), "--rank", "1", "--step", "5"]
    rows = read_csv(answer(capsys, *arguments, "--format", "csv"))
    assert {(row["rank"], row["step"]) for row in rows} == {("1", "ProfilerStep#5")}
    assert "Where the paths spend most: mean of 1" in answer(capsys, *arguments)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("--rank", "7", "0-1"), ("--step", "99", "3-5"), ("--step", "3", "no step time")],
)
def test_a_path_that_does_not_exist_says_what_does(recordings, option, value, said, capsys):
    assert cli.execute(["critical-path", str(recordings / "healthy"), option, value]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


@pytest.mark.parametrize(
    ("limit", "status", "said"),
    [("5%", 1, "Failed: "), ("5", 1, "Failed: "), ("10%", 0, "Passed: "), (None, 0, "")],
)
def test_compare_fails_on_a_regression(tmp_path, even, capsys, limit, status, said):
    slow = written(tmp_path / "slow", period=110)
    options = [] if limit is None else ["--fail-on-regression", limit]
    text = answer(capsys, "compare", even, slow, *options, status=status)
    assert "110.0 us instead of 100.0 us" in text
    assert said in text


def test_a_regression_that_cannot_be_judged_does_not_pass(tmp_path, even, capsys):
    few = written(tmp_path / "few", steps=2)
    slow = written(tmp_path / "slow", steps=2, period=130)
    assert cli.execute(["compare", few, slow, "--fail-on-regression", "5%"]) == 2
    out, err = capsys.readouterr()
    assert "Not judged" in out
    assert "record at least three" in err


@pytest.mark.parametrize("limit", ["much", "-3%", "nan", "inf", ""])
def test_a_limit_that_is_no_percentage_is_refused(even, limit, capsys):
    assert cli.execute(["compare", even, even, f"--fail-on-regression={limit}"]) == 2
    assert "percentage" in capsys.readouterr().err


def test_compare_in_every_format(even, late, tmp_path, capsys):
    document = json.loads(answer(capsys, "compare", even, late, "--format", "json"))
    rows = read_csv(answer(capsys, "compare", even, late, "--format", "csv"))
    assert len(rows) == len(document["rows"])
    assert list(rows[0]) == list(document["rows"][0])
    [waiting] = [
        row
        for row in document["rows"]
        if row["name"] == "waiting_for_late_ranks" and row["rank"] is None
    ]
    # Rank 0 waits 20 us, rank 1 not at all.
    assert (waiting["before_us"], waiting["after_us"]) == (0, 10)
    assert document["regression"] is None
    target = tmp_path / "c.json"
    assert cli.execute(["compare", even, late, "-o", str(target)]) == 0
    assert json.loads(target.read_text())["rows"] == document["rows"]


def test_compare_says_which_recording_has_no_steps(even, tmp_path, capsys):
    bare = TraceBuilder(rank=0).kernel("gemm", 0, 10, launch=0).write(tmp_path)
    assert cli.execute(["compare", even, str(bare)]) == 2
    assert "in the second recording" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["ranks", "stalls", "critical-path"])
def test_the_output_may_not_be_an_input(verb, tmp_path, capsys):
    path = rank_builder(0, 30, 40).write(tmp_path)
    before = path.read_bytes()
    assert cli.execute([verb, str(path), "-o", str(path)]) == 2
    assert "one of the inputs" in capsys.readouterr().err
    assert path.read_bytes() == before
