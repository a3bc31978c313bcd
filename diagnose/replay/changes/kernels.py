"""Changes of how long compute takes: a family of kernels faster, higher clocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.contention._clock import readings
from diagnose.replay.change import Assume, Change
from diagnose.replay.changes._edit import scaled
from diagnose.replay.changes._which import (
    is_compute,
    is_family,
    known_families,
    named,
)
from diagnose.replay.model import Model

COMPUTE_BOUND = ("gemm", "attention", "convolution")
"""Families limited by the multiprocessors where they are large; the others by memory."""


@dataclass(frozen=True, kw_only=True)
class FasterKernels(Change):
    """Kernels of a ``family``, or with ``name`` in their name, are ``factor`` times as fast.

    Families are those of ``diagnose.names`` (gemm, attention, elementwise, norm, optimizer,
    reduction...). ``name`` is a part of the kernel's name; case and blanks do not count. With both,
    both have to hold; with neither, all compute is meant. Pauses between kernels stay.
    """

    id = "faster-kernels"
    title = "kernels faster"
    searched = False
    factor: float = 2.0
    family: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.factor <= 0:
            raise ValueError("factor has to be above 0")
        if self.family is not None and self.family not in (*known_families(), "other"):
            raise ValueError(
                f"there is no family {self.family!r}: one of {', '.join(known_families())}, other"
            )

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        chosen = is_compute(model)
        if self.family is not None:
            chosen &= is_family(model, self.family)
        if self.name is not None:
            chosen &= named(model, self.name)
        if not chosen.any():
            return Unavailable(
                "no kernel of the replayed steps is of this family and name",
                "`diagnose report` shows the kernels by family",
            )
        duration = model.operations.duration_ns
        faster = scaled(duration, 1 / self.factor)
        return model.with_operations(duration_ns=np.where(chosen, faster, duration))


@dataclass(frozen=True, kw_only=True)
class HigherClocks(Change):
    """The multiprocessors run at ``mhz`` instead of at the clock that telemetry saw.

    Matrix products, attention and convolutions take clock / mhz of their time: they are bound
    by the multiprocessors. Others are bound by memory, whose clock stays: they keep their
    time (most gain: they scale too). Communication and pauses stay. The clock is the mean
    of the samples in the replayed steps, else of all.
    """

    id = "higher-clocks"
    title = "higher clock of the multiprocessors"
    searched = False
    mhz: float

    def __post_init__(self) -> None:
        if self.mhz <= 0:
            raise ValueError("mhz has to be above 0")

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        seen = np.array([_clock_mhz(model, number) for number in range(len(model.trace.gpus))])
        if np.isnan(seen).all():
            return Unavailable(
                "no telemetry says which clock the GPUs ran at",
                "record with telemetry: `diagnose attach` and `diagnose record` do",
            )
        ratio = np.where(np.isnan(seen), 1.0, seen / self.mhz)
        ops = model.operations
        chosen = is_compute(model)
        if assume != Assume.MOST:
            chosen &= is_family(model, *COMPUTE_BOUND)
        faster = scaled(ops.duration_ns, ratio[ops.gpu])
        changed = model.with_operations(duration_ns=np.where(chosen, faster, ops.duration_ns))
        shown = ", ".join(f"{one:.0f}" for one in seen if not np.isnan(one))
        changed = changed.remarked(f"The clocks of the GPUs were {shown} MHz (mean).")
        missing = int(np.isnan(seen).sum())
        if missing:
            changed = changed.remarked(f"{missing} GPUs without telemetry keep their times.")
        return changed


def _clock_mhz(model: Model, number: int) -> float:
    """Mean clock of a GPU in the replayed steps; NaN: not sampled."""
    trace, ops = model.trace, model.operations
    time, clock = readings(trace, trace.gpus[number], "sm_clock_mhz")
    time, clock = time[clock > 0], clock[clock > 0]
    rows = ops.row[(ops.gpu == number) & (ops.row >= 0)]
    if not clock.size or not rows.size:
        return float("nan")
    begin, end = trace.gpu_ops["start_ns"][rows].min(), trace.gpu_ops["end_ns"][rows].max()
    inside = (time >= begin) & (time <= end)
    return float(clock[inside].mean() if inside.any() else clock.mean())


CHANGES = (FasterKernels, HigherClocks)
