"""What plotly would take for markup is shown as it is."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from diagnose.plotting.style import Unit, inert, row_axis, short, two_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gemm<float>", "gemm&lt;float&gt;"),
        ("<br>", "&lt;br&gt;"),
        ("<a href='javascript:alert(1)'>x</a>", "&lt;a href='javascript:alert(1)'&gt;x&lt;/a&gt;"),
        ("a &lt; b", "a &amp;lt; b"),
        ("$\\alpha$", "&#36;\\alpha&#36;"),
        ("two\nlines", "two lines"),
    ],
)
def test_text_is_inert(text, shown):
    assert inert(text) == shown


def test_a_long_label_is_cut_before_it_is_escaped():
    """Else an entity could be cut in half, and the half be shown."""
    assert short("<" * 50, 3) == "&lt;&lt;…"
    assert short("<<<", 3) == "&lt;&lt;&lt;"


def test_a_label_of_two_lines_breaks_only_where_we_say():
    assert two_lines("all of <br> it", 8) == "all of<br>&lt;br&gt; it"
    assert two_lines("one two three four", 8).endswith("…")


def test_a_time_without_a_value_has_no_mark():
    unit = Unit("ms", 1_000_000, 2)
    assert unit.of(2_500_000.0) == 2.5
    assert unit.of(math.nan) is None


def test_equal_labels_stay_rows_of_their_own():
    axis = row_axis(["rank 0", "rank 0"])
    assert axis["tickvals"] == [0, 1]
    assert axis["range"] == [1.5, -0.5]  # the first on top


def test_the_package_is_imported_without_plotly():
    modules = "diagnose.figures, diagnose.plotting.palette, diagnose.plotting.definition"
    code = f"import sys, {modules}; assert 'plotly' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
