"""A rule's docstring as a page: a title, a paragraph, and sections in a fixed order.

::

    Everybody waits for one rank.

    ## Looks for
    ## Why it costs time
    ## How it decides
    ## Stays silent when
    ## What to do
    ## Example
    ## References

The text is Markdown. Each section says something; references are a list.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass

SECTIONS = (
    "Looks for",
    "Why it costs time",
    "How it decides",
    "Stays silent when",
    "What to do",
    "Example",
    "References",
)
_MARK = "## "
_MOST_TITLE = 72


@dataclass(frozen=True)
class Page:
    """The parts of a rule's documentation."""

    title: str
    """One line without its full stop."""
    sections: Mapping[str, str]
    """In the order of ``SECTIONS``."""


def parse(docstring: str) -> Page:
    """The page in a docstring. ValueError says what is missing or in the wrong place."""
    head, *parts = ("\n" + inspect.cleandoc(docstring)).split(f"\n{_MARK}")
    title, _, rest = head.strip().partition("\n")
    if not title or len(title) > _MOST_TITLE:
        raise ValueError(f"the first line is a title of 1 to {_MOST_TITLE} characters")
    if rest.strip():
        raise ValueError(f"after the title comes {_MARK}{SECTIONS[0]}")
    sections = {}
    for part in parts:
        name, _, text = part.partition("\n")
        sections[name.strip()] = text.strip()
    if tuple(sections) != SECTIONS or len(sections) != len(parts):
        raise ValueError(f"sections are {', '.join(sections) or 'none'}; not {', '.join(SECTIONS)}")
    empty = [name for name, text in sections.items() if not text]
    if empty:
        raise ValueError(f"nothing under {', '.join(empty)}")
    return Page(title.rstrip("."), sections)
