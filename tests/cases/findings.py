"""Checks what a case says of findings: those that must and must not be made."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from diagnose import engine
from diagnose.findings import Finding
from diagnose.rules._judge import Judging
from diagnose.trace import Trace
from tests.cases import words

_TOLERANCE_US = 0.001


def failures(trace: Trace, expect: dict[str, Any]) -> Iterator[str]:
    """What does not hold. A key or a rule that is not known is a failure too."""
    crashed: list[str] = []
    diagnosis = engine.diagnose(
        trace,
        {},
        judging=Judging(),
        failed=lambda name, problem: crashed.append(f"{name} crashed: {problem!r}"),
    )
    yield from crashed
    found = [one for top in diagnosis.findings for one in top.everything()]
    unknown = expect.keys() - {"must", "must_not"}
    if unknown:
        yield f"findings: the runner does not know {sorted(unknown)}"
    for wanted in expect.get("must", []):
        same = [one for one in found if one.rule == wanted["id"]]
        if not same:
            yield f"findings: no {wanted['id']!r}, only {sorted({one.rule for one in found})}"
            continue
        outcomes = [list(_differences(trace, one, wanted)) for one in same]
        yield from min(outcomes, key=len)
    for rule in expect.get("must_not", []):
        if rule not in engine.rules():
            yield f"findings: there is no rule {rule!r}"
        if any(one.rule == rule for one in found):
            yield f"findings: {rule!r} must not be found"


def _differences(trace: Trace, found: Finding, wanted: dict[str, Any]) -> Iterator[str]:
    evidence = {one.key: one.value for one in found.evidence}
    for key, value in wanted.items():
        if key == "id":
            continue
        if key == "rank":
            if found.where.ranks != (value,):
                yield f"{found.rule}: ranks {found.where.ranks}, expected {value}"
        elif key == "stream":
            if found.where.streams != (value,):
                yield f"{found.rule}: streams {found.where.streams}, expected {value}"
        elif key == "must_mention":
            said = " ".join([found.sentence, *(f"{fix.text} {fix.code}" for fix in found.advice)])
            if value not in said:
                yield f"{found.rule}: {value!r} is not mentioned in {said!r}"
        elif words.EVIDENCE.get(key) not in evidence:
            yield f"{found.rule}: no evidence for {key!r}, only {sorted(evidence)}"
        else:
            yield from _compared(found.rule, key, evidence[words.EVIDENCE[key]], value)


def _compared(rule: str, key: str, value: float | str, wanted: float | str) -> Iterator[str]:
    if isinstance(value, str) or isinstance(wanted, str):
        same = value == wanted
    elif "_us" in key:
        same = math.isclose(value / 1000, wanted, abs_tol=_TOLERANCE_US, rel_tol=0)
    else:
        same = math.isclose(value, wanted, rel_tol=1e-9)
    if not same:
        yield f"{rule}: {key} {value}, expected {wanted}"
