"""``whatif`` as a command: changes, search, list, formats, errors; step times by hand."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from diagnose import cli
from diagnose.replay.change_text import known
from tests.builder import TraceBuilder


@pytest.fixture
def job(tmp_path):
    """One rank whose GPU is the limit: per step gemm 60 us, then all-reduce 40 us, one stream.

    The host is done with a step after 10 us and runs ahead; the GPU works without a pause
    from 20 us on, so a step takes 100 us.
    """
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(6):
        host, gpu = 10 * step, 100 * step + 20
        builder.step(step + 1, host, 10)
        builder.kernel("gemm", gpu, 60, launch=host + 1)
        builder.collective("allreduce", gpu + 60, 40, stream=7, elements=2**20, launch=host + 4)
    return str(builder.write(tmp_path))


def answer(capsys, *arguments, status=0):
    assert cli.execute(list(arguments)) == status
    out, err = capsys.readouterr()
    return out if status == 0 else err


def predicted(capsys, *arguments):
    document = json.loads(answer(capsys, "whatif", *arguments, "--format", "json"))
    [one] = document["predictions"]
    return one


def test_a_change_gives_the_step_worked_out_by_hand(job, capsys):
    one = predicted(capsys, job, "--change", "hide-communication")
    assert one["changes"] == ["hide-communication"]
    assert (one["measured_step_us"], one["replayed_step_us"]) == (100, 100)
    assert one["fidelity_pct"] == 0
    # 60 us of gemm are left, and the 40 are saved.
    assert (one["now_us"], one["then_us"], one["gain_us"]) == (100, 60, 40)


def test_several_changes_are_applied_together(job, capsys):
    first = ["--change", "faster-collectives:factor=2"]
    assert predicted(capsys, job, *first)["then_us"] == 80
    # The second finds the transfer halved already: 60 + 40 / 2 / 2.
    assert predicted(capsys, job, *first, *first)["then_us"] == 70


def test_without_a_change_it_searches_and_ends_with_the_bound(job, capsys):
    document = json.loads(answer(capsys, "whatif", job, "--format", "json"))
    assert document["predictions"] == []
    stairs = document["staircase"]
    assert [row["place"] for row in stairs] == list(range(len(stairs)))
    assert stairs[0]["change"] == []
    assert stairs[0]["then_us"] == 100
    assert stairs[-1]["is_bound"]
    assert "hide-communication" in stairs[-1]["change"]
    assert stairs[-1]["then_us"] <= 60
    assert json.loads(answer(capsys, "whatif", job, "--search", "--format", "json")) == document


def test_a_search_goes_on_after_the_changes_given(job, capsys):
    arguments = ["whatif", job, "--search", "--change", "faster-collectives", "--format", "json"]
    first = json.loads(answer(capsys, *arguments))["staircase"][0]
    assert first["changes"] == ["faster-collectives"]
    assert (first["now_us"], first["then_us"]) == (100, 80)


def test_the_text_can_be_pasted(job, capsys):
    text = answer(capsys, "whatif", job, "--change", "hide-communication")
    lines = text.splitlines()
    assert lines[0].endswith(".json")
    assert any(line.startswith("What if: ") for line in lines)
    assert [line.split()[-1] for line in lines if line.startswith("saved")] == ["40.0"]
    assert "Unchanged replay: 100.0 us a step, measured 100.0 us (0.0 %)" in text


@pytest.mark.parametrize("arguments", [("--change", "hide-communication"), ()])
def test_every_format_by_the_name_of_the_output(job, tmp_path, capsys, arguments):
    for name, begins in (("w.json", "{"), ("w.csv", ""), ("w.md", ""), ("w.txt", "")):
        target = tmp_path / name
        assert cli.execute(["whatif", job, *arguments, "-o", str(target)]) == 0
        text = target.read_text(encoding="utf-8")
        assert text.startswith(begins)
        assert capsys.readouterr() == ("", "")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "w.csv").read_text())))
    assert float(rows[0]["now_us"]) == 100
    assert "\n| :--" in (tmp_path / "w.md").read_text(encoding="utf-8")


def test_the_list_holds_every_change_and_reads_no_trace(capsys):
    text = answer(capsys, "whatif", "--list")
    rows = json.loads(answer(capsys, "whatif", "--list", "--format", "json"))["changes"]
    assert [row["id"] for row in rows] == list(known())
    for row in rows:
        assert row["id"] in text
        assert row["title"]
        assert row["does"]
        assert row["description"], f"{row['id']} does not say what it assumes"
    [faster] = [row for row in rows if row["id"] == "faster-collectives"]
    assert {"name": "factor", "default": "2"} in faster["parameters"]
    table = list(csv.DictReader(io.StringIO(answer(capsys, "whatif", "--list", "--format", "csv"))))
    assert [row["id"] for row in table] == list(known())
    assert "| :--" in answer(capsys, "whatif", "--list", "--format", "markdown")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("no-such-change", "no-such-change"),
        ("faster-collectives:speed=2", "speed"),
        ("faster-collectives:factor=much", "much"),
        ("faster-collectives:factor=0", "0"),
        ("", "change"),
    ],
)
def test_a_change_that_does_not_exist_is_refused_before_reading(change, said, capsys):
    err = answer(capsys, "whatif", "no-such-file", "--change", change, status=2)
    assert "no-such-file" not in err
    assert said in err
    assert "hint: " in err


def test_a_change_that_means_nothing_here_says_why(job, capsys):
    err = answer(capsys, "whatif", job, "--change", "pinned-copies", status=2)
    assert err.startswith("error: replay: pinned-copies: ")
    assert "hint: " in err
    both = ("--change", "faster-collectives", "--change", "pinned-copies")
    assert answer(capsys, "whatif", job, *both, status=2) == err
    assert (
        answer(capsys, "whatif", job, *both, "--search", status=2).split(": ", 2)[2]
        == (err.split(": ", 2)[2])
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--list", "x"], "--list"), ([], "PATH"), (["x", "--format", "xml"], "xml")],
)
def test_wrong_usage(arguments, said, capsys):
    err = answer(capsys, "whatif", *arguments, status=2)
    assert said in err
    assert "hint: " in err


def test_a_trace_without_steps_says_what_to_record(tmp_path, capsys):
    path = TraceBuilder(rank=0).kernel("gemm", 0, 10, launch=0).write(tmp_path)
    err = answer(capsys, "whatif", str(path), status=2)
    assert err.startswith("error: staircase: ")
    assert "hint: " in err


CASES = Path(__file__).parents[2] / "cases/data"


@pytest.mark.parametrize("case", sorted(p.name for p in CASES.iterdir() if p.is_dir()))
def test_every_case_gives_figures_or_a_reason(case, capsys):
    """Damaged, empty, hostile, without steps: an answer or an error with a hint, no failure."""
    for path in sorted(p for p in (CASES / case).rglob("*.json*") if p.name != "expected.json"):
        for change in ((), ("--change", "hide-communication")):
            status = cli.execute(["whatif", str(path), *change])
            out, err = capsys.readouterr()
            assert status in (0, 2), err
            assert "Traceback" not in err
            assert bool(out) == (status == 0)
            assert ("hint: " in err) == (status == 2), err
            assert "\x1b" not in out + err


def test_the_output_may_not_be_an_input(job, capsys):
    assert "one of the inputs" in answer(capsys, "whatif", job, "-o", job, status=2)


def test_the_report_shows_the_staircase_that_whatif_shows(job, capsys):
    report = json.loads(answer(capsys, "report", job, "--format", "json"))
    whatif = json.loads(answer(capsys, "whatif", job, "--format", "json"))
    assert report["staircase"] == whatif["staircase"]
    assert "What a change would gain" in answer(capsys, "report", job)
    assert "### What a change would gain" in answer(capsys, "report", job, "--format", "markdown")


def test_a_report_of_less_says_why_there_is_no_staircase(job, capsys):
    text = answer(capsys, "report", job, "--only", "gpu")
    assert "staircase: not available. It needs" in text
