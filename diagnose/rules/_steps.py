"""Which steps the figures of a diagnosis are means over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.trace import Gpu, Table, Trace


class Steps(NamedTuple):
    """The timed steps of one GPU; without any, its window as one step."""

    rows: tuple[int, ...]
    """Rows of ``Trace.steps``; empty for a window."""
    step_ns: float
    """Mean time of a step, as sums are divided by their number; or the length of the window."""

    @property
    def timed(self) -> bool:
        """Whether there are steps rather than a window."""
        return bool(self.rows)

    @property
    def number(self) -> int:
        """How many steps sums are divided by."""
        return len(self.rows) or 1


def steps_of(trace: Trace, breakdown: Table) -> Mapping[Gpu, Steps]:
    """The steps of each GPU. Once any GPU has timed steps, those without are left out."""
    found = {gpu: _of(breakdown, gpu) for gpu in trace.gpus}
    if any(steps.timed for steps in found.values()):
        return {gpu: steps for gpu, steps in found.items() if steps.timed}
    return {gpu: steps for gpu, steps in found.items() if steps.step_ns > 0}


def step_rows(table: Table, steps: Steps) -> npt.NDArray[np.bool_]:
    """The rows of a table that belong to the steps; for a window those of no step."""
    if steps.timed:
        inside: npt.NDArray[np.bool_] = np.isin(table["step_row"], steps.rows)
        return inside
    return ~table.known("step_row")


def _of(breakdown: Table, gpu: Gpu) -> Steps:
    mine = (breakdown["source"] == gpu.source) & (breakdown["device"] == gpu.device)
    in_step = mine & breakdown.known("step_row")
    length = breakdown["end_ns"] - breakdown["start_ns"]
    if in_step.any():
        rows = tuple(breakdown["step_row"][in_step].tolist())
        return Steps(rows, float(length[in_step].mean()))
    whole = length[mine]
    return Steps((), float(whole.max()) if whole.size else 0.0)
