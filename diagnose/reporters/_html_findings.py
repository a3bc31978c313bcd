"""Findings as cards: severity, what the fix saves, the evidence, what to do, when that is wrong."""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.findings import Checked, Diagnosis, Evidence, Finding, Fix
from diagnose.reporters._html_page import icon
from diagnose.reporters._html_text import Html, element, join, name, prose, text
from diagnose.wording.findings import (
    a_step,
    about,
    by_reason,
    difference,
    evidence_value,
    gain_words,
    left_out,
    threshold_words,
    unmatched,
)
from diagnose.wording.numbers import counted
from diagnose.wording.summary import summary_sentences


def summary(diagnosis: Diagnosis) -> list[Html]:
    """The first sentences of the page; those of a healthy job say so."""
    said = list(summary_sentences(diagnosis))
    return [
        element("p", prose(one), class_="said" if number else "lead")
        for number, one in enumerate(said)
    ]


def findings(diagnosis: Diagnosis) -> list[Html]:
    """A card a finding, in their order; what they have in common above."""
    cards = [card(diagnosis, one, str(number)) for number, one in enumerate(diagnosis.findings, 1)]
    if len(cards) > 1:
        cards.insert(0, element("p", prose(difference()), class_="footnote"))
    return cards


def card(diagnosis: Diagnosis, found: Finding, number: str) -> Html:
    """One finding with all that is known of it, those that it explains folded inside."""
    parts = [
        _head(diagnosis, found),
        element("h3", text(f"{number}. {found.title}")),
        element("p", prose(found.sentence), class_="sentence"),
        _gain(found),
        _evidence(diagnosis, found),
    ]
    if found.advice:
        parts += [_heading("What to do"), element("ol", *map(_fix, found.advice))]
    if found.caveats:
        wrong = [element("li", prose(one)) for one in found.caveats]
        parts += [_heading("When this is wrong"), element("ul", *wrong)]
    if found.folded:
        inner = [
            card(diagnosis, one, f"{number}.{place}") for place, one in enumerate(found.folded, 1)
        ]
        title = f"It explains {counted(len(inner), 'more finding')}"
        parts.append(element("details", element("summary", text(title)), *inner, class_="folded"))
    return element("article", *parts, class_=f"finding {found.severity}", id=f"finding-{number}")


def _heading(title: str) -> Html:
    return element("h4", text(title))


def _head(diagnosis: Diagnosis, found: Finding) -> Html:
    said = [
        icon(found.severity),
        element("b", text(found.severity), class_=found.severity),
        element("code", text(found.rule)),
        *(element("span", text(one)) for one in about(diagnosis, found)),
    ]
    return element("p", *said, class_="rank")


def _gain(found: Finding) -> Html:
    figure, rest = gain_words(found.gain)
    parts = [element("b", prose(figure))] if figure else []
    return element("p", *parts, element("span", prose(rest)), class_="gain")


def _evidence(diagnosis: Diagnosis, found: Finding) -> Html:
    """Figures as a table, names below it: a long name would tear the columns apart."""
    rows = [_row(found, one) for one in found.evidence if not isinstance(one.value, str)]
    if found.cost is not None:
        rows.append(_cost(diagnosis, found))
    names = [
        element("div", text(f"{one.label}: "), name(one.value), class_="named")
        for one in found.evidence
        if isinstance(one.value, str)
    ]
    return join([*([_table(found, rows)] if rows else []), *names])


def _table(found: Finding, rows: list[Html]) -> Html:
    heads = [
        element("th", text("evidence"), scope="col", class_="left"),
        element("th", text("value"), scope="col"),
        element("th", Html(""), class_="unit"),
        element("th", text("held against"), scope="col", class_="left held"),
    ]
    head = element("thead", element("tr", *heads))
    box = {"tabindex": "0", "role": "region", "aria_label": f"Evidence of {found.title}"}
    return element(
        "div",
        element("table", head, element("tbody", *rows)),
        class_="scroll evidence",
        **box,
    )


def _cells(label: str, value: str, unit: str, held: str) -> Html:
    return element(
        "tr",
        element("td", text(label), class_="left label"),
        element("td", text(value)),
        element("td", text(unit), class_="left unit"),
        element("td", text(held), class_="left held"),
    )


def _row(found: Finding, one: Evidence) -> Html:
    return _cells(one.label, *evidence_value(one), threshold_words(found.threshold(one)))


def _cost(diagnosis: Diagnosis, found: Finding) -> Html:
    assert found.cost is not None
    value, unit = evidence_value(Evidence("cost_ns", "", found.cost.per_step_ns))
    limit = "at most " if found.cost.is_upper_bound else ""
    return _cells(f"cost {limit}{a_step(diagnosis)}: {found.cost.basis}", value, unit, "")


def _fix(step: Fix) -> Html:
    code = element("pre", element("code", text(step.code))) if step.code else Html("")
    return element("li", prose(step.text), code)


def not_checked(diagnosis: Diagnosis) -> list[Html]:
    """Rules that could not be judged, those with the same reason together, and how many others."""
    checked = diagnosis.checked
    if checked is None:
        return []
    groups = by_reason(checked.not_checked)
    items = [element("li", *_group(*why, rules)) for why, rules in groups]
    for one in checked.failed:
        said = prose(f" failed: {one.because}; {one.remedy}.")
        items.append(element("li", icon("critical"), element("code", text(one.rule)), said))
    listed = [element("ul", *items, class_="groups")] if items else []
    return [*listed, element("p", prose(_others(checked)), class_="footnote")]


def _group(because: str, remedy: str, rules: list[str]) -> Iterator[Html]:
    for number, one in enumerate(rules):
        yield text(", ") if number else Html("")
        yield element("code", text(one))
    yield prose(f": {because}; {remedy}." if remedy else f": {because}.")


def _others(checked: Checked) -> str:
    said = [f"{one.rule}: {one.sentence.rstrip('.')}" for one in checked.seen]
    said.append(f"{counted(len(checked.clean), 'rule')} found nothing")
    if checked.not_applicable:
        said.append(f"{len(checked.not_applicable):,} do not apply to this job")
    if checked.accepted:
        keys = ", ".join(one.key for one in checked.accepted)
        said.append(f"accepted by the baseline: {keys}")
    if checked.num_unmatched:
        said.append(f"baseline: {unmatched(checked)}")
    if checked.left_out:
        said.append(f"left out by choice: {left_out(checked.left_out)}")
    if checked.settings:
        said.append(f"settings are from {checked.settings}")
    return f"{'; '.join(said)} (`diagnose rules` lists all)."
