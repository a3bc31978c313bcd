"""The parts of a finding in words, and the card that they make."""

from __future__ import annotations

import dataclasses
import html
import math
import re

import pytest

from diagnose.findings import Diagnosis, Evidence, Gain, NotChecked, Threshold
from diagnose.reporters._html_findings import card, findings, not_checked, summary
from diagnose.wording.findings import (
    about,
    evidence_value,
    gain_words,
    threshold_words,
)
from diagnose.wording.summary import summary_sentences
from tests import report_tables
from tests.text import jobs


@pytest.fixture(scope="module")
def diagnosis():
    trace = jobs.two_ranks()
    found = report_tables.findings(trace.gpus, operator="<script>alert(1)</script>")
    return Diagnosis(trace, findings=found, checked=report_tables.checked())


def words(markup):
    return html.unescape(re.sub("<[^>]*>", " ", markup)).replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("lost_ns", 812_000.0, ("812.0", "us")),
        ("lost_ns", 3_400_000.0, ("3.40", "ms")),
        ("lost_ns", 12.34e9, ("12.3", "s")),
        ("lost_pct", 0.01, ("<0.1", "%")),
        ("bucket_bytes", 25 * 2**20, ("25", "MiB")),
        ("slower_ratio", 1.6049, ("1.60", "times")),
        ("num_kernels", 1234, ("1,234", "")),
        ("clock_mhz", 1980.0, ("1,980", "MHz")),
        ("operator", "aten::mm", ("aten::mm", "")),
        ("lost_ns", math.nan, ("-", "")),
    ],
)
def test_evidence_has_a_unit_that_suits_it(key, value, shown):
    assert evidence_value(Evidence(key, "label", value)) == shown


def test_a_threshold_says_when_it_was_changed():
    assert threshold_words(Threshold("min_lost_pct", 5.0, 5.0, "")) == "5.0 % (min_lost_pct)"
    changed = Threshold("min_lost_pct", 2.0, 5.0, "")
    assert threshold_words(changed) == "2.0 % (min_lost_pct, default 5.0)"
    assert threshold_words(None) == ""


def test_a_replayed_gain_has_its_range():
    gain = Gain("replay", "", ("no-straggler:rank=1",), 4.4e6, 4.9e6, 5.3e6, 49e6)
    assert gain_words(gain) == (
        "saves 4.90 ms",
        "a step (10.0 % of it), 4.40 ms to 5.30 ms, replayed: no-straggler:rank=1",
    )


def test_a_bound_is_called_one():
    gain = Gain("upper bound", "no change models it", high_ns=3.5e6, step_ns=35e6)
    assert gain_words(gain) == (
        "saves at most 3.50 ms",
        "a step (10.0 % of it); no change models it",
    )


def test_without_a_figure_there_is_none():
    figure, rest = gain_words(Gain("none", "no change models it"))
    assert figure == ""
    assert "not known: no change models it" in rest


def test_where_is_said_only_if_it_is_not_everywhere(diagnosis):
    one, two, *_ = diagnosis.findings
    assert list(about(diagnosis, one)) == ["high confidence", "rank 1", "2 steps"]
    assert list(about(diagnosis, two)) == ["high confidence"]


def test_the_summary_begins_with_the_gravest(diagnosis):
    first, second = summary_sentences(diagnosis)
    assert first.startswith("Everybody waits for one rank")
    assert "4.90 ms" in first
    assert "88.0 % of a step computes" in second
    assert "8.0 % is exposed communication" in second


def test_a_healthy_job_is_told_so(diagnosis):
    calm = dataclasses.replace(diagnosis, findings=diagnosis.findings[2:])
    first, second = summary_sentences(calm)
    assert first.startswith("Nothing was found")
    assert "3.5 % is idle" in second
    assert [words(one).strip() for one in summary(calm)] == [first, second]


def test_a_card_has_all_parts_in_order(diagnosis):
    shown = words(card(diagnosis, diagnosis.findings[0], "1"))
    parts = [
        "critical",
        "straggler-rank",
        "high confidence",
        "1. Everybody waits for one rank",
        "Rank 1 holds the others up",
        "saves 4.90 ms",
        "the others lose a step",
        "share of the step",
        "5.0 % (min_lost_pct)",
        "cost at most a step: what the others wait for it alone",
        "where most of it is: ",
        "What to do",
        "nvidia-smi -i 1 -q -d PERFORMANCE",
        "When this is wrong",
        "It explains 1 more finding",
        "1.1. Communication is not hidden",
        "saves at most 3.50 ms",
    ]
    places = [shown.find(part) for part in parts]
    assert -1 not in places, parts[places.index(-1)]
    assert places == sorted(places)


def test_severity_is_an_icon_and_a_word_too(diagnosis):
    for found in diagnosis.findings:
        drawn = card(diagnosis, found, "1")
        assert f'<svg class="icon {found.severity}"' in drawn
        assert f'<b class="{found.severity}">{found.severity}</b>' in drawn


def test_what_a_trace_says_is_escaped(diagnosis):
    drawn = "".join(findings(diagnosis))
    assert "<script>alert(1)" not in drawn
    assert "&lt;script&gt;alert(1)" in drawn


def test_gains_are_said_not_to_add_up(diagnosis):
    assert "not to be added" in words(findings(diagnosis)[0])
    alone = dataclasses.replace(diagnosis, findings=diagnosis.findings[:1])
    assert "not to be added" not in words("".join(findings(alone)))


def test_rules_without_what_they_need_are_grouped_by_the_reason(diagnosis):
    shown = re.sub(r"\s+", " ", words("".join(not_checked(diagnosis))))
    assert "gpu-throttled , power-capped : the recording has no telemetry" in shown
    assert "rank-skew : one rank was recorded; record all ranks." in shown
    assert "3 rules found nothing" in shown


def test_a_rule_that_failed_is_shown(diagnosis):
    failed = (NotChecked("host-sync", "Host", "KeyError: 'x'", "please report it"),)
    broken = dataclasses.replace(diagnosis, checked=report_tables.checked(failed=failed))
    shown = re.sub(r"\s+", " ", words("".join(not_checked(broken))))
    assert "host-sync failed: KeyError: 'x'; please report it." in shown


def test_without_rules_nothing_is_said_of_them():
    bare = Diagnosis(jobs.two_ranks())
    assert (summary(bare), findings(bare), not_checked(bare)) == ([], [], [])
