"""What the sensors said while a GPU worked, for several rules."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.rules._facts import Facts
from diagnose.trace import Gpu, Table

IDLE_BIT = 0x1
"""Of ``clocks_event_reasons``: nothing runs on the GPU."""


def samples_of(facts: Facts, gpu: Gpu) -> Table:
    """The rows of a GPU's process, by time; none where the process has several GPUs."""
    samples = facts.trace.samples
    devices = {one.device for one in facts.trace.gpus if one.source == gpu.source}
    return samples.take((samples["source"] == gpu.source) & (len(devices) == 1))


def busy_samples_of(facts: Facts, gpu: Gpu) -> Table:
    """The rows within the window of the GPU's work, without those that say it idled."""
    samples = samples_of(facts, gpu)
    base = facts.trace.sources[gpu.source].base_ns
    ops = facts.trace.gpu_ops.take(facts.trace.on(gpu))
    if base is None or not len(ops):
        return samples.take(np.zeros(len(samples), bool))
    time = samples["unix_ns"] - base
    inside = (time >= int(ops["start_ns"].min())) & (time < int(ops["end_ns"].max()))
    return samples.take(inside & ~holds(samples, IDLE_BIT))


def holds(samples: Table, bit: int) -> npt.NDArray[np.bool_]:
    """The rows in which a reason for lowered clocks held; rows that do not know it are False."""
    mask = samples["clocks_event_reasons"]
    known = (mask >= 0) & (mask < 2.0**53)
    held: npt.NDArray[np.bool_] = (np.where(known, mask, 0).astype(np.int64) & bit) != 0
    return held
