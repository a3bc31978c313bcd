"""What is said of predictions and stairs, from tables made by hand."""

from __future__ import annotations

import csv
import io
import json

import pytest

from diagnose.analysis import Unavailable
from diagnose.analyzers.power.tables import table_of
from diagnose.findings import Diagnosis
from diagnose.replay.prediction import Prediction, Range
from diagnose.replay.search import Stair
from diagnose.replay.tables import REPLAY, STAIRCASE, row_of
from diagnose.reporters import Page
from diagnose.reporters._document import document
from diagnose.reporters._replay import write
from diagnose.wording.plain import width_of
from diagnose.wording.replay import fit_sentence, report_sentences
from tests.text import jobs

MS = 1e6
NAN = float("nan")
SHARED = {
    "num_steps": 3,
    "measured_step_ns": 46 * MS,
    "replayed_step_ns": 46.1 * MS,
    "repeated_step_ns": 45 * MS,
    "fidelity_pct": 0.22,
    "unexplained_pct": 1.3,
    "basis": "6.1 us an event, from 12 steps outside of the window.",
}


def times(name, low, likely, high):
    return {f"{name}_low_ns": low * MS, f"{name}_ns": likely * MS, f"{name}_high_ns": high * MS}


NOW = times("now", 26, 28, 30)
PREDICTION = {
    **SHARED,
    **NOW,
    **times("then", 10, 11.2, 14),
    **times("gain", 14, 16.8, 18),
    "changes": "cuda-graph\nno-host-sync",
    "titles": "captured in a graph\nhost synchronisations removed",
    "remarks": "Pauses inside of a graph are 1.3 us.\nOne wait a step was kept.",
}
FIRST = {
    **SHARED,
    **NOW,
    **times("then", 26, 28, 30),
    **times("gain", 0, 0, 0),
    **times("added_gain", 0, 0, 0),
    "place": 0,
    "is_bound": False,
}


def stair(place, likely, saves, name, bound=False):
    low, high = saves - 1, saves + 1
    return {
        **SHARED,
        **NOW,
        **times("then", likely - 1, likely, likely + 1),
        **times("gain", 28 - likely - 1, 28 - likely, 28 - likely + 1),
        **times("added_gain", low, saves, high),
        "place": place,
        "is_bound": bound,
        "change": name,
        "title": f"all {name}",
        "changes": name,
        "titles": f"all {name}",
    }


def replayed(**other):
    return Diagnosis(jobs.two_ranks(), {"replay": table_of(REPLAY, [PREDICTION | other])})


def stairs(*rows):
    return Diagnosis(jobs.two_ranks(), {"staircase": table_of(STAIRCASE, [FIRST, *rows])})


PREDICTED = """\
What if: captured in a graph [cuda-graph]
What if: host synchronisations removed [no-host-sync]

A step
                              likely  least   most  of now
                                  ms     ms     ms       %
recorded, with the profiler    46.00
the same, replayed unchanged   46.10
now, without the profiler      28.00  26.00  30.00
after the changes              11.20  10.00  14.00
saved                          16.80  14.00  18.00    60.0

Unchanged replay: 46.10 ms a step, measured 46.00 ms (0.2 %), 3 steps; 1.3 % of the path is pauses
  that nothing recorded explains.
6.1 us an event, from 12 steps outside of the window.
Note: Pauses inside of a graph are 1.3 us.
Note: One wait a step was kept.
What each change does and assumes: `diagnose whatif --list --format json`.
"""


def test_a_prediction_reads_as_expected():
    text = write(replayed(), "text", Page(100))
    assert text.split("\n\n", 1)[1] == PREDICTED, text


def test_a_prediction_without_a_change_says_only_how_it_fits():
    text = write(replayed(changes=None, titles=None, remarks=None), "text", Page(100))
    assert "What if" not in text
    assert "saved" not in text
    assert "Unchanged replay: 46.10 ms" in text


def test_stairs_name_what_each_adds_in_percent_of_the_first_row():
    text = write(stairs(stair(1, 14, 14, "first"), stair(2, 7, 7, "b", True)), "text", Page(120))
    [first] = [line for line in text.splitlines() if line.startswith("first")]
    # 14 of 28 ms.
    assert first.split() == [
        "first",
        *("14.00", "13.00", "15.00"),
        *("14.00", "13.00", "15.00", "50.0"),
        *("all", "first"),
    ]
    [bound] = [line for line in text.splitlines() if line.startswith("the bound  ")]
    assert bound.split()[-3:] == ["25.0", "all", "b"]
    assert "the bound (b): all b." in text


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_is_wider_than_the_page(width, unicode):
    page = Page(width, unicode=unicode)
    hostile = {"change": jobs.HOSTILE.splitlines()[0], "title": "x" * 300, "remarks": "\x1b[2J"}
    texts = [write(replayed(remarks="\x1b[2J " * 300), "text", page)]
    texts.append(write(stairs(stair(1, 14, 14, "first") | hostile), "text", page))
    for line in "\n".join(texts).splitlines():
        assert width_of(line) <= max(width, 80), line
        assert "\x1b" not in line
        assert unicode or line.isascii()


