"""The report for a terminal, a log or a bug report: aligned text, colour only where it shows."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.text import Text

from diagnose.reporters import Page, Reporter
from diagnose.reporters._document import Document, Remark, document
from diagnose.reporters._findings import closing_lines, finding_lines, summary_lines
from diagnose.reporters._findings_text import styled
from diagnose.reporters._sheet import STATES, Bar, Sheet
from diagnose.wording.plain import plain, width_of

if TYPE_CHECKING:
    from diagnose.findings import Diagnosis, Verdict

_GAP = "  "
_LEAST_BAR = 14
_MOST_BAR = 60
_LEAST_TEXT = 8
_VERDICT_STYLE = {
    "good": "bold green",
    "usable with care": "bold yellow",
    "not to be trusted": "bold red",
}
_NOTE_STYLE = {"error": "bold red", "warning": "yellow", "info": "dim"}


def render(diagnosis: Diagnosis, out: TextIO, page: Page) -> None:
    """Write the report. Lines of tables are never wrapped: spare columns go first."""
    console = console_for(out, page)
    content = document(diagnosis, unicode=page.unicode)
    _top(console, content, page)
    _findings(console, diagnosis, page)
    if content.across:
        console.print()
        console.print(Text("Across ranks", style="bold"))
        for sentence in content.across:
            wrapped(console, sentence, page)
    if content.gains:
        console.print()
        console.print(Text("What a change would gain", style="bold"))
        for sentence in content.gains:
            wrapped(console, sentence, page)
    for sheet in content.sheets:
        console.print()
        draw(console, sheet, page)
    if content.costs:
        console.print()
        console.print(Text("Cost of overlap and of a step", style="bold"))
        for sentence in content.costs:
            wrapped(console, sentence, page)
    for sentence in content.missing:
        console.print()
        wrapped(console, sentence, page)
    if content.notes:
        console.print()
        console.print(Text("Notes", style="bold"))
        for remark in content.notes:
            draw_remark(console, remark, page)


def _findings(console: Console, diagnosis: Diagnosis, page: Page) -> None:
    """The summary, what rules found, and what could not be checked. Nothing if no rule was run."""
    if diagnosis.checked is None:
        return
    summary = summary_lines(diagnosis, unicode=page.unicode)
    if summary:
        console.print()
        console.print(Text("Summary", style="bold"))
    for sentence in summary:
        wrapped(console, sentence, page)
    console.print()
    console.print(Text("Findings", style="bold"))
    for lines in (finding_lines, closing_lines):
        for line in styled(lines(diagnosis, unicode=page.unicode), page.width):
            shown = Text(line.text)
            shown.stylize(line.style, line.start, line.end)
            console.print(shown)
        if lines is finding_lines and diagnosis.findings:
            console.print()


def console_for(out: TextIO, page: Page) -> Console:
    """A rich console that prints what it is given: no markup, no emoji names, no highlighting."""
    return Console(
        file=out,
        width=page.width,
        force_terminal=page.color,
        color_system="standard" if page.color else None,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=True,
        legacy_windows=False,
    )


def _top(console: Console, content: Document, page: Page) -> None:
    console.print(Text(plain(content.about[0], page.width, unicode=page.unicode), style="bold"))
    for line in content.about[1:]:
        wrapped(console, line, page)
    draw_verdict(console, content.verdict)
    for remark in content.reasons:
        said = f"{remark.severity}: {remark.subject}"
        wrapped(console, said, page, first="  ", style=_NOTE_STYLE[remark.severity])


def draw_verdict(console: Console, verdict: Verdict) -> None:
    """Whether the trace can be believed, in one line."""
    line = Text("Trace quality: ")
    line.append(verdict, style=_VERDICT_STYLE[verdict])
    console.print(line)


def wrapped(
    console: Console, sentence: str, page: Page, *, first: str = "", style: str = ""
) -> None:
    """A sentence over as many lines as it needs, the further ones indented."""
    lines = textwrap.wrap(
        first + sentence, page.width, subsequent_indent="  ", break_on_hyphens=False
    )
    for line in lines:
        console.print(Text(line, style=style))


def draw_remark(console: Console, remark: Remark, page: Page) -> None:
    """A note: severity, sentence and code."""
    said = f"{remark.text} [{remark.code}]"
    style = _NOTE_STYLE[remark.severity]
    wrapped(console, said, page, first=f"{remark.severity}: ", style=style)


def draw(console: Console, sheet: Sheet, page: Page) -> None:
    """A sheet with aligned columns, no wider than the page wherever that is possible."""
    sheet, widths = _fitted(sheet, page.width)
    room = min(page.width - _width(widths) - len(_GAP), _MOST_BAR)
    with_bars = sheet.bars and room >= _LEAST_BAR

    def line(cells: Sequence[str]) -> str:
        return _line(sheet, cells, widths, unicode=page.unicode)

    console.print(Text(sheet.title, style="bold"))
    header = line([heading.label for heading in sheet.headings])
    if with_bars:
        header += _GAP + plain(sheet.bar_label, room, unicode=page.unicode)
    console.print(Text(header.rstrip(), style="dim"))
    if any(heading.unit for heading in sheet.headings):
        units = line([heading.unit for heading in sheet.headings])
        console.print(Text(units.rstrip(), style="dim"))
    for number, row in enumerate(sheet.rows):
        shown = Text(line(row))
        if with_bars and (bar := sheet.bars[number]) is not None:
            shown.append(_GAP)
            shown.append_text(_bar(bar, room, page))
        shown.rstrip()
        console.print(shown)
    if with_bars:
        console.print(_legend(page))
    for footnote in sheet.footnotes:
        wrapped(console, footnote, page, style="dim")


def _fitted(sheet: Sheet, width: int) -> tuple[Sheet, list[int]]:
    """Leave out spare columns until the sheet, with room for a short bar, fits.

    What is then still too wide is taken from the widest column of text.
    """
    wanted = width - (len(_GAP) + _LEAST_BAR if sheet.bars else 0)
    widths = _widths(sheet)
    for least in (3, 2, 1):
        if _width(widths) <= wanted:
            break
        sheet = sheet.without_spare(least)
        widths = _widths(sheet)
    texts = [at for at, heading in enumerate(sheet.headings) if heading.left]
    if texts and _width(widths) > wanted:
        widest = max(texts, key=lambda at: widths[at])
        least = max(_LEAST_TEXT, len(sheet.headings[widest].label))
        widths[widest] = max(widths[widest] - (_width(widths) - wanted), least)
    return sheet, widths


def _widths(sheet: Sheet) -> list[int]:
    widths = [max(len(heading.label), len(heading.unit)) for heading in sheet.headings]
    for row in sheet.rows:
        widths = [max(width, width_of(cell)) for width, cell in zip(widths, row, strict=True)]
    return widths


def _width(widths: list[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _line(sheet: Sheet, cells: Sequence[str], widths: list[int], *, unicode: bool) -> str:
    padded = []
    for heading, cell, width in zip(sheet.headings, cells, widths, strict=True):
        cell = plain(cell, width, unicode=unicode)
        space = " " * (width - width_of(cell))
        padded.append(cell + space if heading.left else space + cell)
    return _GAP.join(padded)


def _bar(bar: Bar, width: int, page: Page) -> Text:
    text = Text()
    for signs, state in bar.signs(width, unicode=page.unicode):
        text.append(signs, style=state.color)
    return text


def _legend(page: Page) -> Text:
    text = Text("bar: ")
    for state in STATES:
        text.append(state.sign if page.unicode else state.ascii_sign, style=state.color)
        text.append(f" {state.label}  ")
    text.rstrip()
    return text


REPORTER = Reporter("text", (".txt", ".log"), render)
