"""Findings for text and Markdown: lines with a role, before either draws them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from diagnose.findings import Diagnosis, Finding
from diagnose.wording.findings import (
    about,
    by_reason,
    difference,
    evidence_value,
    gain_words,
    left_out,
    unmatched,
)
from diagnose.wording.numbers import counted
from diagnose.wording.plain import plain
from diagnose.wording.summary import summary_sentences

Role = Literal[
    "head",
    "sentence",
    "gain",
    "evidence",
    "step",
    "code",
    "more",
    "caveat",
    "folded",
    "quiet",
    "failed",
]
_WIDTH = 600
_MOST_NAMES = 12
_LONG_FROM_PCT = 10.0
"""Of the step: what may be gained, from which a finding of severity info gets all its lines."""


class Line(NamedTuple):
    """One line of the section, not yet wrapped. Its text is printable."""

    role: Role
    text: str
    label: str = ""
    """What stands before it in a column of its own: a number, ``evidence``, ``do``."""
    severity: str = ""


def summary_lines(diagnosis: Diagnosis, *, unicode: bool) -> list[str]:
    """The first sentences of a report."""
    return [plain(one, _WIDTH, unicode=unicode) for one in summary_sentences(diagnosis)]


def finding_lines(diagnosis: Diagnosis, *, unicode: bool) -> Iterator[Line]:
    """All findings with their evidence, gain and advice, most gain first."""
    for number, found in enumerate(diagnosis.findings, 1):
        for line in _lines(diagnosis, found, number):
            text = plain(line.text, _WIDTH, unicode=unicode)
            yield line._replace(text=text)


def closing_lines(diagnosis: Diagnosis, *, unicode: bool) -> Iterator[Line]:
    """What was not checked and why, and how many rules found nothing."""
    checked = diagnosis.checked
    if checked is None:
        return
    lines = []
    if len(diagnosis.findings) > 1:
        lines.append(Line("quiet", difference()))
    for reason, names in by_reason(checked.not_checked):
        because, remedy = reason
        everything = len(checked.not_checked) == len(names) > 1 and not _answered(diagnosis)
        said = f"{because}: {'all rules' if everything else _some(names)}"
        lines.append(Line("quiet", f"{said}; {remedy}." if remedy else f"{said}.", "Not checked"))
    lines += [
        Line("failed", f"{one.rule}: {one.because}; {one.remedy}.", "Failed")
        for one in checked.failed
    ]
    if checked.accepted:
        keys = _some([one.key for one in checked.accepted])
        lines.append(Line("quiet", f"{keys}.", "Accepted by the baseline"))
    if checked.num_unmatched:
        lines.append(Line("quiet", f"{unmatched(checked)}.", "Baseline"))
    lines += [Line("quiet", f"{one.rule}: {one.sentence}", "Checked") for one in checked.seen]
    quiet = []
    if checked.clean:
        quiet.append(f"{counted(len(checked.clean), 'rule')} found nothing")
    if checked.not_applicable:
        one = len(checked.not_applicable) == 1
        said = "does not apply" if one else "do not apply"
        quiet.append(f"{counted(len(checked.not_applicable), 'rule')} {said} to this job")
    if quiet:
        lines.append(Line("quiet", f"{'; '.join(quiet)} (`diagnose rules` lists all)."))
    if checked.left_out:
        lines.append(Line("quiet", f"{left_out(checked.left_out)}.", "Left out by choice"))
    if checked.settings:
        lines.append(Line("quiet", f"Settings from {checked.settings}."))
    for line in lines:
        yield line._replace(text=plain(line.text, _WIDTH, unicode=unicode))


def _answered(diagnosis: Diagnosis) -> bool:
    """Whether any rule could look."""
    checked = diagnosis.checked
    return bool(
        checked and (diagnosis.findings or checked.accepted or checked.clean or checked.failed)
    )


def _lines(diagnosis: Diagnosis, found: Finding, number: int) -> Iterator[Line]:
    yield Line("head", f"{found.rule}: {found.title}", f"{number}", found.severity)
    yield Line("sentence", found.sentence)
    amount, rest = gain_words(found.gain)
    gain = f"{amount} {rest}".strip()
    yield Line("gain", gain[:1].upper() + gain[1:], "gain")
    yield Line("evidence", "; ".join(_evidence(found)), "evidence")
    yield Line("evidence", ", ".join(about(diagnosis, found)), "where")
    brief = _is_brief(found)
    for place, fix in enumerate(found.advice[:1] if brief else found.advice, 1):
        yield Line("step", fix.text, f"{place}." if place > 1 else "do 1.")
        if fix.code:
            yield Line("code", fix.code)
    if brief:
        yield Line("more", f"More, and when not to: `diagnose explain {found.rule}`")
    for caveat in () if brief else found.caveats:
        yield Line("caveat", caveat, "unless" if caveat == found.caveats[0] else "")
    for one in found.folded:
        for under in one.everything():
            yield Line("folded", f"{under.rule}: {under.sentence}", "explains")


def _is_brief(found: Finding) -> bool:
    """Whether little is at stake: the page of the rule has the rest."""
    most = found.gain.pct(found.gain.high_ns) or 0.0
    return found.severity == "hint" or (found.severity == "info" and most < _LONG_FROM_PCT)


def _evidence(found: Finding) -> Iterator[str]:
    for one in found.evidence:
        value = " ".join(evidence_value(one)).strip()
        limit = found.threshold(one)
        yield f"{one.label} {value}" + (f" [{limit.name} {limit.value:g}]" if limit else "")


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
