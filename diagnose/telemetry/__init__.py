"""Readings of a GPU's sensors: power, clocks, temperature, errors, counters.

The only package that talks to NVML or AMD SMI, always from the process of the person
who records, never inside a training job. It reads and changes nothing::

    source = telemetry.open_source()             # TelemetryUnavailableError says why not
    found = telemetry.gpu_of_rank(source.gpus(), gpu_uuid=uuid)
    with telemetry.Sampler(source, {found.device.index: "out/rank00000.telemetry.csv"}):
        ...                                       # sampled until here
    source.close()

``python -m diagnose.telemetry`` does the same as a process of its own. What the columns
mean is in ``docs/telemetry.md``.
"""

from __future__ import annotations

from typing import Any

from diagnose.telemetry.clock_reasons import (
    CLOCK_REASONS,
    ClockReason,
    clock_reason_names,
    clock_reasons,
)
from diagnose.telemetry.devices import VisibleDevice, visible_devices, with_uuid
from diagnose.telemetry.rank_gpu import RankGpu, gpu_of_rank
from diagnose.telemetry.sampler import Sampled, Sampler
from diagnose.telemetry.source import (
    COLUMNS,
    GpuIdentity,
    MigIdentity,
    Source,
    TelemetryUnavailableError,
    TimedValues,
    gpu_of_pid,
    gpus_of_pid,
)

__all__ = [
    "CLOCK_REASONS",
    "COLUMNS",
    "ClockReason",
    "GpuIdentity",
    "MigIdentity",
    "RankGpu",
    "Sampled",
    "Sampler",
    "Source",
    "TelemetryUnavailableError",
    "TimedValues",
    "VisibleDevice",
    "clock_reason_names",
    "clock_reasons",
    "gpu_of_pid",
    "gpu_of_rank",
    "gpus_of_pid",
    "open_source",
    "sources",
    "visible_devices",
    "with_uuid",
]


def sources() -> tuple[str, ...]:
    """The kinds of source that read hardware, in the order in which they are tried."""
    return ("nvml", "amdsmi")


def open_source(kind: str | None = None, **options: Any) -> Source:
    """The sensors of this machine: of the first kind that works, or of ``kind``.

    ``options`` go to the source: ``nvml=`` or ``amdsmi=`` for another binding, ``paths=``
    and ``speed=`` for kind ``replay``. Raises TelemetryUnavailableError, whose message is a
    sentence for the notes of a recording; where no kind works it is NVML's reason.
    """
    if kind == "nvml":
        from diagnose.telemetry.nvml import NvmlSource

        return NvmlSource(**options)
    if kind == "amdsmi":
        from diagnose.telemetry.amd import AmdSource

        return AmdSource(**options)
    if kind == "replay":
        from diagnose.telemetry.replay import ReplaySource

        return ReplaySource(**options)
    if kind is not None:
        raise ValueError(f"no kind of source: {kind!r}")
    reasons: list[TelemetryUnavailableError] = []
    for each in sources():
        try:
            return open_source(each)
        except TelemetryUnavailableError as error:
            reasons.append(error)
    raise reasons[0]
