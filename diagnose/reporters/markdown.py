"""The report for an issue or a pull request: the text report's content as Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO

from diagnose.reporters import Page, Reporter
from diagnose.reporters._document import Remark, document
from diagnose.reporters._findings import closing_lines, finding_lines, summary_lines
from diagnose.reporters._findings_markdown import markdown
from diagnose.reporters._sheet import STATES, Bar, Heading, Sheet

if TYPE_CHECKING:
    from diagnose.findings import Diagnosis

_BAR_WIDTH = 40
# What Markdown or HTML would take for markup; `@` and `#` would notify people or link issues.
_ESCAPED = str.maketrans(
    {
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        "|": "\\|",
        "@": "&#64;",
        "#": "&#35;",
        **{sign: f"\\{sign}" for sign in "\\`*_[]~"},
    }
)


_NUMBERED = re.compile(r"\d+\. ")
# No sign in it that could end the span, be a column of a table or notify anybody.
_COMMAND = re.compile(r"`(diagnose [A-Za-z0-9 =:.,_-]+)`")


def escaped(text: str) -> str:
    """A text that Markdown shows as it is; only our own commands become code."""
    parts = _COMMAND.split(text)
    return "".join(
        f"`{part}`" if place % 2 else part.translate(_ESCAPED) for place, part in enumerate(parts)
    )


def render(diagnosis: Diagnosis, out: TextIO, page: Page) -> None:
    """Write the report. Cells, sentences and names are escaped; bars stand in code spans."""
    content = document(diagnosis, unicode=page.unicode)
    lines = [f"**{escaped(content.about[0])}**  "]
    lines += [f"{escaped(line)}  " for line in content.about[1:]]
    lines += ["", f"Trace quality: **{content.verdict}**", ""]
    lines += [_remark(remark) for remark in content.reasons]
    if diagnosis.checked is not None:
        said = summary_lines(diagnosis, unicode=page.unicode)
        if said:
            lines += ["", "### Summary", "", *(f"{escaped(one)}  " for one in said)]
        lines += ["", "### Findings"]
        lines += markdown(finding_lines(diagnosis, unicode=page.unicode), escaped)
        lines += ["", *markdown(closing_lines(diagnosis, unicode=page.unicode), escaped)]
    if content.across:
        lines += ["", "### Across ranks", "", *(f"{escaped(line)}  " for line in content.across)]
    if content.gains:
        lines += ["", "### What a change would gain", ""]
        lines += _gains(content.gains)
    for sheet in content.sheets:
        lines += ["", *sheet_lines(sheet, page)]
    if content.costs:
        lines += ["", "### Cost of overlap and of a step", ""]
        lines += [f"{escaped(line)}  " for line in content.costs]
    for sentence in content.missing:
        lines += ["", escaped(sentence)]
    further = [remark for remark in content.notes if remark not in content.reasons]
    if further:
        lines += ["", "### Notes", "", *map(_remark, further)]
    out.write("\n".join(lines) + "\n")


def _gains(sentences: Iterable[str]) -> Iterator[str]:
    """Sentences as paragraphs, numbered ones as a list that ends where the next one begins."""
    listed = False
    for sentence in sentences:
        numbered = bool(_NUMBERED.match(sentence))
        if listed != numbered:
            yield ""
        listed = numbered
        yield f"{escaped(sentence)}  "


def _remark(remark: Remark) -> str:
    return f"- **{remark.severity}**: {escaped(remark.text)} (`{remark.code}`)"


def sheet_lines(sheet: Sheet, page: Page) -> list[str]:
    """A sheet as a heading and a Markdown table."""
    labels = [escaped(_label(heading)) for heading in sheet.headings]
    rules = [":--" if heading.left else "--:" for heading in sheet.headings]
    if sheet.bars:
        labels.append(escaped(sheet.bar_label))
        rules.append(":--")
    lines = [f"### {escaped(sheet.title)}", "", _row(labels), _row(rules)]
    for number, row in enumerate(sheet.rows):
        cells = [escaped(cell) for cell in row]
        if sheet.bars:
            cells.append(_bar(sheet.bars[number], page))
        lines.append(_row(cells))
    lines.append("")
    if sheet.bars:
        signs = [
            f"`{state.sign if page.unicode else state.ascii_sign}` {state.label}"
            for state in STATES
        ]
        lines.append("Bar: " + ", ".join(signs) + "  ")
    lines += [f"{escaped(footnote)}  " for footnote in sheet.footnotes]
    return lines


def _label(heading: Heading) -> str:
    if not heading.unit:
        return heading.label
    return f"{heading.label} ({heading.unit})"


def _bar(bar: Bar | None, page: Page) -> str:
    if bar is None:
        return ""
    signs = "".join(text for text, _ in bar.signs(_BAR_WIDTH, unicode=page.unicode))
    return f"`{signs}`" if signs else ""


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


REPORTER = Reporter("markdown", (".md", ".markdown"), render)
