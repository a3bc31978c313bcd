"""What every source of sensor readings offers, whatever the maker of the GPU.

A source numbers the GPUs of a machine as its driver does. That number is never
CUDA's: ``devices`` ties the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from diagnose.errors import RecordingError
from diagnose.schema import SAMPLES

COLUMNS = tuple(
    column.name for column in SAMPLES.columns if column.name not in ("source", "unix_ns")
)
"""The columns of ``*.telemetry.csv`` after ``unix_ns``, in their order."""

Values = Mapping[str, float | None]
"""Column -> reading in the column's unit; None or absent: not measured. Never 0 for "unknown"."""


class TelemetryUnavailableError(RecordingError):
    """No sensor can be read here. The message is a sentence for the recording's notes."""

    code = "telemetry-unavailable"


@dataclass(frozen=True)
class GpuIdentity:
    """One GPU as the driver names it. None: the driver does not say."""

    index: int
    """The driver's own number, not CUDA's."""
    uuid: str | None
    """As ``GPU-5e7c0a3e-...``."""
    pci_bus_id: str | None
    """As ``00000000:1B:00.0``."""
    name: str | None = None
    memory_bytes: int | None = None
    mig_enabled: bool | None = None
    """Whether it is split into instances, whose share the readings cannot tell apart."""


@dataclass(frozen=True)
class MigIdentity:
    """One MIG instance and the GPU it is a part of."""

    uuid: str
    parent_index: int


class TimedValues(NamedTuple):
    """Readings that came with a time of their own (``unix_ns``: the host's wall clock)."""

    unix_ns: int
    values: Values


class Source(Protocol):
    """Readings of the GPUs of this machine. One thread at a time may call it.

    No method but the constructor raises for what a driver does: a sensor that a
    GPU lacks is absent, one that fails later is dropped and named in ``notes``.
    """

    kind: str

    @property
    def notes(self) -> list[str]:
        """Sentences on what could not be read."""

    def gpus(self) -> list[GpuIdentity]:
        """All GPUs, by the driver's number. One that does not answer has no UUID, and a note."""

    def mig_devices(self) -> list[MigIdentity]:
        """All MIG instances; empty where there are none or the driver hides them."""

    def prepare(self, index: int) -> None:
        """Find out what a GPU can be asked, so that its first reading takes no longer than others.

        Done by the first reading otherwise. Safe to call again.
        """

    def sample(self, index: int, *, everything: bool = False) -> dict[str, float | None]:
        """Read one GPU now. What changes slowly is left out most of the time.

        ``everything`` reads that too, as for the first and the last row of a file.
        An index that does not exist, or a GPU that is lost, gives an empty answer.
        """

    def pending(self, index: int, *, everything: bool = False) -> list[TimedValues]:
        """What the driver noted on its own since the last call, by time. Never waits."""

    def describe(self, index: int) -> dict[str, Any]:
        """Identity and topology of one GPU for ``*.env.json``; unknown keys are left out."""

    def processes(self, index: int) -> list[int]:
        """Pids that compute on a GPU, as the host counts them (not as a container does)."""

    def close(self) -> None:
        """Let go of the driver. Calling it twice is fine."""


def gpus_of_pid(source: Source, pid: int) -> list[int]:
    """The driver's numbers of the GPUs a process computes on; ``pid`` as the host counts it.

    Several are common: a process may hold a context on a GPU that it does not train on.
    """
    return [gpu.index for gpu in source.gpus() if pid in source.processes(gpu.index)]


def gpu_of_pid(source: Source, pid: int) -> int | None:
    """The one GPU a process computes on, by the driver's number; None if none or several."""
    found = gpus_of_pid(source, pid)
    return found[0] if len(found) == 1 else None
