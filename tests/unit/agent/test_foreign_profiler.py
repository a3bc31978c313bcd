"""Finding the profilers of a job without holding on to anything else of it."""

from __future__ import annotations

import gc

import pytest

from diagnose.agent import foreign_profiler


class Kind:
    """What is looked for."""


class Derived(Kind):
    """Of a class that the job made of it."""


class Lazy:
    """Claims to be of any class, and must not be asked."""

    @property
    def __class__(self) -> type:
        raise AssertionError("a proxy was woken")


def test_objects_of_a_class_and_of_those_derived_from_it() -> None:
    kept = [Kind(), Derived(), Lazy(), [Kind], {"kind": Kind}]
    found = foreign_profiler._instances((Kind, None))
    assert sorted(map(id, found)) == sorted(map(id, kept[:2]))
    assert foreign_profiler._instances((None,)) == []


def test_no_list_of_all_objects_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would keep the job's tensors alive, and with them the memory of its GPU."""

    def refused() -> list[object]:
        raise AssertionError("every object would be held")

    kept = Kind()
    monkeypatch.setattr(gc, "get_objects", refused)
    assert foreign_profiler._instances((Kind,)) == [kept]
