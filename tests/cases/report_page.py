"""What a case expects of the HTML report, read as a browser would: elements and their text."""

from __future__ import annotations

import io
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

from diagnose import engine
from diagnose.reporters import Page
from diagnose.reporters.html import FURTHER, REPORTER
from diagnose.trace import Trace


def failures(trace: Trace, expect: dict[str, Any]) -> Iterator[str]:
    """What does not hold of the report of a trace."""
    page = _page(trace)
    for forbidden in expect.pop("must_not_contain", []):
        if forbidden in page:
            yield f"report: {forbidden!r} stands in it as markup"
    for wanted in expect.pop("must_contain_as_text", []):
        if wanted not in page:
            yield f"report: {wanted!r} is not in it"
    names = _Names()
    names.feed(page)
    longest = expect.pop("longest_visible_name_chars", None)
    visible = max(map(len, names.visible), default=0)
    if longest is not None and not 0 < visible <= longest:
        yield f"report: a name of {visible} characters is visible, expected {longest} at most"
    if expect.pop("full_name_reachable", False):
        long = max((name for name in trace.gpu_ops.texts("name") if name), key=len)
        if long not in names.whole | names.visible:
            yield f"report: the name of {len(long)} characters cannot be reached"
    if expect:
        yield f"report: the runner does not know {sorted(expect)}"


def _page(trace: Trace) -> str:
    further = {name: engine.Request(*asked) for name, asked in FURTHER.items()}
    out = io.StringIO()
    REPORTER.render(engine.diagnose(trace, {**engine.REPORT, **further}), out, Page())
    return out.getvalue()


class _Names(HTMLParser):
    """The texts of elements of the class ``name``: what is visible at once, and what opens."""

    def __init__(self) -> None:
        super().__init__()
        self.visible: set[str] = set()
        self.whole: set[str] = set()
        self._inside: list[tuple[str, str]] = []
        self._text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        kind = dict(attributes).get("class") or ""
        if (tag, kind) in (("span", "name"), ("span", "whole")) or (
            tag == "summary" and self._inside
        ):
            self._text = ""
        if (tag, kind) == ("details", "name") or self._inside or (tag, kind) == ("span", "name"):
            self._inside.append((tag, kind))

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if not self._inside:
            return
        opened, kind = self._inside.pop()
        if kind == "whole":
            self.whole.add(self._text)
        elif opened == "summary" or (opened, kind) == ("span", "name"):
            self.visible.add(self._text)
