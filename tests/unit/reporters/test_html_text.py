"""The boundary between what a trace says and what a page is made of."""

from __future__ import annotations

import html
import json
import re

import pytest

from diagnose.reporters._html_text import LONGEST, element, name, prose, script_data, text

EVIL = "</script><img src=x onerror=alert(1)>&'\"`<!--"


def test_text_is_escaped_and_printable():
    assert text("<b>&\"'") == "&lt;b&gt;&amp;&quot;&#x27;"
    assert text("a\x1b[31m\u202eb\ud800") == "a\\x1b[31m\\u202eb\\ud800"


def test_text_of_any_length_stays_whole():
    """Even where characters have to be replaced, and beyond what is looked at in one piece."""
    long = "\u200bx" * 5000
    assert text(long) == "\\u200bx" * 5000


def test_a_short_name_stands_whole():
    assert name("gemm<float>") == '<span class="name">gemm&lt;float&gt;</span>'


@pytest.mark.parametrize("length", [97, 301, 9000])
def test_a_long_name_is_cut_and_whole_inside(length):
    long = "<" * length
    drawn = name(long)
    first, rest = re.fullmatch(
        r'<details class="name"><summary>(.*?) <span class="more">.*?</span></summary>'
        r'<span class="whole">(.*)</span></details>',
        drawn,
    ).groups()
    assert len(html.unescape(first)) <= LONGEST
    assert html.unescape(first) == "<" * 95 + "…"
    assert html.unescape(rest) == long


def test_attributes_are_escaped_and_named_as_html_does():
    assert element("p", text("x"), class_='a"b', aria_label="<") == (
        '<p class="a&quot;b" aria-label="&lt;">x</p>'
    )


def test_prose_keeps_figures_with_their_units_and_shows_commands():
    assert prose("31.7 % of 5 ms, see `diagnose info`") == (
        "31.7\u00a0% of 5\u00a0ms, see <code>diagnose info</code>"
    )
    assert prose("`<b>`") == "<code>&lt;b&gt;</code>"
    assert prose("one ` alone <") == "one ` alone &lt;"
    assert prose("3 steps") == "3 steps"


@pytest.mark.parametrize("value", [EVIL, "\u2028\u2029", "\ud800", "]]>", "\x00"])
def test_data_in_a_script_cannot_end_it(value):
    written = script_data({"name": value, value: [value]})
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == {"name": value, value: [value]}


def test_a_number_that_json_lacks_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        script_data([float("nan")])