def test_markdown_is_escaped():
    text = write(replayed(remarks="a|b <script>"), "markdown", Page(100))
    assert "| saved | 16.80 | 14.00 | 18.00 | 60.0 |" in text
    assert "- Note: a\\|b &lt;script&gt;" in text


def test_json_and_csv_hold_the_same():
    document = json.loads(write(replayed(), "json", Page(100)))
    [one] = document["predictions"]
    assert document["staircase"] == document["changes"] == []
    assert one["changes"] == ["cuda-graph", "no-host-sync"]
    assert one["remarks"] == ["Pauses inside of a graph are 1.3 us.", "One wait a step was kept."]
    assert (one["then_low_us"], one["then_us"], one["then_high_us"]) == (10_000, 11_200, 14_000)
    [row] = csv.DictReader(io.StringIO(write(replayed(), "csv", Page(100))))
    assert row["changes"] == "cuda-graph | no-host-sync"
    assert float(row["gain_us"]) == 16_800
    assert list(row) == list(one)


def test_what_is_not_known_is_null_and_a_dash():
    unknown = dict.fromkeys(("fidelity_pct", "unexplained_pct", "replayed_step_ns"), NAN)
    [one] = json.loads(write(replayed(**unknown), "json", Page(100)))["predictions"]
    assert one["fidelity_pct"] is one["unexplained_pct"] is one["replayed_step_us"] is None
    text = write(replayed(**unknown), "text", Page(100))
    assert "nan" not in text
    [replayed_row] = [line for line in text.splitlines() if line.startswith("the same")]
    assert replayed_row.endswith(" -")


def test_the_fit_is_said_without_a_sign():
    table = table_of(REPLAY, [PREDICTION | {"fidelity_pct": -1.25, "unexplained_pct": NAN}])
    assert fit_sentence(table) == (
        "Unchanged replay: 46.10 ms a step, measured 46.00 ms (1.2 %), 3 steps."
    )


class TestReport:
    def test_the_staircase_takes_at_most_six_lines(self):
        rows = [stair(n, 28 - 3 * n, 3, f"c{n}") for n in range(1, 7)]
        said = list(report_sentences(stairs(*rows, stair(7, 5, 5, "all", True))))
        assert said == [
            "A step takes 28.00 ms (26.00 to 30.00) without the profiler, 46.00 ms as recorded; "
            "the unchanged replay is 0.2 % off.",
            "1. all c1: 25.00 ms, saves 3.00 ms (2.00 to 4.00) [c1]",
            "2. all c2: 22.00 ms, saves 3.00 ms (2.00 to 4.00) [c2]",
            "3. all c3: 19.00 ms, saves 3.00 ms (2.00 to 4.00) [c3]",
            "4. all c4: 16.00 ms, saves 3.00 ms (2.00 to 4.00) [c4]",
            "Bound, all all: 5.00 ms.",
        ]

    def test_where_nothing_saves_enough_it_is_one_sentence(self):
        [said] = report_sentences(stairs(stair(1, 27, 1, "x", True)))
        assert said.endswith(
            "No single replayed change can be counted on to save 1 % of the step. "
            "Bound, all x: 27.00 ms."
        )
        [said] = report_sentences(stairs())
        assert said.endswith("No single replayed change can be counted on to save 1 % of the step.")

    def test_both_formats_show_it_and_without_it_the_reason(self):
        content = document(stairs(stair(1, 14, 14, "first")), unicode=True)
        assert content.gains[1].startswith("1. all first: 14.00 ms")
        why = {"staircase": Unavailable("no step has a time", "record three steps")}
        content = document(Diagnosis(jobs.two_ranks(), {}, why), unicode=True)
        assert content.gains == ()
        assert content.missing == (
            "staircase: not available. No step has a time. Record three steps.",
        )

    def test_nobody_misses_it_where_there_is_no_gpu(self):
        why = {"staircase": Unavailable("the trace holds no GPU work")}
        assert document(Diagnosis(jobs.no_gpu_work(), {}, why), unicode=True).missing == ()


def test_a_prediction_fills_the_row():
    then = Range(1.0, 2.0, 3.0)
    prediction = Prediction(
        changes=(),
        num_steps=2,
        measured_step_ns=5.0,
        replayed_step_ns=4.0,
        repeated_step_ns=4.5,
        fidelity_pct=-20.0,
        unexplained_pct=0.0,
        now=Range(2.0, 3.0, 4.0),
        then=then,
        gain=Range(0.5, 1.0, 1.5),
        remarks=("one\nline", "two"),
        basis=(),
    )
    row = row_of(prediction)
    assert set(row) == {column.name for column in REPLAY.columns}
    assert row["changes"] is None
    assert row["remarks"] == "one line\ntwo"
    assert (row["then_low_ns"], row["then_ns"], row["then_high_ns"]) == then
    assert Stair((), prediction, then).is_bound is False
