"""The recordings that are loaded: the last few, the one used longest ago makes room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from diagnose.errors import InputTooLargeError, UsageError
from diagnose.findings import Diagnosis
from diagnose.recording import Recording, load
from diagnose.trace import Trace

MOST_LOADED = 3

Only = Literal["gpu", "launches", "shapes"] | None
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Place:
    """Where a recording is read from, and how much of it."""

    path: str
    only: Only


class Loaded:
    """A trace, and its diagnosis once somebody asks for it."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """What ``diagnose report`` draws, with the settings of the nearest file."""
        return Recording(self.trace).diagnosis()


class Shelf:
    """Recordings by handle. One that made room is read again when it is asked for."""

    def __init__(self, allowed: Callable[[str], str]) -> None:
        self._allowed = allowed
        self._places: dict[str, Place] = {}
        self._loaded: OrderedDict[str, Loaded] = OrderedDict()

    def add(self, path: str, only: Only, progress: Progress | None = None) -> str:
        """Read a recording (again, if it is there already); its handle. Raises InputError."""
        place = Place(self._allowed(path), only)
        known = {there: handle for handle, there in self._places.items()}
        handle = known.get(place, f"r{len(self._places) + 1}")
        self._read(handle, place, progress)
        self._places[handle] = place
        return handle

    def get(self, handle: str, progress: Progress | None = None) -> Loaded:
        """UsageError for a handle that was never given."""
        if handle not in self._places:
            known = ", ".join(f"{name} ({place.path})" for name, place in self._places.items())
            raise UsageError(
                f"no recording is called {handle!r}",
                hint=f"loaded are {known}" if known else "call load with a path first",
            )
        if handle not in self._loaded:
            place = self._places[handle]
            self._allowed(place.path)
            self._read(handle, place, progress)
        self._loaded.move_to_end(handle)
        return self._loaded[handle]

    def path(self, handle: str) -> str:
        """What was read under a handle."""
        return self._places[handle].path

    def _read(self, handle: str, place: Place, progress: Progress | None) -> None:
        self._loaded.pop(handle, None)
        while len(self._loaded) >= MOST_LOADED:
            self._loaded.popitem(last=False)
        try:
            recording = load(place.path, only=place.only, progress=progress)
        except InputTooLargeError:
            if not self._loaded:
                raise
            # The limit is a share of what is free: what is kept may be what is missing.
            self._loaded.clear()
            recording = load(place.path, only=place.only, progress=progress)
        self._loaded[handle] = Loaded(recording.trace)
