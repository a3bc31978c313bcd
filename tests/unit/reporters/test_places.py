"""What tells files of one rank apart in a row's label."""

from __future__ import annotations

import pytest

from diagnose.reporters._places import telling_apart
from diagnose.wording.plain import shorten_middle


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["/a/b/rank0.json", "/a/b/rank1.json"], ["rank0.json", "rank1.json"]),
        (["/a/x/rank0.json", "/a/y/rank0.json"], ["x/rank0.json", "y/rank0.json"]),
        (["/a/x/t/r.json", "/a/y/t/r.json"], ["x/t/r.json", "y/t/r.json"]),
        (["/a/x/r.json", "/a/y/other.json"], ["r.json", "other.json"]),
        (["r.json"], ["r.json"]),
        (["r.json", "x/r.json"], ["r.json", "x/r.json"]),
    ],
)
def test_names_that_repeat_bring_their_folder(paths, expected):
    assert telling_apart(paths) == expected


def test_a_long_label_keeps_both_its_ends():
    shown = shorten_middle("healthy/rank00000.trace.json.gz", 20)
    assert shown.startswith("healthy/")
    assert shown.endswith(".json.gz")
    assert len(shown) == 20
    assert shorten_middle("short", 20) == "short"
