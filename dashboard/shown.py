"""A recording as pages see it: its tables, its report and its timeline, each made once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from diagnose import engine
from diagnose.analysis import Unavailable
from diagnose.errors import UnavailableError
from diagnose.plotting.style import Unit
from diagnose.trace import Table, Trace
from diagnose.wording.labels import gpu_labels
from diagnose.wording.numbers import Scale, scale_for

if TYPE_CHECKING:
    from diagnose.findings import Diagnosis
    from diagnose.lanes import Timeline
    from diagnose.reporters._document import Document


class Shown:
    """One recording. Safe to ask from several threads: what is missing is made by one."""

    def __init__(self, key: str, label: str, trace: Trace) -> None:
        self.key = key
        self.label = label
        self.trace = trace
        self._lock = threading.RLock()
        self._tables: dict[Any, Table | Unavailable] = {}

    @classmethod
    def load(
        cls, key: str, label: str, paths: Sequence[str], progress: Callable[[int], None]
    ) -> Shown:
        """Read it. Raises InputError if nothing could be read."""
        from diagnose.recording import load

        return cls(key, label, load(list(paths), progress=progress).trace)

    @property
    def num_bytes(self) -> int:
        """Bytes of the tables of the trace."""
        trace = self.trace
        tables = (trace.gpu_ops, trace.host_ops, trace.launches, trace.syncs, trace.collectives)
        return sum(table.num_bytes for table in tables)

    def table(self, name: str, **options: Any) -> Table | Unavailable:
        """An analysis, run at most once for the same options; a crash is a reason like others."""
        key = (name, tuple(sorted(options.items())))
        with self._lock:
            if key not in self._tables:
                self._tables[key] = self._run(name, options)
            return self._tables[key]

    def against(self, other: Shown) -> Table | Unavailable:
        """What changed from this recording to another."""
        with self._lock:
            key = ("compare", id(other))
            if key not in self._tables:
                self._tables[key] = self._run("compare", {"other": other.trace})
            return self._tables[key]

    def _run(self, name: str, options: dict[str, Any]) -> Table | Unavailable:
        request = engine.Request(name, options)
        made = engine.diagnose(self.trace, {name: request})
        return made.tables[name] if name in made.tables else made.unavailable[name]

    @cached_property
    def _diagnosis(self) -> Diagnosis:
        from diagnose.recording import Recording

        return Recording(self.trace).diagnosis()

    @property
    def diagnosis(self) -> Diagnosis:
        """What ``diagnose report`` says of it, rules included."""
        with self._lock:
            return self._diagnosis

    @cached_property
    def document(self) -> Document:
        """What the reports say of it beside findings: what was read, its quality, notes."""
        from diagnose.reporters._document import document

        return document(self.diagnosis, unicode=True)

    @cached_property
    def _timeline(self) -> Timeline:
        from diagnose.lanes import Timeline

        return Timeline(self.trace)

    @property
    def timeline(self) -> Timeline:
        """Its lanes on one clock. Raises UnavailableError where nothing has a time."""
        with self._lock:
            if not len(self.trace.gpu_ops) and not len(self.trace.host_ops):
                raise UnavailableError(
                    f"{self.label}: no operation was recorded",
                    hint="record with the activities CPU and CUDA",
                )
            return self._timeline

    @cached_property
    def scale(self) -> Scale:
        """The unit of times on all pages, by the longest window of a GPU."""
        gpus = self.table("overlap", by="rank")
        longest = 0
        if not isinstance(gpus, Unavailable):
            longest = int(gpus["window_ns"][gpus.known("window_ns")].max(initial=0))
        return scale_for(longest)

    @property
    def unit(self) -> Unit:
        """The same, as figures take it."""
        return Unit(self.scale.unit, self.scale.nanoseconds, self.scale.decimals)

    @cached_property
    def labels(self) -> Mapping[tuple[int, int], str]:
        """How each GPU is called."""
        return gpu_labels(self.trace)
