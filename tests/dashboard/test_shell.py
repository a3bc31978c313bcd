"""The frame: what is drawn while a recording is read, and after that failed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from dashboard.app import create_app
from dashboard.library import Library
from dashboard.security import Guard
from diagnose.errors import InputTooLargeError
from tests.dashboard.conftest import PORT, TOKEN, Asked


def draw(asked: Asked) -> dict[str, Any]:
    values = {"address.pathname": "/", "address.search": "?recording=one", "scheme.data": "light"}
    answer = asked.callback("page.children", values, "address.search").get_json()
    found: dict[str, Any] = answer["response"]
    return found


def test_what_cannot_be_read_is_read_once_however_long_that_takes(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "rank0.json").write_text('{"traceEvents": []}')
    go, begun = threading.Event(), []

    def load(*_: Any) -> Any:
        begun.append(1)
        assert go.wait(20)
        raise InputTooLargeError("one: too large", hint="read less of it")

    library = Library([str(folder)], load=load)
    asked = Asked(create_app(library, Guard(token=TOKEN, port=PORT)))
    assert draw(asked)["watch"] == {"disabled": False}
    go.set()
    entry = library.entry("one")
    assert entry is not None
    assert library.open(entry).finished.wait(20)
    go.clear()  # a second attempt would go on for as long as the test waits
    try:
        drawn = draw(asked)
        assert "one: too large" in str(drawn["page"])
        assert drawn["watch"] == {"disabled": True}
        assert drawn["loading"]["children"] is None
        assert len(begun) == 1
    finally:
        go.set()
