"""The report as one file for a browser: no network, opens from a mail, prints."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TextIO

from diagnose import __version__
from diagnose.plotting.definition import FigureContext
from diagnose.reporters import Page, Reporter
from diagnose.reporters._document import Document, Remark, document, longest_window
from diagnose.reporters._html_definitions import definitions
from diagnose.reporters._html_figures import data_of
from diagnose.reporters._html_findings import findings, not_checked, summary
from diagnose.reporters._html_page import icon, page
from diagnose.reporters._html_sections import Given, Section, sections, sentences
from diagnose.reporters._html_text import Html, element, prose, text
from diagnose.reporters._html_tiles import tiles
from diagnose.reporters._places import Places
from diagnose.wording.numbers import scale_for

if TYPE_CHECKING:
    from diagnose.findings import Diagnosis

FURTHER = {
    "step_shares": ("step_shares", {}),
    "sites": ("stall_sites", {}),
    "collective": ("contention", {"by": "collective"}),
    "classes": ("power_classes", {}),
    "operations": ("gpu_operations", {}),
}
"""Tables that this format draws and the others do not."""
_VERDICTS = {"good": "good", "usable with care": "warning", "not to be trusted": "critical"}
_REMARKS = {"error": "critical", "warning": "warning", "info": "info"}
_BEFORE_FINDINGS = ("time", "overlap")


def render(diagnosis: Diagnosis, out: TextIO, page_given: Page) -> None:  # noqa: ARG001
    """Write the file. Whatever the page of a terminal is, this one is its own."""
    out.write(whole(diagnosis))


def whole(diagnosis: Diagnosis) -> str:
    """The file's text."""
    # What only this format asks for is not said to be missing: its section is absent then.
    asked = {k: v for k, v in diagnosis.unavailable.items() if k not in FURTHER}
    content = document(dataclasses.replace(diagnosis, unavailable=asked), unicode=True)
    scale = scale_for(longest_window(diagnosis))
    given = Given(
        diagnosis,
        content,
        scale,
        Places(diagnosis.trace, unicode=True),
        FigureContext(diagnosis.trace, given_scale=scale),
        Page(),
    )
    made = list(sections(given))
    first = [one for one in made if one.key in _BEFORE_FINDINGS]
    rest = [one for one in made if one.key not in _BEFORE_FINDINGS]
    found = Section("findings", "Findings", findings(diagnosis), [])
    ordered = [*first, *([found] if found.content else []), *rest, *_last(diagnosis, content)]
    body = element(
        "main",
        _head(content),
        element("div", *summary(diagnosis), tiles(diagnosis, scale), class_="summary"),
        _contents(ordered),
        *map(_section, ordered),
        _foot(),
    )
    drawings = [drawing for one in ordered for drawing in one.drawings]
    return page(f"{content.about[0]}: torch-diagnose", body, data_of(drawings))


def _head(content: Document) -> Html:
    """Title, what was read, whether it can be believed and why not."""
    facts = [
        element("p", prose(line.replace(" | ", " · ")), class_="facts")
        for line in content.about[1:]
    ]
    verdict = element(
        "p",
        icon(_VERDICTS[content.verdict]),
        element("b", text(f"Trace quality: {content.verdict}")),
        class_="verdict",
    )
    reasons = [element("li", prose(f"{r.severity}: {r.subject}")) for r in content.reasons]
    listed = [element("ul", *reasons, class_="reasons")] if reasons else []
    toggle = Html(
        '<button type="button" id="theme" hidden aria-label="Switch between light and dark">'
        '<svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><circle class="open" cx="8" '
        'cy="8" r="6"/><path d="M8 2a6 6 0 0 1 0 12z"/></svg></button>'
    )
    brand = element("p", text("torch-diagnose report"), class_="brand")
    top = element("div", brand, toggle, class_="top")
    title = element("h1", text(content.about[0]))
    return element("header", top, title, *facts, verdict, *listed)


def _contents(made: list[Section]) -> Html:
    links = [element("a", text(one.title), href=f"#{one.key}") for one in made]
    return element("nav", *links, aria_label="Sections")


def _section(made: Section) -> Html:
    heading = element("h2", text(made.title), id=f"{made.key}-title")
    return element(
        "section", heading, *made.content, id=made.key, aria_labelledby=f"{made.key}-title"
    )


def _last(diagnosis: Diagnosis, content: Document) -> list[Section]:
    """What was not checked, what the input lacks, and what figures mean."""
    unknown = [*not_checked(diagnosis), *sentences(content.missing)]
    notes = [element("ul", *map(_remark, content.notes), class_="notes")] if content.notes else []
    return [
        *([Section("unchecked", "Not checked", unknown, [])] if unknown else []),
        *([Section("notes", "Notes on the input", notes, [])] if notes else []),
        Section("definitions", "How figures are defined", [definitions()], []),
    ]


def _remark(remark: Remark) -> Html:
    said = [element("b", text(remark.severity)), prose(f": {remark.text} ")]
    return element(
        "li",
        icon(_REMARKS[remark.severity]),
        element("span", *said, element("code", text(remark.code))),
    )


def _foot() -> Html:
    said = f"Made by torch-diagnose {__version__}. One file: it loads nothing and sends nothing."
    return element("footer", text(said))


REPORTER = Reporter("html", (".html", ".htm"), render, FURTHER)
