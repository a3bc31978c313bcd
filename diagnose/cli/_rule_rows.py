"""A rule as a record: what ``rules``, ``explain`` and the documentation say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diagnose.rules._rule import Rule


def rule_row(rule: Rule) -> dict[str, Any]:
    """Id, title, what it needs, its thresholds and what it is tied to."""
    from diagnose import engine
    from diagnose.rules._rule import described

    return {
        "rule": rule.id,
        "title": rule.title,
        "area": rule.area,
        "confidence": rule.confidence,
        "needs": [need.value for need in rule.needs],
        "changes": list(rule.changes),
        # Rules that are yet to be written are named there too: nobody could look them up.
        "explains": [name for name in rule.explains if name in engine.rules()],
        "at_most": rule.at_most,
        "thresholds": [
            {"name": one.name, "default": one.default, "origin": one.origin}
            for one in described(rule.thresholds)
        ],
    }
