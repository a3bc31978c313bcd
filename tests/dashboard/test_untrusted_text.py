"""What a trace says reaches pages as text: never as markup, code or a template."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dashboard import scene
from dashboard.address import ALL
from dashboard.view import Visit, views
from diagnose.plotting.palette import LIGHT
from tests.dashboard.conftest import UNTRUSTED
from tests.dashboard.drawn import parts

TAG = "<img src=x"
# Where names of the recording are in sight: a test of pages without any would say nothing.
NAMING = ("overlap", "contention", "compare")


def drawn(visit: Callable[..., Visit], page: str) -> list[dict[str, Any]]:
    given = visit("untrusted", page)
    other = None
    if page == "compare":
        [entry] = [one for one in given.library.entries() if one.label.endswith("/known")]
        assert given.library.open(entry).finished.wait(60)
        other = entry.key
    return list(parts(views()[page].draw(visit("untrusted", page, other=other))))


@pytest.mark.parametrize("page", views())
def test_no_component_takes_it_for_markup_or_code(visit: Callable[..., Visit], page: str) -> None:
    for one in drawn(visit, page):
        assert one["type"] not in ("Markdown", "DangerouslySetInnerHTML", "Iframe", "Script")
        assert "dangerously_allow_html" not in one["props"]
        assert not one["props"].get("dangerously_allow_code")
        sent = json.dumps(one, ensure_ascii=False)
        assert "\u202e" not in sent
        if one["type"] == "Graph":
            # plotly.js reads tags: here they have to be escaped.
            assert TAG not in sent
            assert "%{x} $1$" not in sent
        if one["type"] == "AgGrid":
            for column in one["props"]["columnDefs"]:
                assert "cellRenderer" not in column
                # The code of a grid is written here, never made of names.
                assert "alert" not in json.dumps(column)


@pytest.mark.parametrize("page", NAMING)
def test_names_are_in_sight_as_they_are(visit: Callable[..., Visit], page: str) -> None:
    cells = [
        value
        for one in drawn(visit, page)
        if one["type"] == "AgGrid"
        for row in one["props"]["rowData"]
        for value in row.values()
    ]
    # Whole, with what turns writing around spelled out.
    assert UNTRUSTED.replace("\u202e", "\\u202e") in cells


@pytest.mark.parametrize("name", ["untrusted", "hostile"])
def test_the_picture_of_the_timeline_holds_no_tag(visit: Callable[..., Visit], name: str) -> None:
    given = visit(name, "timeline", open=(ALL,))
    made = scene.scene(given.shown, given.address, LIGHT, 1200)
    sent = json.dumps([made.figure, made.head], ensure_ascii=False)
    assert "&lt;" in sent
    assert TAG not in sent
    assert "<script" not in sent
    assert "\u202e" not in sent
