"""A sheet as an HTML table: aligned figures, units beside headings, bars without a script."""

from __future__ import annotations

from diagnose.reporters._html_text import Html, element, join, name, prose, text
from diagnose.reporters._sheet import STATES, Bar, Heading, Sheet

_NAMES = frozenset({"kernel", "name"})
"""Headings whose cells are names from a trace."""


def table(sheet: Sheet, *, titled: bool = True) -> Html:
    """The whole sheet: title, table in a box that scrolls, legend, footnotes."""
    parts = [element("h3", text(sheet.title))] if titled else []
    head = [_heading(heading) for heading in sheet.headings]
    if sheet.bars:
        head.append(element("th", text(sheet.bar_label), scope="col", class_="left bar"))
    rows = [_row(sheet, number) for number in range(len(sheet.rows))]
    grid = element(
        "table",
        element("caption", text(sheet.title)),
        element("thead", element("tr", *head)),
        element("tbody", *rows),
    )
    box = {"tabindex": "0", "role": "region", "aria_label": sheet.title}
    parts.append(element("div", grid, class_="scroll", **box))
    if sheet.bars:
        parts.append(legend())
    parts += [element("p", prose(note), class_="footnote") for note in sheet.footnotes]
    return element("div", *parts, class_="sheet")


def folded(summary: str, *sheets: Sheet) -> Html:
    """Sheets that open on demand."""
    inside = [table(sheet, titled=len(sheets) > 1) for sheet in sheets]
    return element("details", element("summary", text(summary)), *inside, class_="tables")


def legend() -> Html:
    """What the colours of bars in tables mean."""
    keys = [
        element("li", element("i", class_=f"state s{number}"), text(state.label))
        for number, state in enumerate(STATES)
    ]
    return element("ul", *keys, class_="legend")


def _heading(heading: Heading) -> Html:
    unit = element("small", text(heading.unit)) if heading.unit else Html("")
    return element("th", text(heading.label), unit, scope="col", class_=_kind(heading))


def _kind(heading: Heading) -> str:
    return ("left" if heading.left else "figure") + (f" spare{heading.spare}" * bool(heading.spare))


def _row(sheet: Sheet, number: int) -> Html:
    cells = []
    for heading, cell in zip(sheet.headings, sheet.rows[number], strict=True):
        shown = name(cell) if heading.label in _NAMES else text(cell)
        cells.append(element("td", shown, class_=_kind(heading)))
    if sheet.bars:
        cells.append(element("td", _bar(sheet.bars[number]), class_="left bar"))
    return element("tr", *cells)


def _bar(bar: Bar | None) -> Html:
    if bar is None or not bar.longest_ns:
        return Html("")
    shares = [
        element("i", class_=f"state s{number}", style=f"width:{100 * ns / bar.longest_ns:.2f}%")
        for number, ns in enumerate(bar.shares_ns)
        if ns > 0
    ]
    return element("div", join(shares), class_="stack", aria_hidden="true")
