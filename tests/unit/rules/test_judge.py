"""Severity, gain, order, folding, what is not checked, and rules that crash."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from diagnose.analysis import Unavailable
from diagnose.findings import Checked, Cost, Evidence, Finding, Gain, Where
from diagnose.rules import Clean, Fix, Need, NotApplicable, NotJudged, Rule, Symptom, _folding
from diagnose.rules._facts import Facts
from diagnose.rules._folding import Judged, arranged
from diagnose.rules._gain import gain_of, severity_of
from diagnose.rules._judge import Judging, judge
from diagnose.trace import Gpu, Note, Trace
from tests.builder import TraceBuilder, build_trace

ZERO, ONE = Gpu(0, 0, 0), Gpu(1, 0, 1)
PAGE = "A title.\n\n" + "".join(
    f"## {name}\n- text\n\n"
    for name in (
        "Looks for",
        "Why it costs time",
        "How it decides",
        "Stays silent when",
        "What to do",
        "Example",
        "References",
    )
)


def replayed(low: float, likely: float = 0.0, high: float = 0.0) -> Gain:
    """Of a step of 100 ns: the figures are percent."""
    return Gain("replay", "", ("c",), low, likely or low, high or low, 100.0)


@pytest.mark.parametrize(
    ("confidence", "gain", "expected"),
    [
        ("high", replayed(10.0), "critical"),
        ("high", replayed(9.9), "warning"),
        ("medium", replayed(3.0), "warning"),
        ("high", replayed(2.9, 50.0, 60.0), "info"),
        ("high", replayed(-1.0, 5.0, 12.0), "info"),
        ("low", replayed(50.0), "hint"),
        ("high", Gain("upper bound", high_ns=90.0, step_ns=100.0), "info"),
        ("high", Gain("none"), "info"),
        ("low", Gain("none"), "hint"),
    ],
)
def test_the_one_table_of_severities(confidence, gain, expected):
    assert severity_of(confidence, gain) == expected


def test_a_fact_that_is_no_fault_stays_info():
    assert severity_of("high", replayed(50.0), "info") == "info"
    assert severity_of("low", replayed(50.0), "info") == "hint"


def rule_named(name: str, check, **rest) -> Rule:
    """A rule of a module that exists only here."""
    module = ModuleType(f"tests.made.{name}", PAGE)
    sys.modules[module.__name__] = module
    check.__module__ = module.__name__
    return Rule(check=check, **{"area": "host", "confidence": "high", **rest})


@pytest.fixture
def trace() -> Trace:
    return build_trace(TraceBuilder(rank=0, world_size=1).kernel("gemm", 0, 100, launch=0))


def facts_of(trace: Trace) -> Facts:
    from diagnose import engine

    return Facts(
        trace, lambda name, options: engine.run(engine.analyzers()[name], trace, **options)
    )


def outcome(trace: Trace, *rules: Rule, **judging) -> tuple[tuple[Finding, ...], Checked]:
    return judge(facts_of(trace), {rule.id: rule for rule in rules}, Judging(**judging))


def test_each_answer_has_its_place(trace):
    rules = [
        rule_named("a_found", lambda f, t: (Symptom(sentence="s"),)),
        rule_named("b_clean", lambda f, t: Clean("looked")),
        rule_named("c_empty", lambda f, t: ()),
        rule_named("d_unjudged", lambda f, t: NotJudged("no clock", "buy one")),
        rule_named("e_foreign", lambda f, t: NotApplicable()),
        rule_named("f_absent", lambda f, t: (f.table("stragglers"), ())[1]),
        rule_named("g_lacking", lambda f, t: 1 / 0, needs=(Need.TELEMETRY,)),
        rule_named("h_amd", lambda f, t: 1 / 0, needs=(Need.AMD,)),
    ]
    findings, checked = outcome(trace, *rules)
    assert [one.rule for one in findings] == ["a-found"]
    assert checked.clean == ("b-clean", "c-empty")
    assert checked.not_applicable == ("e-foreign", "h-amd")
    assert [(one.rule, one.because) for one in checked.not_checked] == [
        ("d-unjudged", "no clock"),
        ("f-absent", "there is one GPU only"),
        ("g-lacking", "no telemetry"),
    ]
    assert checked.not_checked[0].remedy == "buy one"
    assert checked.headline.step_ns == 100_000


def test_without_timed_steps_the_gain_is_of_the_window(trace):
    symptom = Symptom(sentence="s", cost=Cost(7.0, "idle"))
    [finding], _ = outcome(trace, rule_named("windowed", lambda f, t: (symptom,)))
    assert finding.gain == Gain(
        "upper bound",
        "no replayed change models the fix",
        high_ns=7.0,
        step_ns=100_000.0,
        per="window",
    )


def test_a_rule_that_crashes_does_not_stop_the_others(trace):
    def late(facts, thresholds):
        yield Symptom(sentence="said before the crash")
        raise KeyError("missing")

    rules = [rule_named("crash", late), rule_named("sound", lambda f, t: [Symptom(sentence="s")])]
    told = []
    findings, checked = judge(
        facts_of(trace),
        {rule.id: rule for rule in rules},
        Judging(),
        failed=lambda name, problem: told.append((name, type(problem))),
    )
    assert [one.rule for one in findings] == ["sound"]
    assert [(one.rule, one.because) for one in checked.failed] == [("crash", "KeyError: 'missing'")]
    assert told == [("crash", KeyError)]
    with pytest.raises(KeyError):
        judge(facts_of(trace), {"crash": rules[0]}, Judging(), debug=True)


def test_a_rule_that_returns_something_else_is_a_crash(trace):
    _, checked = outcome(trace, rule_named("text", lambda f, t: ["slow"]))
    assert "not str" in checked.failed[0].because


def test_evidence_that_names_no_threshold_is_a_crash(trace):
    symptom = Symptom(sentence="s", evidence=(Evidence("a_ns", "a", 1.0, "no_such"),))
    _, checked = outcome(trace, rule_named("wrong", lambda f, t: (symptom,)))
    assert "no_such" in checked.failed[0].because


def test_without_gpu_work_nothing_is_judged():
    trace = build_trace(TraceBuilder(rank=0).step(1, 0, 5))
    findings, checked = outcome(trace, rule_named("any", lambda f, t: 1 / 0))
    assert not findings
    assert checked.not_checked[0].because == "nothing ran on a GPU"
    assert checked.headline is None


def test_a_file_that_was_cut_off_is_not_blamed_on_the_process():
    whole = build_trace(TraceBuilder(rank=0).step(1, 0, 5))
    cut = replace(whole, notes=(Note("truncated", "warning", "cut off"),))
    _, checked = outcome(cut, rule_named("any", lambda f, t: 1 / 0))
    assert checked.not_checked[0].because == (
        "what is left of a file that was cut off holds no GPU work"
    )
    assert checked.not_checked[0].remedy == "copy or record the whole file"


def test_selection_ignoring_and_the_baseline(trace):
    rules = [
        rule_named(name, lambda f, t: (Symptom(sentence="s"),)) for name in ("one", "two", "three")
    ]
    findings, checked = outcome(trace, *rules, select=("two",))
    assert [f.rule for f in findings] == ["two"]
    assert checked.left_out == ("one", "three")
    assert [f.rule for f in outcome(trace, *rules, ignore=("two",))[0]] == ["one", "three"]
    findings, checked = outcome(trace, *rules, accepted=frozenset({"one"}))
    assert [f.rule for f in findings] == ["three", "two"]
    assert [f.rule for f in checked.accepted] == ["one"]
    assert checked.num_unmatched == 0
    assert (
        outcome(trace, *rules, accepted=frozenset({"one", "of another job"}))[1].num_unmatched == 1
    )


def test_the_key_holds_place_and_subject_but_no_figures():
    builders = [
        TraceBuilder(rank=rank, world_size=2).kernel("gemm", 0, 100, launch=0) for rank in (0, 1)
    ]
    trace = build_trace(*builders)
    where = Where(gpus=(trace.gpus[1],), streams=(20, 7))
    symptoms = (
        Symptom(sentence="1.5 ms", where=where, subject="aten::item"),
        Symptom(sentence="everywhere", where=Where(gpus=trace.gpus)),
    )
    findings, _ = outcome(trace, rule_named("a_rule", lambda f, t: symptoms))
    assert {one.key for one in findings} == {"a-rule@rank 1@stream 7,20@aten::item", "a-rule"}


def made(rule: str, gain: Gain, *, severity="info", gpus=(), steps=(), explains=(), affects=None):
    finding = Finding(
        rule=rule,
        title=rule,
        severity=severity,
        confidence="high",
        sentence=rule,
        key=rule,
        gain=gain,
        where=Where(gpus=gpus, steps=steps),
    )
    return Judged(finding, frozenset(gpus if affects is None else affects), explains)


def names(findings) -> list:
    return [(f.rule, names(f.folded)) if f.folded else f.rule for f in findings]


def test_order_is_by_wrong_results_the_least_the_likely_and_the_severity():
    found = [
        made("e", Gain("none")),
        made("d", Gain("upper bound", high_ns=50.0)),
        made("c", Gain("upper bound", high_ns=9.0), severity="warning"),
        made("g", Gain("none"), severity="critical"),
        made("b", replayed(4.0, 6.0)),
        made("a", replayed(4.0, 5.0)),
        made("f", replayed(5.0)),
    ]
    assert names(arranged(found)) == ["g", "f", "b", "a", "c", "d", "e"]


def test_what_is_explained_is_folded_where_both_are_felt():
    cause = made("cause", replayed(1.0), gpus=(ONE,), affects=(ZERO, ONE), explains=("effect",))
    here = made("effect", replayed(9.0), gpus=(ZERO,))
    assert names(arranged([here, cause])) == [("cause", ["effect"])]
    narrow = replace_affects(cause, (ONE,))
    assert names(arranged([here, narrow])) == ["effect", "cause"]
    everywhere = made("effect", replayed(9.0))
    assert names(arranged([everywhere, narrow])) == [("cause", ["effect"])]


def test_findings_that_nothing_explains_are_not_compared_with_each_other(monkeypatch):
    compared = []
    monkeypatch.setattr(_folding, "_explains", lambda *pair: compared.append(pair))
    many = [made("many", Gain("none"), explains=("other",)) for _ in range(50)]
    assert len(arranged([*many, made("other", Gain("none"))])) == 51
    assert len(compared) == 50


def replace_affects(judged: Judged, gpus) -> Judged:
    return judged._replace(affects=frozenset(gpus))


def test_other_steps_are_not_explained_and_a_hint_explains_nothing():
    cause = made("cause", replayed(1.0), steps=("1",), explains=("effect",))
    effect = made("effect", replayed(1.0), steps=("2",))
    assert names(arranged([cause, effect])) == ["cause", "effect"]
    hint = made("cause", Gain("none"), severity="hint", explains=("effect",))
    assert names(arranged([hint, effect])) == ["effect", "cause"]


def test_chains_fold_and_circles_lose_nothing():
    chain = [
        made("a", Gain("none"), explains=("b",)),
        made("b", Gain("none"), explains=("c",)),
        made("c", Gain("none")),
    ]
    assert names(arranged(chain)) == [("a", [("b", ["c"])])]
    circle = [
        made("a", Gain("none"), explains=("b",)),
        made("b", Gain("none"), explains=("a",)),
    ]
    top = arranged(circle)
    assert [one.rule for found in top for one in found.everything()] == ["b", "a"]


def facts_that_predict(answer) -> Facts:
    return SimpleNamespace(predict=lambda *changes: answer, step_ns=100.0, timed=True)  # type: ignore[return-value]


def prediction(*, bound: bool) -> SimpleNamespace:
    gain = SimpleNamespace(low=1.0, likely=2.0, high=4.0)
    change = SimpleNamespace(is_bound=bound)
    return SimpleNamespace(gain=gain, now=SimpleNamespace(likely=80.0), changes=(change,))


def test_the_gain_is_replayed_where_a_change_models_the_fix():
    rule = rule_named("with_change", lambda f, t: (), changes=("c",))
    gain = gain_of(facts_that_predict(prediction(bound=False)), rule, Symptom(sentence="s"))
    assert gain == Gain("replay", "", ("c",), 1.0, 2.0, 4.0, 80.0)
    assert gain.pct(gain.likely_ns) == 2.5


def test_a_change_out_of_reach_gives_a_bound_only():
    rule = rule_named("with_bound", lambda f, t: (), changes=("c",))
    gain = gain_of(facts_that_predict(prediction(bound=True)), rule, Symptom(sentence="s"))
    assert (gain.basis, gain.low_ns, gain.high_ns) == ("upper bound", None, 4.0)
    assert severity_of("high", gain) == "info"


def test_where_the_replay_cannot_the_cost_bounds_the_gain():
    rule = rule_named("unreplayable", lambda f, t: (), changes=("c",))
    facts = facts_that_predict(Unavailable("no launches were recorded"))
    symptom = Symptom(sentence="s", cost=Cost(7.0, "idle"))
    assert gain_of(facts, rule, symptom) == Gain(
        "upper bound", "no launches were recorded", high_ns=7.0, step_ns=100.0
    )
    without = replace(symptom, cost=None)
    assert gain_of(facts, rule, without) == Gain("none", "no launches were recorded")


def test_a_replay_that_crashes_costs_the_figure_and_not_the_finding():
    def broken(*changes):
        raise ZeroDivisionError("by zero")

    rule = rule_named("broken_replay", lambda f, t: (), changes=("c",))
    facts = SimpleNamespace(predict=broken, step_ns=100.0, timed=True)
    gain = gain_of(facts, rule, Symptom(sentence="s"))  # type: ignore[arg-type]
    assert gain == Gain("none", "the replay failed: by zero")
    with pytest.raises(ZeroDivisionError):
        gain_of(facts, rule, Symptom(sentence="s"), debug=True)  # type: ignore[arg-type]


def test_no_change_and_no_cost_says_why():
    rule = rule_named("unmodelled", lambda f, t: ())
    facts = facts_that_predict(None)
    fix = (Fix("do"),)
    assert gain_of(facts, rule, Symptom(sentence="s", advice=fix, no_gain="reliability")) == Gain(
        "none", "reliability"
    )
