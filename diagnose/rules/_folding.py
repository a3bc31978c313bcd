"""Order of findings, and which are folded under one that explains them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from diagnose.findings import SEVERITIES, Finding
from diagnose.trace import Gpu


class Judged(NamedTuple):
    """A finding with what folding needs to know."""

    finding: Finding
    affects: frozenset[Gpu]
    """Empty: all."""
    explains: tuple[str, ...]


def arranged(judged: Sequence[Judged]) -> tuple[Finding, ...]:
    """The findings in order, each that another explains folded under the first that does."""
    rest = sorted(judged, key=_place)
    # Few may explain a rule, where the findings of one rule may be thousands.
    causes: dict[str, list[int]] = {}
    for above, other in enumerate(rest):
        for rule in dict.fromkeys(other.explains):
            causes.setdefault(rule, []).append(above)
    parent: dict[int, int] = {}
    folded: dict[int, list[int]] = {}
    for at, one in enumerate(rest):
        for above in causes.get(one.finding.rule, ()):
            if _explains(rest[above], one) and not _is_under(parent, above, at):
                parent[at] = above
                folded.setdefault(above, []).append(at)
                break
    return tuple(_with_folded(rest, folded, at) for at in range(len(rest)) if at not in parent)


def _place(judged: Judged) -> tuple[bool, float, float, int, float, str, str]:
    """By the least that the fix saves, the likely gain, severity, and the most there can be.

    Wrong results go first: how fast they are got is of no interest.
    """
    finding, gain = judged.finding, judged.finding.gain
    is_grave = finding.severity in ("warning", "critical")
    return (
        not (is_grave and gain.basis == "none"),
        -(gain.low_ns or 0.0),
        -(gain.likely_ns or 0.0),
        -SEVERITIES.index(finding.severity),
        -(gain.high_ns or 0.0),
        finding.rule,
        finding.key,
    )


def _explains(cause: Judged, effect: Judged) -> bool:
    """Whether one accounts for the other, whose rule it explains. A hint accounts for nothing."""
    if cause.finding.severity == "hint":
        return False
    steps = set(cause.finding.where.steps), set(effect.finding.where.steps)
    return _meet(cause.affects, set(effect.finding.where.gpus)) and _meet(*steps)


def _meet(one: AbstractSet[Hashable], other: AbstractSet[Hashable]) -> bool:
    return not one or not other or bool(one & other)


def _is_under(parent: dict[int, int], at: int, above: int) -> bool:
    """Whether ``at`` already stands under ``above``: rules that explain each other."""
    while at in parent:
        at = parent[at]
        if at == above:
            return True
    return False


def _with_folded(rest: Sequence[Judged], folded: Mapping[int, Sequence[int]], at: int) -> Finding:
    under = tuple(_with_folded(rest, folded, one) for one in folded.get(at, ()))
    return replace(rest[at].finding, folded=under)
