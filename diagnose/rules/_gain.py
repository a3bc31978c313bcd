"""What a fix would save of a step, and how grave that makes a finding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from diagnose.analysis import Unavailable
from diagnose.findings import SEVERITIES, Confidence, Cost, FindingSeverity, Gain

if TYPE_CHECKING:
    from diagnose.rules._facts import Facts
    from diagnose.rules._rule import Rule, Symptom

CRITICAL_PCT = 10.0
"""Of the step, from which a sure gain is critical. Judgement: what nobody would leave lying."""
WARNING_PCT = 3.0
"""Of the step, from which a sure gain is a warning. Judgement: worth a change of one line."""


def severity_of(
    confidence: Confidence, gain: Gain, at_most: FindingSeverity = "critical"
) -> FindingSeverity:
    """The one table of severities: by confidence, then by the lower bound of the gain."""
    if confidence == "low":
        return "hint"
    sure = (gain.pct(gain.low_ns) if gain.basis == "replay" else None) or 0.0
    found: FindingSeverity = (
        "critical" if sure >= CRITICAL_PCT else "warning" if sure >= WARNING_PCT else "info"
    )
    return min(found, at_most, key=SEVERITIES.index)


def gain_of(facts: Facts, rule: Rule, symptom: Symptom, *, debug: bool = False) -> Gain:
    """The replay of the change that models the fix; else at most the cost; else none, and why.

    A replay that crashes costs the figure, not the finding; with ``debug`` it is raised.
    """
    changes = rule.changes if symptom.changes is None else symptom.changes
    if not changes:
        return _bound(facts, symptom.cost, symptom.no_gain or "no replayed change models the fix")
    try:
        predicted = facts.predict(*changes)
    except Exception as problem:
        if debug:
            raise
        return _bound(facts, symptom.cost, f"the replay failed: {problem}")
    if isinstance(predicted, Unavailable):
        return _bound(facts, symptom.cost, predicted.because)
    gain, step = predicted.gain, predicted.now.likely
    if any(change.is_bound for change in predicted.changes):
        reason = "the replayed change is out of reach: it shows the most there is to gain"
        return Gain("upper bound", reason, changes, high_ns=max(gain.high, 0.0), step_ns=step)
    return Gain("replay", "", changes, gain.low, gain.likely, gain.high, step)


def _bound(facts: Facts, cost: Cost | None, reason: str) -> Gain:
    if cost is None or math.isnan(cost.per_step_ns):
        return Gain("none", reason)
    per: Literal["step", "window"] = "step" if facts.timed else "window"
    return Gain("upper bound", reason, high_ns=cost.per_step_ns, step_ns=facts.step_ns, per=per)
