"""Order of findings, and which are folded under one that explains them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
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
    parent: dict[int, int] = {}
    for at, one in enumerate(rest):
        for above, other in enumerate(rest):
            if _explains(other, one) and not _is_under(parent, above, at):
                parent[at] = above
                break
    return tuple(_with_folded(rest, parent, at) for at in range(len(rest)) if at not in parent)


def _place(judged: Judged) -> tuple[float, float, int, float, str, str]:
    """By the least that the fix saves, the likely gain, severity, and the most there can be."""
    finding, gain = judged.finding, judged.finding.gain
    return (
        -(gain.low_ns or 0.0),
        -(gain.likely_ns or 0.0),
        -SEVERITIES.index(finding.severity),
        -(gain.high_ns or 0.0),
        finding.rule,
        finding.key,
    )


def _explains(cause: Judged, effect: Judged) -> bool:
    """Whether one accounts for the other. A hint accounts for nothing."""
    if effect.finding.rule not in cause.explains or cause.finding.severity == "hint":
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


def _with_folded(rest: Sequence[Judged], parent: dict[int, int], at: int) -> Finding:
    folded = tuple(_with_folded(rest, parent, one) for one in parent if parent[one] == at)
    return replace(rest[at].finding, folded=folded)
