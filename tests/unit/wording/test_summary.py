"""The first sentence of a report: it must not call a job healthy that nobody looked at."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from diagnose.findings import Checked, Cost, Diagnosis, Finding, Gain, Headline, NotChecked
from diagnose.reporters._collectives import _labels
from diagnose.reporters._html_findings import card
from diagnose.wording.changes import in_full
from diagnose.wording.findings import gain_words
from diagnose.wording.summary import summary_sentences
from tests import report_tables
from tests.builder import TraceBuilder, build_trace

HEAD = Headline(2, 2, 40e6, 41.3, 29.3, 0.4, 29.0, 14.0)
TIMES = (
    "41.3 % of a step computes, 29.3 % is exposed communication, 29.0 % is idle (mean of 2 GPUs)."
)
NOTHING = "Nothing was found whose fix would surely save 3 % of a step or more"
GRAVE = Finding(
    rule="host-sync",
    title="The host waits",
    severity="warning",
    confidence="high",
    sentence="s.",
    key="host-sync",
    cost=Cost(2e6, "waiting"),
    gain=Gain("replay", "", ("no-host-sync",), 1.5e6, 1.5e6, 1.5e6, 40e6),
)
WORSE = replace(GRAVE, rule="worse", key="worse", title="Worse", severity="critical")


@pytest.fixture(scope="module")
def trace():
    return build_trace(TraceBuilder(rank=0).kernel("gemm", 0, 10, launch=0))


def said(trace, tables=MappingProxyType({}), findings=(), **checked) -> list[str]:
    results = Checked(headline=HEAD, **checked)
    return list(
        summary_sentences(Diagnosis(trace, tables=tables, findings=findings, checked=results))
    )


def test_a_job_that_rules_looked_at_is_healthy(trace):
    assert said(trace, clean=("a",)) == [f"{NOTHING}.", TIMES]


def test_what_the_baseline_accepts_is_no_health(trace):
    assert said(trace, clean=("a",), accepted=(GRAVE, WORSE))[0] == (
        "Nothing new was found whose fix would surely save 3 % of a step or more. The baseline "
        "accepts: Worse, whose fix saves 1.50 ms a step (3.8 % of it), replayed: no-host-sync; "
        "and 1 more problem."
    )
    mild = replace(GRAVE, severity="info")
    assert said(trace, clean=("a",), accepted=(mild,))[0] == f"{NOTHING}."


def test_rules_that_were_left_out_say_nothing_of_health(trace):
    assert (
        said(trace, clean=("a",), left_out=("b",))[0] == f"{NOTHING} by the rules that were chosen."
    )
    assert said(trace, left_out=("a", "b"))[0] == (
        "No rule looked for problems: those that apply were left out by choice."
    )


def test_rules_that_could_not_look_say_nothing_of_health(trace):
    missing = (NotChecked("a", "a", "cut off", "record it"),)
    assert said(trace, not_checked=missing)[0] == (
        "No rule could look for problems: the reasons are below."
    )


@pytest.mark.parametrize(
    ("then_ms", "saves"),
    [
        # Of 40 ms; the table's ranges are 0.3 ms either way, and 3 % are 1.2 ms.
        (30.0, "10.00 ms a step (25.0 % of it), 9.70 ms to 10.30 ms"),
        (38.5, "1.50 ms a step (3.8 % of it), 1.20 ms to 1.80 ms"),
        (38.51, None),
    ],
)
def test_a_stair_that_no_rule_covers_is_named(trace, then_ms, saves):
    rows = (
        (None, None, False, 40.0, 40.0, 40.0),
        ("step replayed from a CUDA graph", "cuda-graph", False, then_ms, 1.0, 50.0),
    )
    tables = {"staircase": report_tables.stairs(rows)}
    assert said(trace, tables, clean=("a",))[0] == (
        "No finding surely saves 3 % of a step, but replayed, one change does: step replayed from "
        f"a CUDA graph [cuda-graph], which saves {saves}."
        if saves
        else f"{NOTHING}."
    )


def test_much_that_may_be_saved_is_named_where_nothing_is_sure(trace):
    bound = Gain("upper bound", "r", high_ns=12e6, step_ns=40e6)
    mild = replace(GRAVE, severity="info", gain=bound)
    assert said(trace, findings=(mild,), clean=("a",))[0] == (
        f"{NOTHING}; at most 12.00 ms a step (30.0 % of it) may be saved: The host waits."
    )
    # 3.9 ms are 9.75 % of 40 ms: below the 10 % from which it is much.
    little = replace(mild, gain=bound._replace(high_ns=3.9e6))
    assert said(trace, findings=(little,), clean=("a",))[0] == f"{NOTHING}."


def test_a_gain_longer_than_the_likely_step_says_why():
    wide = Gain("replay", "", ("cuda-graph",), 11.6e6, 21e6, 36.6e6, 25.4e6)
    assert gain_words(wide)[1] == (
        "a step (82.7 % of it), 11.60 ms to 36.60 ms of a step of likely 25.40 ms, which has a "
        "range too, replayed: cuda-graph"
    )


def test_the_bound_is_no_change_that_could_be_made(trace):
    rows = (
        (None, None, False, 40.0, 40.0, 40.0),
        ("No host limit", "no-host-limit", True, 20.0, 19.0, 21.0),
    )
    tables = {"staircase": report_tables.stairs(rows)}
    assert said(trace, tables, clean=("a",))[0] == f"{NOTHING}."


def test_a_change_is_shown_with_the_amounts_it_was_tried_with():
    assert in_full("bucket-size") == "bucket-size:mb=25"
    assert in_full("bucket-size:mb=50") == "bucket-size:mb=50"
    assert in_full("no-host-sync") == "no-host-sync"
    assert in_full("of-another-version:mb=1") == "of-another-version:mb=1"


def test_sizes_that_would_read_the_same_get_more_digits():
    # 33,579,008 / 2**20 = 32.0234, 33,570,816 / 2**20 = 32.0156: both 32.02.
    assert _labels({33_579_008, 33_570_816, 8192}) == {
        33_579_008: "32.023 MiB",
        33_570_816: "32.016 MiB",
        8192: "8 KiB",
    }
    # One byte apart: no digit of a MiB tells them apart.
    assert _labels({33_579_008, 33_579_009}) == {
        33_579_008: "33579008 B",
        33_579_009: "33579009 B",
    }


def test_a_cost_without_step_times_is_of_the_window(trace):
    for steps, words in (
        (2, "cost at most a step: waiting"),
        (0, "cost at most in the window: waiting"),
    ):
        checked = Checked(headline=HEAD._replace(num_steps=steps))
        assert words in card(Diagnosis(trace, findings=(GRAVE,), checked=checked), GRAVE, "1")
