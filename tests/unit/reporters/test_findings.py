"""How findings read: wrapped and indented, brief where little is at stake, safe to print."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.findings import (
    Checked,
    Diagnosis,
    Evidence,
    Finding,
    Fix,
    Gain,
    Headline,
    NotChecked,
    Threshold,
)
from diagnose.reporters._findings import closing_lines, finding_lines, summary_lines
from diagnose.reporters._findings_markdown import code, markdown
from diagnose.reporters._findings_text import styled
from diagnose.reporters.markdown import _gains, escaped
from tests.builder import TraceBuilder, build_trace

FOUND = Finding(
    rule="host-sync",
    title="The host waits",
    severity="warning",
    confidence="high",
    sentence="aten::item waits 6 times a step.",
    key="host-sync",
    evidence=(Evidence("idle_pct", "share of the step", 2.5, "min_idle_pct"),),
    thresholds=(Threshold("min_idle_pct", 1.0, 1.0, "judgement"),),
    gain=Gain("replay", "", ("no-host-sync",), 1.2e6, 1.5e6, 1.9e6, 4e7),
    advice=(Fix("Find it.", "set_sync_debug_mode('warn')"), Fix("Move it.")),
    caveats=("Harmless once a step.", "It bounds memory."),
)
HEAD = Headline(2, 3, 4e7, 80.0, 10.0, 1.0, 9.0, 50.0)


@pytest.fixture
def trace():
    return build_trace(TraceBuilder(rank=0).kernel("gemm", 0, 10, launch=0))


def text(trace, *findings, width=100, **checked) -> list[str]:
    diagnosis = Diagnosis(trace, findings=findings, checked=Checked(headline=HEAD, **checked))
    lines = [*finding_lines(diagnosis, unicode=True), *closing_lines(diagnosis, unicode=True)]
    return [one.text for one in styled(lines, width)]


def test_a_finding_is_laid_out(trace):
    assert text(trace, FOUND) == [
        "1. warning  host-sync: The host waits",
        "   aten::item waits 6 times a step.",
        "   gain     Saves 1.50 ms a step (3.8 % of it), 1.20 ms to 1.90 ms, replayed: "
        "no-host-sync",
        "   evidence share of the step 2.5 % [min_idle_pct 1]",
        "   where    high confidence",
        "      do 1. Find it.",
        "              set_sync_debug_mode('warn')",
        "         2. Move it.",
        "   unless   Harmless once a step.",
        "            It bounds memory.",
    ]


def test_gains_that_are_sure_or_none_read_so(trace):
    exact = replace(FOUND, gain=Gain("replay", "", ("c",), 1.5e6, 1.5e6, 1.5e6, 4e7))
    assert "   gain     Saves 1.50 ms a step (3.8 % of it), replayed: c" in text(trace, exact)
    nothing = replace(FOUND, gain=Gain("replay", "", ("c",), -5e3, -4e3, 2e6, 4e7))
    said = "   gain     Likely saves nothing of a step, -5.0 us to 2.00 ms, replayed: c"
    assert said in text(trace, nothing)
    bound = replace(FOUND, gain=Gain("upper bound", "why", (), high_ns=2e6, step_ns=4e7))
    assert "   gain     Saves at most 2.00 ms a step (5.0 % of it); why" in text(trace, bound)
    unknown = replace(FOUND, gain=Gain("none", "reliability"))
    said = "   gain     What the fix saves is not known: reliability."
    assert said in text(trace, unknown)


def test_little_at_stake_is_brief(trace):
    lines = text(trace, replace(FOUND, severity="info"))
    assert "            More, and when not to: `diagnose explain host-sync`" in lines
    assert not any("Move it." in line or "bounds memory" in line for line in lines)
    large = replace(FOUND, severity="info", gain=Gain("upper bound", high_ns=4e6, step_ns=4e7))
    assert any("Move it." in line for line in text(trace, large))


def test_figures_keep_their_units_when_wrapped(trace):
    long = replace(FOUND, sentence="x" * 85 + " and 12.5 % of 40.1 ms a step")
    lines = text(trace, long)
    assert not any(line.strip().startswith(("%", "ms")) for line in lines)
    assert all(len(line) <= 100 for line in lines)


def test_what_it_explains_stands_under_it(trace):
    under = replace(FOUND, rule="launch-bound", sentence="Idle.")
    assert "   explains launch-bound: Idle." in text(trace, replace(FOUND, folded=(under,)))


def test_several_gains_are_said_not_to_add_up(trace):
    assert any("not to be added" in line for line in text(trace, FOUND, FOUND))
    assert not any("not to be added" in line for line in text(trace, FOUND))


def test_rules_without_an_answer_are_grouped(trace):
    missing = [NotChecked(name, name, "no telemetry", "record it") for name in ("a", "b")]
    lines = text(
        trace,
        not_checked=(*missing, NotChecked("c", "c", "one rank was given")),
        failed=(NotChecked("d", "d", "KeyError: 1", "report it"),),
        clean=("e",),
        not_applicable=("f", "g"),
        left_out=("h", "i"),
        settings="diagnose.toml",
    )
    assert lines == [
        "Not checked: no telemetry: a, b; record it.",
        "Not checked: one rank was given: c.",
        "Failed: d: KeyError: 1; report it.",
        "1 rule found nothing; 2 rules do not apply to this job (`diagnose rules` lists all).",
        "Left out by choice: h, i.",
        "Settings from diagnose.toml.",
    ]


def test_where_no_rule_could_look_that_is_one_line(trace):
    missing = tuple(NotChecked(str(n), "t", "nothing ran on a GPU", "record it") for n in range(60))
    assert text(trace, not_checked=missing) == [
        "Not checked: nothing ran on a GPU: all rules; record it."
    ]


def test_the_summary_is_of_the_gravest_or_says_healthy(trace):
    checked = Checked(headline=HEAD)
    [grave, times] = summary_lines(
        Diagnosis(trace, findings=(FOUND, FOUND), checked=checked), unicode=True
    )
    assert grave.startswith("The host waits and 1 more problem: fixing it saves 1.50 ms a step")
    assert times == (
        "80.0 % of a step computes, 10.0 % is exposed communication, 9.0 % is idle "
        "(mean of 2 GPUs)."
    )
    [healthy, _] = summary_lines(Diagnosis(trace, checked=checked), unicode=True)
    assert healthy == "Nothing was found whose fix would surely save 3 % of a step or more."


def test_names_from_a_trace_cannot_leave_their_line(trace):
    hostile = replace(FOUND, sentence="\x1b[31mred\n2. critical  forged\u202e")
    lines = text(trace, hostile)
    assert "   \\x1b[31mred\\n2. critical  forged\\u202e" in lines


def test_markdown_is_escaped_and_code_stays_code(trace):
    hostile = replace(FOUND, sentence="<img src=x> [a](b) `c`")
    diagnosis = Diagnosis(trace, findings=(hostile,), checked=Checked())
    said = list(markdown(finding_lines(diagnosis, unicode=True), escaped))
    assert "&lt;img src=x&gt; \\[a\\](b) \\`c\\`  " in said
    assert "   `set_sync_debug_mode('warn')`" in said
    assert "1. Find it." in said
    assert code("a`b") == "``a`b``"
    assert code("`a") == "`` `a ``"


def test_our_own_commands_are_code_in_markdown_and_nothing_else_is():
    assert escaped("see `diagnose info`, not `rm`") == "see `diagnose info`, not \\`rm\\`"
    assert escaped("\\`diagnose a|b`") == "\\\\\\`diagnose a\\|b\\`"


def test_a_pointer_to_the_page_stands_within_the_step(trace):
    brief = replace(FOUND, severity="info")
    lines = list(
        markdown(finding_lines(Diagnosis(trace, findings=(brief,)), unicode=True), escaped)
    )
    at = lines.index("   More, and when not to: `diagnose explain host-sync`")
    assert lines[at - 1] == ""
    assert lines[at - 2] == "   `set_sync_debug_mode('warn')`"


def test_what_follows_numbered_stairs_is_no_part_of_the_last():
    assert list(_gains(["A step.", "1. one: 3 ms", "2. two: 2 ms", "Bound: 1 ms."])) == [
        "A step.  ",
        "",
        "1. one: 3 ms  ",
        "2. two: 2 ms  ",
        "",
        "Bound: 1 ms.  ",
    ]
