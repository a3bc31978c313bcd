"""Sensor readings of the GPUs that a window's ranks train on, from before it to after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from diagnose.attach.session import Member
from diagnose.errors import RecordingError, UsageError
from diagnose.manifest import RecordingNote
from diagnose.telemetry import (
    GpuIdentity,
    Sampler,
    Source,
    TelemetryUnavailableError,
    gpu_of_rank,
    gpus_of_pid,
    open_source,
)

REFRESH_S = 0.4
"""How long readings go on after the last GPU work of the window: what a sensor says lags by
150 ms, and is renewed every 100 ms; 300 ms of new readings are wanted, and one more."""


class Sensors:
    """The sampler of one window. Nothing here fails a recording: it becomes a note."""

    def __init__(
        self, *, wanted: bool = True, open_sensors: Callable[[], Source] = open_source
    ) -> None:
        self._wanted = wanted
        self._open = open_sensors
        self._source: Source | None = None
        self._sampler: Sampler | None = None
        self._gpus: dict[Member, GpuIdentity] = {}

    def start(self, files: Mapping[Member, Path], notes: list[RecordingNote]) -> None:
        """Begin to read the GPU of each member into its file."""
        if not self._wanted:
            return
        try:
            self._source = self._open()
        except TelemetryUnavailableError as error:
            notes.append(_missing(f"no telemetry: {error.message}"))
            return
        targets: dict[int | str, list[Path]] = {}
        unknown: dict[str, list[int]] = {}
        for member, path in files.items():
            index, reason = self._gpu(member)
            if index is None:
                unknown.setdefault(reason, []).append(member.rank or 0)
            else:
                targets.setdefault(index, []).append(path)
        for reason, ranks in unknown.items():
            who = ", ".join(map(str, ranks))
            notes.append(
                _missing(f"no telemetry of rank {who}: which GPU it uses is unknown, {reason}")
            )
        if not targets:
            return
        try:
            sampler = Sampler(self._source, dict(targets))
            sampler.start()
            self._sampler = sampler
        except (RecordingError, UsageError) as error:
            notes.append(_missing(f"no telemetry: {error.message}"))

    def _gpu(self, member: Member) -> tuple[int | None, str]:
        assert self._source is not None
        if member.process is None:
            return None, "it runs on another host"
        environ: Mapping[str, str] | None = None
        with suppress(RecordingError):
            environ = member.process.environ
        gpus = self._source.gpus()
        uuid, device = member.status.get("gpu_uuid"), member.status.get("cuda_device")
        found = gpu_of_rank(
            gpus,
            gpu_uuid=uuid if isinstance(uuid, str) else None,
            cuda_device=device if isinstance(device, int) else None,
            environ=environ,
            computes_on=gpus_of_pid(self._source, member.pid),
            mig_devices=self._source.mig_devices(),
        )
        if found.device is None:
            return None, found.reason
        index = found.device.index
        for gpu in gpus:
            if gpu.index == index:
                self._gpus[member] = gpu
        return index, found.reason

    def stop_after_refresh(self, notes: list[RecordingNote], ended_s: float) -> None:
        """Stop once the driver has renewed its readings after the window.

        ``ended_s``: when all of its GPU work was done, by ``time.monotonic``.
        """
        left_s = ended_s + REFRESH_S - time.monotonic()
        if self._sampler is not None and left_s > 0:
            time.sleep(left_s)
        self.stop(notes)

    def stop(self, notes: list[RecordingNote]) -> None:
        """Finish the files. Later calls do nothing."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            said = sampler.stop().notes
            notes += [RecordingNote("telemetry", "info", sentence) for sentence in said]

    def describe(self, member: Member) -> dict[str, Any]:
        """Identity and topology of a member's GPU, empty if unknown."""
        gpu = self._gpus.get(member)
        if gpu is None or self._source is None:
            return {}
        return self._source.describe(gpu.index)

    def uuid(self, member: Member) -> str | None:
        """The UUID of the member's GPU."""
        gpu = self._gpus.get(member)
        return None if gpu is None else gpu.uuid

    def close(self) -> None:
        """Let go of the driver."""
        source, self._source = self._source, None
        if source is not None:
            source.close()


def _missing(sentence: str) -> RecordingNote:
    return RecordingNote("telemetry-missing", "info", sentence)
