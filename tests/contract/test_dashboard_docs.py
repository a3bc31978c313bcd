"""What the pages say of the dashboard is so: its example, its parameters, its pictures."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

pytest.importorskip("dash")

from dashboard.address import Address, Selected
from dashboard.library import Library
from dashboard.shown import Shown
from dashboard.view import Visit, views
from diagnose.plotting.palette import LIGHT
from tests.builder import TraceBuilder, build_trace

MOST_BYTES = 200_000


def test_the_page_in_architecture_works(root: Path) -> None:
    text = (root / "docs/architecture.md").read_text(encoding="utf-8")
    section = text.split("### Adding a page\n", 1)[1].split("\n## ", 1)[0]
    [code] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    module: dict[str, Any] = {}
    exec(compile(code, "docs/architecture.md", "exec"), module)
    builder = TraceBuilder(rank=0, world_size=1)
    builder.kernel("gemm", 10, 50, launch=5).kernel("gemm", 70, 20, stream=9, launch=6)
    shown = Shown("one", "one", build_trace(builder))
    drawn = module["VIEW"].draw(Visit(shown, Address(), LIGHT, Library([])))
    said = json.dumps(drawn.to_plotly_json(), default=lambda one: one.to_plotly_json())
    assert all(word in said for word in ("Streams", '"stream": 7', '"stream": 9', '"num_ops": 1'))


def test_every_parameter_of_an_address_is_explained(root: Path) -> None:
    page = (root / "docs/dashboard.md").read_text(encoding="utf-8")
    table = page.split("| parameter |", 1)[1].split("\n\n", 1)[0]
    cells = re.findall(r"^\| (`[^|]*`) \|", table, re.MULTILINE)
    explained = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    full = Address(
        page="timeline",
        recording="a",
        other="b",
        start_ns=1,
        end_ns=2,
        open=("g0.0",),
        top="g0.0",
        ruler=(1, 2),
        selected=Selected("gpu_ops", 1),
        find="x",
        theme="dark",
    )
    # Whoever adds a field sees it here.
    fields = [one.name for one in dataclasses.fields(full)]
    assert [name for name in fields if getattr(full, name) == getattr(Address(), name)] == []
    assert sorted(explained) == sorted(parse_qs(full.search.lstrip("?")))


def test_every_page_is_explained(root: Path) -> None:
    text = (root / "docs/dashboard.md").read_text(encoding="utf-8")
    table = text.split("| page |", 1)[1].split("\n\n", 1)[0]
    assert re.findall(r"^\| (\w+) \|", table, re.MULTILINE) == [
        view.title for view in views().values()
    ]


def test_pictures_are_there_small_and_shown(root: Path) -> None:
    pictures = sorted((root / "docs/dashboard").glob("*"))
    assert pictures
    for picture in pictures:
        head = picture.read_bytes()[:12]
        assert (head[:4], head[8:]) == (b"RIFF", b"WEBP"), picture.name
        assert picture.stat().st_size <= MOST_BYTES, picture.name
    shown = (root / "docs/dashboard.md").read_text(encoding="utf-8")
    assert {one.name for one in pictures} == set(re.findall(r"\(dashboard/([\w.-]+)\)", shown))
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"docs/dashboard/([\w.-]+)", readme)) == {
        "timeline.webp",
        "findings.webp",
    }
