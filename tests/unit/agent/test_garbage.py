"""Collections of garbage, as spans of a profile."""

from __future__ import annotations

import gc
import json
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from diagnose.agent import garbage
from diagnose.agent.garbage import NAME, Collections
from diagnose.agent.profiler import Output, Profile, read_options
from diagnose.analyzers._idle_causes.host_threads import GARBAGE

torch = pytest.importorskip("torch")


class Span:
    """Stands for torch's: notes what is done to it."""

    seen: ClassVar[list[tuple[str, str]]] = []

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self.seen.append(("begin", self._name))

    def __exit__(self, *_: object) -> None:
        self.seen.append(("end", self._name))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    profiler = SimpleNamespace(_RecordFunctionFast=Span)
    stand_in = SimpleNamespace(_C=SimpleNamespace(_profiler=profiler))
    monkeypatch.setitem(garbage.sys.modules, "torch", stand_in)
    monkeypatch.setattr(Span, "seen", [])
    return Span.seen


def collecting(generation: int) -> None:
    gc.disable()  # only the collection that is asked for
    try:
        gc.collect(generation)
    finally:
        gc.enable()


def test_a_collection_is_a_span_that_the_stalls_know(seen):
    collections = Collections()
    collections.watch()
    try:
        collecting(2)
    finally:
        collections.leave()
    assert seen == [("begin", NAME), ("end", NAME)]
    assert GARBAGE.search(NAME)


def test_collections_of_the_youngest_objects_are_none(seen):
    collections = Collections()
    collections.watch()
    try:
        collecting(0)
    finally:
        collections.leave()
    assert seen == []


def test_nothing_is_left_behind(seen):
    before = list(gc.callbacks)
    collections = Collections()
    collections.watch()
    collections.watch()
    assert len(gc.callbacks) == len(before) + 1
    collections.leave()
    collections.leave()
    collecting(2)
    assert gc.callbacks == before
    assert seen == []


def test_a_torch_without_such_spans_is_left_alone(monkeypatch):
    stand_in = SimpleNamespace(_C=SimpleNamespace(_profiler=SimpleNamespace()))
    monkeypatch.setitem(garbage.sys.modules, "torch", stand_in)
    before = list(gc.callbacks)
    Collections().watch()
    assert gc.callbacks == before


def test_a_child_of_the_process_records_none(seen, monkeypatch):
    collections = Collections()
    collections.watch()
    try:
        monkeypatch.setattr(garbage.os, "getpid", lambda: -1)
        collecting(2)
    finally:
        collections.leave()
    assert seen == []


def test_a_real_profile_shows_the_collection(tmp_path):
    profile = Profile(read_options({}), {})
    profile.prepare()
    profile.start()
    torch.ones(3).sum()
    collecting(2)
    profile.stop()
    path = tmp_path / "trace.json"
    profile.export(Output(str(path)))
    profile.release()
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    (span,) = [event for event in events if event.get("name") == NAME]
    assert span["ph"] == "X"
    assert span["dur"] > 0
