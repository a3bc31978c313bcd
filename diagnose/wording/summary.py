"""The first sentences of a report: what is worst, or what may be concluded from finding nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diagnose.findings import SEVERITIES, Checked, Diagnosis, Finding, Gain
from diagnose.wording.changes import in_full, split
from diagnose.wording.findings import figure, gain_words
from diagnose.wording.numbers import counted, percent

_GRAVE = ("warning", "critical")
_LEAST_PCT = 3.0
"""Of the step: from here on a finding is a warning, and a stair worth the first sentence."""
_MUCH_PCT = 10.0
_NOTHING = "whose fix would surely save 3 % of a step or more"


def summary_sentences(diagnosis: Diagnosis) -> Iterator[str]:
    """The gravest finding, or why there is none; then where a step's time went."""
    checked = diagnosis.checked
    head = None if checked is None else checked.headline
    if checked is None or head is None:
        return
    grave = [one for one in diagnosis.findings if one.severity in _GRAVE]
    if grave:
        more = f" and {counted(len(grave) - 1, 'more problem')}" if len(grave) > 1 else ""
        worst = grave[0]
        saves, title = _saves(worst.gain), worst.title
        if worst.gain.basis == "none":
            title = f"Results may be wrong: {title[0].lower()}{title[1:]}"
        yield f"{title}{more}{f': fixing it {saves}' if saves else ''}."
    else:
        yield _calm(diagnosis, checked)
    whole = "a step" if head.num_steps else "the window"
    said = [f"{percent(head.compute_pct)} % of {whole} computes"]
    if head.hidden_pct is not None:
        said.append(f"{percent(head.exposed_pct)} % is exposed communication")
    said += [f"{percent(head.idle_pct)} % is idle"]
    yield f"{', '.join(said)} (mean of {counted(head.num_gpus, 'GPU')})."


def _calm(diagnosis: Diagnosis, checked: Checked) -> str:
    """That nothing grave was found, and what that is worth."""
    accepted = [one for one in checked.accepted if one.severity in _GRAVE]
    if accepted:
        worst = max(accepted, key=_gravity)
        saves = _saves(worst.gain)
        more = f"; and {counted(len(accepted) - 1, 'more problem')}" if len(accepted) > 1 else ""
        what = f"{worst.title}{f', whose fix {saves}' if saves else ''}{more}"
        return f"Nothing new was found {_NOTHING}. The baseline accepts: {what}."
    if not (diagnosis.findings or checked.accepted or checked.clean):
        if checked.left_out and not (checked.not_checked or checked.failed):
            return "No rule looked for problems: those that apply were left out by choice."
        if checked.not_checked or checked.failed:
            return "No rule could look for problems: the reasons are below."
    if checked.left_out:
        return f"Nothing was found {_NOTHING} by the rules that were chosen."
    stair, most = _stair(diagnosis), _possible(diagnosis.findings)
    if stair is not None:
        said = f"No finding surely saves 3 % of a step, but replayed, one change does: {stair}."
        return f"{said} {most[0].upper()}{most[1:]}." if most else said
    return f"Nothing was found {_NOTHING}{f'; {most}' if most else ''}."


def _possible(findings: Iterable[Finding]) -> str | None:
    """The finding that may save most, where that is much and only its least is small."""
    known = [(one.gain.pct(one.gain.high_ns) or 0.0, one) for one in findings]
    share, found = max(known, key=lambda one: one[0], default=(0.0, None))
    if found is None or found.gain.high_ns is None or share < _MUCH_PCT:
        return None
    per = "a step" if found.gain.per == "step" else "in the window"
    most = " ".join(figure(found.gain.high_ns, "ns"))
    return f"at most {most} {per} ({percent(share)} % of it) may be saved: {found.title}"


def _stair(diagnosis: Diagnosis) -> str | None:
    """The first change of the staircase, if it surely saves enough."""
    table = diagnosis.tables.get("staircase")
    if table is None or len(table) < 2 or table["is_bound"][1]:
        return None
    now = float(table["then_ns"][0])
    low, likely, high = (
        float(table[name][1])
        for name in ("added_gain_low_ns", "added_gain_ns", "added_gain_high_ns")
    )
    if not (now > 0 and 100 * low >= _LEAST_PCT * now):
        return None
    gain = Gain("replay", low_ns=low, likely_ns=likely, high_ns=high, step_ns=now)
    title = ", ".join(split(table.texts("title")[1]))
    change = " and ".join(map(in_full, split(table.texts("change")[1])))
    return f"{title} [{change}], which {_saves(gain)}"


def _gravity(found: Finding) -> tuple[int, float]:
    return SEVERITIES.index(found.severity), found.gain.likely_ns or found.gain.high_ns or 0.0


def _saves(gain: Gain) -> str:
    amount, rest = gain_words(gain)
    return f"{amount} {rest}" if amount else ""
