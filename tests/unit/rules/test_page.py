"""A rule's docstring is a page with fixed sections."""

from __future__ import annotations

import pytest

from diagnose.rules._page import SECTIONS, parse


def text(sections=SECTIONS, *, title="A title.", body="words"):
    return title + "\n\n" + "".join(f"## {name}\n{body}\n\n" for name in sections)


def test_title_and_sections_are_read():
    page = parse(text())
    assert page.title == "A title"
    assert tuple(page.sections) == SECTIONS
    assert set(page.sections.values()) == {"words"}


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("", "a title"),
        (text(title="x" * 73), "a title"),
        (text(title="A title.\nand more"), "after the title"),
        (text(SECTIONS[:-1]), "not Looks for"),
        (text(SECTIONS[::-1]), "not Looks for"),
        (text((*SECTIONS, "Example")), "not Looks for"),
        (text(body=""), "nothing under Looks for"),
    ],
)
def test_what_is_missing_is_said(broken, said):
    with pytest.raises(ValueError, match=said):
        parse(broken)
