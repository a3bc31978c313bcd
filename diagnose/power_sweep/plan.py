"""What a sweep would do, checked against what the driver allows. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from diagnose.errors import UsageError
from diagnose.telemetry.limits import Limit

MOST_CAPS = 20


class Limits(Protocol):
    """What reads and sets limits: ``diagnose.telemetry.limits.PowerLimits``, or a simulation."""

    def gpus(self) -> dict[int, str]: ...
    def read(self, uuid: str) -> Limit: ...
    def set(self, uuid: str, watts: float) -> None: ...
    def energy_j(self, uuid: str) -> float | None: ...
    def processes(self, uuid: str) -> list[int]: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Plan:
    """The GPUs with their limits as they are, and the caps in the order of the runs.

    The first run is always without a cap: what the others are compared with.
    """

    gpus: tuple[Limit, ...]
    caps_w: tuple[float, ...]

    @property
    def runs(self) -> tuple[float | None, ...]:
        """None stands for the limits as they are."""
        return (None, *self.caps_w)


def parse_caps(text: str) -> list[float]:
    """``700,600,500`` as watts. Raises UsageError."""
    try:
        caps = [float(part) for part in text.split(",")]
    except ValueError:
        caps = []
    if not caps or not all(0 < cap < 1e5 for cap in caps):
        raise UsageError(f"--caps {text!r} is not understood", hint="give watts, as 700,600,500")
    return caps


def parse_gpus(text: str) -> list[int]:
    """``0,1`` as numbers of the driver. Raises UsageError."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise UsageError(
            f"--gpus {text!r} is not understood", hint="give numbers as nvidia-smi does, as 0,1"
        )
    return [int(part) for part in parts]


def plan(limits: Limits, caps_w: Sequence[float], gpus: Sequence[int] | None = None) -> Plan:
    """Check caps and GPUs. ``gpus``: the driver's numbers, None for all of them.

    Raises UsageError for a GPU that is not there and for a cap that a GPU does not
    allow, PowerLimitError where a limit cannot be read.
    """
    known = limits.gpus()
    chosen = sorted(known) if gpus is None else list(dict.fromkeys(gpus))
    missing = [index for index in chosen if index not in known]
    if missing or not chosen:
        raise UsageError(
            f"there is no GPU {missing[0] if missing else 'at all'}",
            hint=f"this machine has GPUs {', '.join(map(str, sorted(known)))}" if known else "",
        )
    caps = tuple(dict.fromkeys(caps_w))
    if len(caps) > MOST_CAPS:
        raise UsageError(f"{len(caps)} caps are too many", hint=f"give at most {MOST_CAPS}")
    found = tuple(limits.read(known[index]) for index in chosen)
    for limit in found:
        wrong = [cap for cap in caps if not limit.least_w <= cap <= limit.most_w]
        if wrong:
            raise UsageError(
                f"GPU {limit.index} ({limit.name}) does not allow a limit of {wrong[0]:g} W",
                hint=f"it allows {limit.least_w:g} to {limit.most_w:g} W",
            )
    return Plan(found, caps)
