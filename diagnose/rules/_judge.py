"""Runs the rules on the facts of one trace; one that crashes does not stop the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diagnose.findings import Checked, Finding, Headline, NotChecked, Seen, Threshold
from diagnose.rules._facts import AbsentTableError, Facts
from diagnose.rules._folding import Judged, arranged
from diagnose.rules._gain import gain_of, severity_of
from diagnose.rules._headline import headline_of
from diagnose.rules._rule import (
    Clean,
    NotApplicable,
    NotJudged,
    Rule,
    Rules,
    Symptom,
    Thresholds,
    described,
)
from diagnose.rules._settings import Settings

if TYPE_CHECKING:
    from diagnose.readers.nccl_tests import ReferencePoint

_FAILED = "this is a bug: please report it with the output of the same command under --debug"
_NO_GPU_WORK = NotJudged("nothing ran on a GPU", "record the processes that train on GPUs")
_CUT_OFF = NotJudged(
    "what is left of a file that was cut off holds no GPU work", "copy or record the whole file"
)


@dataclass(frozen=True)
class Judging:
    """Which rules are run, against what, and which findings are accepted already."""

    settings: Settings = field(default_factory=Settings)
    select: tuple[str, ...] = ()
    """Only these rules; empty: those that the settings select."""
    ignore: tuple[str, ...] = ()
    accepted: frozenset[str] = frozenset()
    """Keys of findings."""
    reference: tuple[ReferencePoint, ...] = ()
    """What nccl-tests measured on the ranks of this job."""

    def chosen(self, rules: Rules) -> list[Rule]:
        """The rules to run. What the command line selects wins over the settings' ``ignore``."""
        select = self.select or self.settings.select
        ignore = {*self.ignore, *(() if self.select else self.settings.ignore)}
        return [
            rule for id, rule in rules.items() if id not in ignore and (not select or id in select)
        ]

    def settings_used(self) -> str:
        """The settings file, if anything in it counts; else empty."""
        one = self.settings
        choice = () if self.select else (*one.select, *one.ignore)
        return one.path if one.thresholds or choice else ""


def judge(
    facts: Facts,
    rules: Rules,
    judging: Judging,
    *,
    debug: bool = False,
    failed: Callable[[str, Exception], None] | None = None,
) -> tuple[tuple[Finding, ...], Checked]:
    """The findings, in order and folded, and what came of the other rules.

    With ``debug`` the exception of a rule that crashes is raised; ``failed`` is told otherwise.
    """
    found: list[Judged] = []
    not_checked, crashed = [], []
    clean, not_applicable, seen = [], [], []
    chosen = judging.chosen(rules)
    for rule in chosen:
        thresholds = judging.settings.thresholds.get(rule.id, rule.thresholds)
        try:
            answer = _answer(rule, facts, thresholds)
            symptoms = answer if isinstance(answer, tuple) else ()
            found += [_judged(facts, rule, thresholds, one, debug=debug) for one in symptoms]
        except Exception as problem:
            if debug:
                raise
            if failed is not None:
                failed(rule.id, problem)
            said = f"{type(problem).__name__}: {problem}"
            crashed.append(NotChecked(rule.id, rule.title, said, _FAILED))
            continue
        if isinstance(answer, NotJudged):
            not_checked.append(NotChecked(rule.id, rule.title, answer.because, answer.remedy))
        elif isinstance(answer, NotApplicable):
            not_applicable.append(rule.id)
        elif not symptoms:
            clean.append(rule.id)
            if isinstance(answer, Clean) and answer.told:
                seen.append(Seen(rule.id, answer.because))
    accepted = tuple(one.finding for one in found if one.finding.key in judging.accepted)
    new = [one for one in found if one.finding.key not in judging.accepted]
    return arranged(new), Checked(
        not_checked=tuple(not_checked),
        failed=tuple(crashed),
        clean=tuple(clean),
        seen=tuple(seen),
        not_applicable=tuple(not_applicable),
        accepted=accepted,
        num_unmatched=len(judging.accepted - {one.finding.key for one in found}),
        headline=_headline(facts),
        left_out=tuple(sorted(rules.keys() - {rule.id for rule in chosen})),
        settings=judging.settings_used(),
    )


def _headline(facts: Facts) -> Headline | None:
    try:
        return headline_of(facts)
    except AbsentTableError:
        return None


def _answer(
    rule: Rule, facts: Facts, thresholds: Thresholds
) -> tuple[Symptom, ...] | Clean | NotJudged | NotApplicable:
    try:
        if not facts.gpus:
            cut = any(note.code == "truncated" for note in facts.trace.notes)
            return _CUT_OFF if cut else _NO_GPU_WORK
        for need in rule.needs:
            lack = need.lack(facts)
            if lack is not None:
                return NotJudged(lack.because, lack.remedy) if lack.applies else NotApplicable()
        outcome = rule.check(facts, thresholds)
        if isinstance(outcome, (Clean, NotJudged, NotApplicable)):
            return outcome
        # A generator runs only here: what it raises belongs to the rule.
        symptoms = tuple(outcome)
    except AbsentTableError as absent:
        return NotJudged(absent.reason.because, absent.reason.remedy)
    strange = [one for one in symptoms if not isinstance(one, Symptom)]
    if strange:
        raise TypeError(f"a rule returns symptoms, not {type(strange[0]).__name__}")
    return symptoms


def _judged(
    facts: Facts, rule: Rule, thresholds: Thresholds, symptom: Symptom, *, debug: bool
) -> Judged:
    confidence = symptom.confidence or rule.confidence
    gain = gain_of(facts, rule, symptom, debug=debug)
    finding = Finding(
        rule=rule.id,
        title=rule.title,
        severity=symptom.severity or severity_of(confidence, gain, rule.at_most),
        confidence=confidence,
        sentence=symptom.sentence,
        key=_key(facts, rule, symptom),
        where=symptom.where,
        evidence=symptom.evidence,
        thresholds=_used(thresholds, rule, symptom),
        cost=symptom.cost,
        gain=gain,
        advice=symptom.advice,
        caveats=symptom.caveats,
    )
    explains = rule.explains if symptom.explains is None else symptom.explains
    return Judged(finding, frozenset(symptom.affects or symptom.where.gpus), explains)


def _used(thresholds: Thresholds, rule: Rule, symptom: Symptom) -> tuple[Threshold, ...]:
    named = {evidence.threshold for evidence in symptom.evidence} - {None}
    known = {one.name: one for one in described(rule.thresholds)}
    if not named <= known.keys():
        raise KeyError(f"evidence names no threshold of {rule.id}: {sorted(map(str, named))}")
    return tuple(
        Threshold(one.name, getattr(thresholds, one.name), one.default, one.origin)
        for one in known.values()
        if one.name in named
    )


def _key(facts: Facts, rule: Rule, symptom: Symptom) -> str:
    """``rule@rank 0,1@stream 7@subject``: neither times nor figures."""
    parts = [rule.id]
    where = symptom.where
    if where.gpus and len(where.gpus) < len(facts.gpus):
        names = {facts.trace.sources[gpu.source].label for gpu in where.gpus}
        parts.append(",".join(sorted(names)))
    if where.streams:
        parts.append("stream " + ",".join(map(str, sorted(set(where.streams)))))
    if symptom.subject:
        parts.append(symptom.subject)
    return "@".join(parts)
