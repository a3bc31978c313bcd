"""Nothing in a name may move a cursor, a column or a reader's eye."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.wording.plain import plain, shorten_path, width_of


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("void gemm<float>(A&, B*)", "void gemm<float>(A&, B*)"),
        ("[red]bold[/red]", "[red]bold[/red]"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("two\nlines\tand\rmore", "two\\nlines\\tand\\rmore"),
        ("left\u202eright", "left\\u202eright"),
        ("left\u200fright", "left\\u200fright"),
        ("line\u2028end", "line\\u2028end"),
        ("half \ud800 pair", "half \\ud800 pair"),
        ("caf\u00e9 \u6f22", "caf\u00e9 \u6f22"),
    ],
)
def test_unsafe_characters_are_shown_and_not_obeyed(text, shown):
    assert plain(text) == shown


def test_without_unicode_everything_is_ascii():
    assert plain("caf\u00e9 \u6f22", unicode=False) == "caf\\xe9 \\u6f22"
    assert plain("x" * 30, 10, unicode=False) == "xxxxxxx..."


def test_a_long_name_is_cut_and_marked():
    assert plain("abcdefghij", 10) == "abcdefghij"
    assert plain("abcdefghijk", 10) == "abcdefghi\u2026"
    # Each of these takes two columns.
    assert plain("\u6f22" * 8, 6) == "\u6f22\u6f22\u2026"


def test_a_path_keeps_its_end():
    assert shorten_path("/data/runs/7/rank0.json", 14) == "\u2026/7/rank0.json"
    assert shorten_path("rank0.json", 14) == "rank0.json"


@given(st.text(max_size=80), st.integers(0, 40), st.booleans())
def test_any_text_is_one_printable_line_of_the_width(text, width, unicode):
    shown = plain(text, width, unicode=unicode)
    assert width_of(shown) <= width
    assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in shown)
    assert unicode or shown.isascii()
