"""What a sweep would do, checked against what the driver allows. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from diagnose.errors import UsageError
from diagnose.telemetry.devices import visible_devices
from diagnose.telemetry.limits import Limit
from diagnose.telemetry.source import GpuIdentity

MOST_CAPS = 20
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Limits(Protocol):
    """What reads and sets limits: ``diagnose.telemetry.limits.PowerLimits``, or a simulation."""

    def gpus(self) -> dict[int, str]: ...
    def identities(self) -> list[GpuIdentity]: ...
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


def parse_gpus(text: str) -> list[int | str]:
    """``0,1`` or UUIDs. Raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() or part.startswith("GPU-") for part in parts):
        raise UsageError(
            f"--gpus {text!r} is not understood",
            hint="give numbers, as 0,1, or UUIDs as `nvidia-smi -L` shows them",
        )
    return [int(part) if part.isdecimal() else part for part in parts]


def chosen_gpus(
    limits: Limits, asked: Sequence[int | str] | None, environ: Mapping[str, str]
) -> list[int] | None:
    """The driver's numbers of the GPUs to limit; None: all there are.

    ``environ`` is what the job will see. Where that names ``CUDA_VISIBLE_DEVICES``, numbers are
    the job's own (``cuda:0``, ``cuda:1``), and none given means those it is shown: others' GPUs
    keep their limits. Else numbers are the driver's. Raises UsageError.
    """
    value = environ.get(_VISIBLE)
    if asked is None and value is None:
        return None
    by_uuid = {uuid: index for index, uuid in limits.gpus().items()}
    numbers = [one for one in asked or () if isinstance(one, int)]
    shown = _shown(limits, value, environ) if value is not None and (numbers or not asked) else None
    found: list[int] = []
    for one in range(len(shown or ())) if asked is None else asked:
        if isinstance(one, str):
            if one not in by_uuid:
                raise UsageError(f"there is no GPU {one}", hint="look at `nvidia-smi -L`")
            found.append(by_uuid[one])
        elif shown is None:
            found.append(one)
        elif one < len(shown):
            found.append(shown[one])
        else:
            raise UsageError(
                f"the job is shown {len(shown)} GPUs ({_VISIBLE}={value}), cuda:{one} is none",
                hint="with that variable set, numbers are those of the job; UUIDs work as well",
            )
    return found


def _shown(limits: Limits, value: str | None, environ: Mapping[str, str]) -> list[int]:
    """The driver's numbers of ``cuda:0``, ``cuda:1``, ..."""
    devices = visible_devices(
        value, limits.identities(), device_order=environ.get("CUDA_DEVICE_ORDER")
    )
    if not devices or any(device.mig for device in devices):
        raise UsageError(
            f"which whole GPUs the job is shown by {_VISIBLE}={value} cannot be told",
            hint="name the GPUs to limit by UUID with --gpus, as `nvidia-smi -L` shows them",
        )
    return [device.index for device in devices]


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
