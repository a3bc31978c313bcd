"""The recordings that are open: loaded when somebody asks, in a thread, kept while memory allows.

The one looked at longest ago leaves first; one whose files changed is read anew.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dashboard.catalogue import Entry, entries_of
from dashboard.shown import Shown
from diagnose.errors import DiagnoseError, InputNotFoundError, UsageError
from diagnose.readers import files, memory

# The trace itself, what the timeline keeps of it, and the tables that pages ask for.
_BYTES_PER_BYTE = 2.5
_SCAN_S = 1.0
"""What is listed is at most so old."""
_TOGETHER_S = 5.0
_RETRY_S = 5.0
"""What failed is tried again when somebody asks later, not by the page that says so."""
_GIVE_IT = "give the folder that it points to to `diagnose dashboard` as well"


@dataclass
class Opening:
    """A recording on its way: how far, and what came of it."""

    entry: Entry
    done_bytes: int = 0
    shown: Shown | None = None
    error: DiagnoseError | None = None
    used_s: float = field(default_factory=time.monotonic)
    failed_s: float = math.inf
    """When it failed."""
    finished: threading.Event = field(default_factory=threading.Event)

    @property
    def done_pct(self) -> float:
        """Of the stored bytes; 100 while what was read is put together."""
        return (
            min(100.0 * self.done_bytes / self.entry.num_bytes, 100.0)
            if self.entry.num_bytes
            else 100.0
        )


class Library:
    """The recordings under the paths that were given.

    ``limit_bytes``: what loaded recordings may keep together (default: 80 % of what is
    free now). Raises InputNotFoundError if a path does not exist.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        limit_bytes: int | None = None,
        load: Callable[..., Shown] | None = None,
    ) -> None:
        for path in paths:
            if not files.is_folder(path) and not files.is_file(path):
                raise InputNotFoundError(f"{path}: no such file or folder", hint="check the path")
        self.paths = tuple(paths)
        limit = memory.default_limit_bytes() if limit_bytes is None else limit_bytes
        self._limit = math.inf if limit is None else limit
        self._load = load or Shown.load
        self._opened: dict[str, Opening] = {}
        self._entries: tuple[Entry, ...] = ()
        self._scanned_s = -math.inf
        self._lock = threading.RLock()
        # Looking through folders takes its time; who asks for what is loaded does not wait for it.
        self._scan = threading.Lock()

    def entries(self) -> tuple[Entry, ...]:
        """What there is now: recordings appear while a job is recorded."""
        with self._scan:
            if time.monotonic() - self._scanned_s > _SCAN_S:
                self._entries = entries_of(self.paths)
                self._scanned_s = time.monotonic()
            return self._entries

    def entry(self, key: str | None) -> Entry | None:
        """The recording of a key; the only one there is for no key."""
        known = self.entries()
        if key is None:
            return known[0] if len(known) == 1 else None
        return next((entry for entry in known if entry.key == key), None)

    def at(self, folder: Path) -> Entry | None:
        """The recording in a folder, if it is listed."""
        place = folder.resolve()
        for entry in self.entries():
            if any(not files.is_url(one) and Path(one).resolve() == place for one in entry.paths):
                return entry
        return None

    def open(self, entry: Entry) -> Opening:
        """Start to load a recording, if that has not begun yet or failed a while ago.

        Returns at once.
        """
        with self._lock:
            opening = self._opened.get(entry.key)
            if opening is None or _is_over(opening, entry):
                opening = self._opened[entry.key] = Opening(entry)
                threading.Thread(target=self._read, args=(opening,), daemon=True).start()
            opening.used_s = time.monotonic()
            return opening

    def shown(self, key: str | None) -> Shown | None:
        """A recording that is loaded already; None: it is not."""
        if key is None and (only := self.entry(None)) is not None:
            key = only.key
        with self._lock:
            opening = self._opened.get(key or "")
            if opening is None or opening.shown is None:
                return None
            opening.used_s = time.monotonic()
            return opening.shown

    def _read(self, opening: Opening) -> None:
        def read(num_bytes: int) -> None:
            opening.done_bytes += num_bytes

        try:
            if opening.entry.refused:
                raise UsageError(f"{opening.entry.label}: {opening.entry.refused}", hint=_GIVE_IT)
            opening.shown = self._load(
                opening.entry.key, opening.entry.label, opening.entry.paths, read
            )
        except DiagnoseError as error:
            opening.error = error
        except MemoryError:
            opening.error = DiagnoseError(
                f"{opening.entry.label}: memory ran out", hint="open fewer ranks at once"
            )
        except Exception as error:  # noqa: BLE001 - a page says it; the server goes on
            opening.error = DiagnoseError(
                f"{opening.entry.label}: reading it failed: {type(error).__name__}: {error}",
                hint="this is a bug: please report it with the output of `diagnose report`",
            )
        finally:
            if opening.error is not None:
                opening.failed_s = time.monotonic()
            opening.finished.set()
        self._make_room(opening)

    def _make_room(self, newest: Opening) -> None:
        with self._lock:
            held = [one for one in self._opened.values() if one.shown is not None]
            held.sort(key=lambda one: one.used_s)
            kept = sum(_weight(one) for one in held)
            for one in held:
                if kept <= self._limit:
                    break
                # What a page asks for together, as a comparison, must not push out each other.
                if one is newest or newest.used_s - one.used_s < _TOGETHER_S:
                    continue
                kept -= _weight(one)
                self._opened.pop(one.entry.key, None)


def _is_over(opening: Opening, entry: Entry) -> bool:
    """Whether a recording has to be read anew: its files changed, or it failed a while ago."""
    if not opening.finished.is_set():
        return False
    return opening.entry != entry or time.monotonic() - opening.failed_s > _RETRY_S


def _weight(opening: Opening) -> float:
    return 0.0 if opening.shown is None else _BYTES_PER_BYTE * opening.shown.num_bytes
