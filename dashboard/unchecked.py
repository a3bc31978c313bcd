"""What the rules could not judge and why: folded, so that it is in reach and not in the way."""

from __future__ import annotations

from collections.abc import Iterator

import dash_mantine_components as dmc
from dash import html

from dashboard import text
from dashboard.view import Component
from diagnose.findings import Checked, Diagnosis
from diagnose.wording.findings import by_reason
from diagnose.wording.numbers import counted


def not_checked(diagnosis: Diagnosis) -> Iterator[Component]:
    """Rules that could not be judged, by reason, and what came of the others."""
    checked = diagnosis.checked
    if checked is None:
        return
    items = [*_reasons(checked), *_failed(checked)]
    number = len(checked.not_checked) + len(checked.failed)
    title = _title(number)
    yield dmc.Accordion(
        dmc.AccordionItem(
            [
                dmc.AccordionControl(title),
                dmc.AccordionPanel(
                    [html.Ul(items), html.P(text.whole(_others(checked)), className="muted")]
                ),
            ],
            value="not-checked",
        ),
        className="not-checked",
    )


def _title(number: int) -> str:
    if not number:
        return "All rules were checked"
    return f"{counted(number, 'rule')} could not be checked"


def _reasons(checked: Checked) -> Iterator[Component]:
    for (because, remedy), rules in by_reason(checked.not_checked):
        said = f": {because}; {remedy}." if remedy else f": {because}."
        yield html.Li([*_names(rules), text.whole(said)])


def _names(rules: list[str]) -> Iterator[Component]:
    for place, rule in enumerate(rules):
        if place:
            yield ", "
        yield html.Code(rule)


def _failed(checked: Checked) -> Iterator[Component]:
    for one in checked.failed:
        yield html.Li([html.Code(one.rule), text.whole(f" failed: {one.because}; {one.remedy}.")])


def _others(checked: Checked) -> str:
    said = "".join(f"{one.rule}: {one.sentence} " for one in checked.seen)
    said += f"{counted(len(checked.clean), 'rule')} found nothing"
    if checked.not_applicable:
        said += f"; {len(checked.not_applicable):,} do not apply to this job"
    return f"{said} (`diagnose rules` lists all)."
