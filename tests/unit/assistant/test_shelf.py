"""A few recordings are kept; the one used longest ago makes room and comes back when asked for."""

from __future__ import annotations

import pytest

from diagnose.assistant import shelf as module
from diagnose.assistant.shelf import MOST_LOADED, Shelf
from diagnose.errors import InputTooLargeError, UsageError


class Loads:
    """Stands in for ``diagnose.load``: what was read, in order."""

    def __init__(self):
        self.paths: list[str] = []
        self.refuse_while_kept = 0

    def __call__(self, path, *, only, progress):
        self.paths.append(path)
        if self.refuse_while_kept:
            self.refuse_while_kept -= 1
            raise InputTooLargeError("too large", hint="less")
        return type("Recording", (), {"trace": f"trace of {path}"})()


@pytest.fixture
def loads(monkeypatch):
    result = Loads()
    monkeypatch.setattr(module, "load", result)
    return result


@pytest.fixture
def shelf(loads):
    return Shelf(lambda path: path)


def test_the_one_used_longest_ago_makes_room(shelf, loads):
    assert MOST_LOADED == 3
    assert [shelf.add(path, None) for path in "abc"] == ["r1", "r2", "r3"]
    assert shelf.get("r1").trace == "trace of a"
    assert shelf.add("d", None) == "r4"  # b makes room: a was used after it
    assert loads.paths == list("abcd")
    for handle in ("r1", "r3", "r4"):
        shelf.get(handle)
    assert loads.paths == list("abcd")
    assert shelf.get("r2").trace == "trace of b"
    assert loads.paths == list("abcdb")


def test_the_same_path_keeps_its_handle_and_is_read_again(shelf, loads):
    assert shelf.add("a", None) == shelf.add("a", None) == "r1"
    assert shelf.add("a", "gpu") == "r2"
    assert loads.paths == ["a", "a", "a"]


def test_what_is_kept_makes_room_for_what_is_too_large(shelf, loads):
    shelf.add("a", None)
    loads.refuse_while_kept = 1
    assert shelf.add("b", None) == "r2"
    assert loads.paths == ["a", "b", "b"]
    shelf.get("r1")
    assert loads.paths[-1] == "a"


def test_too_large_on_its_own_is_said(shelf, loads):
    loads.refuse_while_kept = 1
    with pytest.raises(InputTooLargeError):
        shelf.add("a", None)
    assert loads.paths == ["a"]
    with pytest.raises(UsageError, match="'r1'"):
        shelf.get("r1")


def test_a_handle_that_was_never_given(shelf, loads):
    with pytest.raises(UsageError, match="no recording is called 'r7'") as caught:
        shelf.get("r7")
    assert caught.value.hint == "call load with a path first"
    shelf.add("a", None)
    with pytest.raises(UsageError) as caught:
        shelf.get("r7")
    assert caught.value.hint == "loaded are r1 (a)"


def test_whether_it_may_be_read_is_asked_again(loads):
    allowed = ["a"]

    def check(path):
        if path not in allowed:
            raise UsageError("not any more")
        return path

    shelf = Shelf(check)
    shelf.add("a", None)
    allowed[:] = list("bcd")
    for path in "bcd":
        shelf.add(path, None)
    with pytest.raises(UsageError, match="not any more"):
        shelf.get("r1")
