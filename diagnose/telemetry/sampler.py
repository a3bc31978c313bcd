"""A thread that reads the sensors of some GPUs and writes ``*.telemetry.csv``."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from diagnose.errors import UsageError
from diagnose.telemetry.csv_file import TelemetryFile
from diagnose.telemetry.devices import with_uuid
from diagnose.telemetry.pace import CORE_SHARE, INTERVAL_S, Pace
from diagnose.telemetry.source import Source, TimedValues

PathLike = str | os.PathLike[str]
_STOP_PATIENCE_S = 5.0
_REMEMBERED = 4096


@dataclass(frozen=True)
class Sampled:
    """What a sampler did. ``files`` are whole; a GPU without any reading has none."""

    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    num_readings: int = 0
    median_interval_s: float | None = None
    median_cost_s: float | None = None
    """Of one reading of all GPUs, start to end."""
    processor_s: float = 0.0
    """What the thread used of a core, altogether."""


@dataclass
class _Target:
    index: int
    files: list[TelemetryFile] = field(default_factory=list)


class Sampler:
    """Reads GPUs from ``start`` to ``stop``, or as a context manager.

    ``targets``: the driver's number or a UUID of a GPU -> where its readings go. Ranks
    that share a GPU share its readings: one sampling, written to several files. Aims at
    one reading of all GPUs every ``interval_s``, and reads less often where that would use
    more than ``core_share`` of a core.

    A row is stamped with the middle of its reading, in unix ns. The error is at most half
    of the GPU's reading (usually 3 to 30 ms long), plus the age of the value itself, since
    a driver renews power only about every 100 ms.

    ``start`` raises OutputError if a file cannot be created and UsageError for a GPU that
    does not exist. Nothing is raised afterwards. The source stays open.
    """

    def __init__(
        self,
        source: Source,
        targets: Mapping[int | str, PathLike | Sequence[PathLike]],
        *,
        interval_s: float = INTERVAL_S,
        core_share: float = CORE_SHARE,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._source, self._unix_ns = source, unix_ns
        self._paths = _paths_by_index(source, targets)
        self._pace = Pace(interval_s, core_share)
        self._targets: list[_Target] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.ready = threading.Event()
        """Set after the first reading, and when the thread ends."""
        self.num_readings = 0
        """So far."""
        self._starts_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._costs_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._processor_s = 0.0
        self._broken: str | None = None
        self._result: Sampled | None = None

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Create the files and begin."""
        if self._thread is not None:
            raise RuntimeError("a sampler is started once")
        created: list[TelemetryFile] = []
        try:
            for index, paths in self._paths.items():
                target = _Target(index)
                self._targets.append(target)
                for path in paths:
                    target.files.append(TelemetryFile(path))
                    created.append(target.files[-1])
        except BaseException:
            for file in created:
                file.discard()
            raise
        self._thread = threading.Thread(target=self._run, name="diagnose-telemetry", daemon=True)
        self._thread.start()

    def stop(self) -> Sampled:
        """Read once more, end the thread, finish the files. Later calls give the same answer."""
        if self._result is not None:
            return self._result
        if self._thread is None:
            return Sampled()
        self._stop.set()
        self._thread.join(_STOP_PATIENCE_S)
        notes = list(self._source.notes)
        if self._thread.is_alive():
            notes.append("the driver has not answered for 5 s; its last reading is missing")
        if self._broken is not None:
            notes.append(self._broken)
        finished = []
        for file in [file for target in self._targets for file in target.files]:
            if file.finish():
                finished.append(file.path)
            elif file.problem is None:
                notes.append(f"{file.path.name}: this GPU gave no reading, so there is no file")
            notes += [file.problem] if file.problem is not None else []
        starts = list(self._starts_s)
        self._result = Sampled(
            tuple(finished),
            tuple(notes),
            self.num_readings,
            _median([after - before for before, after in itertools.pairwise(starts)]),
            _median(list(self._costs_s)),
            self._processor_s,
        )
        return self._result

    def _run(self) -> None:
        try:
            for target in self._targets:
                self._source.prepare(target.index)
            self._read_until_stopped()
        except Exception as error:  # noqa: BLE001 - a defect here must not cost the recording
            self._broken = f"reading the sensors ended early ({type(error).__name__}: {error})"
        finally:
            self.ready.set()

    def _read_until_stopped(self) -> None:
        while True:
            last = self._stop.is_set()
            used_s, start_s = time.thread_time(), time.monotonic()
            for target in self._targets:
                # The first row and the last have what changes slowly too.
                self._read(target, everything=last or not self.num_readings)
            end_s = time.monotonic()
            used_s = time.thread_time() - used_s
            self._starts_s.append(start_s)
            self._costs_s.append(end_s - start_s)
            self._processor_s += used_s
            self.num_readings += 1
            self.ready.set()
            if last:
                return
            self._stop.wait(self._pace.wait_s(start_s, end_s, used_s))

    def _read(self, target: _Target, *, everything: bool) -> None:
        before_ns = self._unix_ns()
        values = self._source.sample(target.index, everything=everything)
        after_ns = self._unix_ns()
        rows = self._source.pending(target.index, everything=everything)
        rows = [*rows, TimedValues((before_ns + after_ns) // 2, values)]
        now_s = time.monotonic()
        for file in target.files:
            for row in rows:
                file.write(row.unix_ns, row.values, now_s)


def _paths_by_index(
    source: Source, targets: Mapping[int | str, PathLike | Sequence[PathLike]]
) -> dict[int, list[PathLike]]:
    gpus, migs = source.gpus(), source.mig_devices()
    by_index: dict[int, list[PathLike]] = {}
    for name, given in targets.items():
        paths = [given] if isinstance(given, (str, os.PathLike)) else list(given)
        index = name if isinstance(name, int) else None
        if isinstance(name, str):
            device = with_uuid(name, gpus, migs)
            index = None if device is None else device.index
        if index is None or all(gpu.index != index for gpu in gpus):
            known = ", ".join(gpu.uuid or str(gpu.index) for gpu in gpus)
            raise UsageError(f"there is no GPU {name}", hint=f"the driver lists {known}")
        by_index.setdefault(index, []).extend(paths)
    return by_index


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
