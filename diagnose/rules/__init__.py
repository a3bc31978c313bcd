"""The rules: from the analyses to findings. One file a rule, found by being there.

A public module of this package exports ``RULE``; its name is the rule's id, its docstring the
rule's page. A rule imports from here, and never another rule::

    from diagnose.rules import Evidence, Facts, Fix, Need, Rule, Symptom, Thresholds, limit
"""

from __future__ import annotations

from diagnose.findings import Cost, Evidence, Fix, Span, Where
from diagnose.rules._facts import Facts
from diagnose.rules._needs import Need
from diagnose.rules._rule import (
    Area,
    Clean,
    NotApplicable,
    NotJudged,
    Outcome,
    Rule,
    Symptom,
    Thresholds,
    limit,
)
from diagnose.rules._words import counted, duration, percent, runs, size, who

__all__ = [
    "Area",
    "Clean",
    "Cost",
    "Evidence",
    "Facts",
    "Fix",
    "Need",
    "NotApplicable",
    "NotJudged",
    "Outcome",
    "Rule",
    "Span",
    "Symptom",
    "Thresholds",
    "Where",
    "counted",
    "duration",
    "limit",
    "percent",
    "runs",
    "size",
    "who",
]
