"""Starts a job with the cooperative agent and watches it: what `run` does for each start."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.attach.launching.flight_recorder import StepLog, TelemetryLog
from diagnose.attach.launching.launch import Launched, environment, processes
from diagnose.attach.launching.retention import Limits, Windows
from diagnose.attach.launching.triggers import Trigger
from diagnose.attach.launching.watch import Recorder, Seen, Watch
from diagnose.errors import OutputError, RecordingError

if TYPE_CHECKING:
    from diagnose.collect import Options
    from diagnose.telemetry import Source

_SILENT_AFTER_S = 20.0


@dataclass(frozen=True)
class Wanted:
    """What is recorded, where, and within which bounds. ``folder`` None: nothing is kept."""

    triggers: Sequence[Trigger]
    folder: Path | None
    steps: int
    options: Options
    limits: Limits
    telemetry: bool = True
    stop_after_window: bool = False


def say(sentence: str) -> None:
    """Tell the person something, beside what the job itself prints."""
    from diagnose.wording.plain import plain

    if sys.stderr is not None:
        print(f"diagnose: {plain(sentence)}", file=sys.stderr, flush=True)  # noqa: T201


def make_folder(folder: Path) -> None:
    """Make the folder of a run. Raises OutputError unless it is new or empty."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise OutputError(
                f"{folder}: not empty, and a run is never mixed with other files",
                hint="give --output a folder that does not exist yet",
            )
    except OSError as problem:
        raise OutputError(
            f"{folder}: cannot be used for the run ({problem.strerror})",
            hint="give --output a folder that you may write to",
        ) from None


def run_job(
    command: Sequence[str], variables: Mapping[str, str], wanted: Wanted
) -> tuple[int, Seen]:
    """Run the job to its end, recording what is wanted. Its exit status, and what was seen."""
    started = time.monotonic()
    job = Launched.start(command, environment(os.environ, variables))
    log = StepLog(wanted.folder, say=say) if wanted.folder is not None else None
    sensors = _Sensors(wanted.folder if wanted.telemetry else None)
    record = _recorder(wanted)
    if wanted.stop_after_window:
        record = _stopping(record, job)
    watch = Watch(
        lambda: processes(job.mark),
        wanted.triggers,
        record,
        Windows(wanted.folder or Path(), wanted.limits),
        log,
        each_poll=sensors.turn,
        say=say,
    )
    watch.start()
    try:
        status = job.wait()
    finally:
        watch.stop()
        sensors.close()
        if log is not None:
            log.close()
    if not watch.seen.ranks and time.monotonic() - started > _SILENT_AFTER_S:
        say(
            "no training process answered: the agent is not loaded by `python -I` or `-E`, in a "
            "container with another file system, or without PyTorch, and listens from the first "
            "optimizer step on"
        )
    return status, watch.seen


def _recorder(wanted: Wanted) -> Recorder:
    def record(pids: Sequence[int], folder: Path, at_step: int | None) -> None:
        from diagnose import collect
        from diagnose.attach.discovery import discover

        ranks = [rank for rank in discover.ranks() if rank.pid in pids]
        collect.attach(
            ranks,
            folder,
            steps=wanted.steps,
            at_step=at_step,
            options=wanted.options,
            route=collect.Route.cooperative,
        )

    return record


def _stopping(record: Recorder, job: Launched) -> Recorder:
    """Record one window, then end the job, whether that went well or not."""

    def once(pids: Sequence[int], folder: Path, at_step: int | None) -> None:
        try:
            record(pids, folder, at_step)
        finally:
            threading.Thread(target=job.stop, name="diagnose-stop", daemon=True).start()

    return once


class _Sensors:
    """Slow telemetry of the GPUs that the job may see; opened in the thread that uses it."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._log: TelemetryLog | None = None
        self._source: Source | None = None
        self._tried = False

    def turn(self) -> None:
        if not self._tried and self._folder is not None:
            self._tried = True
            self._open(self._folder)
        if self._log is not None:
            self._log.turn()

    def _open(self, folder: Path) -> None:
        from diagnose.telemetry import open_source, visible_devices

        try:
            self._source = open_source()
        except RecordingError as error:
            say(f"no telemetry: {error}")
            return
        gpus = self._source.gpus()
        listed = visible_devices(
            os.environ.get("CUDA_VISIBLE_DEVICES"),
            gpus,
            device_order=os.environ.get("CUDA_DEVICE_ORDER"),
        )
        shown = sorted({d.index for d in listed}) if listed else [gpu.index for gpu in gpus]
        self._log = TelemetryLog(folder, self._source, shown)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            for note in self._log.notes:
                say(note)
        if self._source is not None:
            self._source.close()
