"""The key figures of a recording: means of the job, and the range over its GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from diagnose.findings import Diagnosis
from diagnose.trace import Table
from diagnose.wording.numbers import Scale, percent
from diagnose.wording.replay import interval_of, scale_of, time_of

_A_STEP = "a step, by GPU"
_NOTABLE = 0.01
"""Of the step: below it copies have no tile."""


class Tile(NamedTuple):
    """One key figure. ``state`` colours its edge as the bars do."""

    label: str
    value: str
    unit: str = ""
    below: str = ""
    state: str = ""


def tiles_of(diagnosis: Diagnosis, scale: Scale) -> Iterator[Tile]:
    """Those that the recording has figures for."""
    shares = diagnosis.tables.get("step_shares")
    gpus = diagnosis.tables.get("gpus")
    if shares is not None and len(shares):
        number = int(shares["num_steps"].max())
        below = f"as recorded, mean of {number} timed step{'s' * (number > 1)}"
        yield Tile("Step time", _range(shares, "step_ns", scale), scale.unit, below)
    if gpus is not None:
        hidden = gpus["overlap_pct"][gpus.known("overlap_pct")]
        if len(hidden):
            value = _joined(percent(float(hidden.min())), percent(float(hidden.max())))
            yield Tile("Communication hidden", value, "%", "of communication, by GPU", "s1")
    if shares is not None and len(shares):
        exposed, idle = "exposed_communication_ns", "idle_ns"
        yield Tile(
            "Exposed communication", _range(shares, exposed, scale), scale.unit, _A_STEP, "s2"
        )
        if shares["memory_only_ns"].max() > _NOTABLE * shares["step_ns"].max():
            copies = _range(shares, "memory_only_ns", scale)
            yield Tile("Copies only", copies, scale.unit, _A_STEP, "s3")
        yield Tile("GPU idle", _range(shares, idle, scale), scale.unit, _A_STEP, "s4")
    yield from _energy(diagnosis)
    yield from _stairs(diagnosis)


def _range(table: Table, column: str, scale: Scale) -> str:
    """Least to most over the GPUs; one figure where they read the same."""
    values = table[column]
    return _joined(scale.show(round(float(values.min()))), scale.show(round(float(values.max()))))


def _joined(low: str, high: str) -> str:
    return low if low == high else f"{low}\u2013{high}"


def _energy(diagnosis: Diagnosis) -> Iterator[Tile]:
    power = diagnosis.tables.get("power")
    if power is None:
        return
    known = power.take(power.known("step_energy_j"))
    if len(known):
        middle = known["step_energy_j"]
        low, high = known["step_energy_low_j"].min(), known["step_energy_high_j"].max()
        value = _joined(f"{middle.min():.1f}", f"{middle.max():.1f}")
        yield Tile("Energy of a step", value, "J", f"{low:.1f} to {high:.1f}, a GPU")


def _stairs(diagnosis: Diagnosis) -> Iterator[Tile]:
    """The change that alone saves most: the first stair."""
    table = diagnosis.tables.get("staircase")
    if table is None or len(table) < 2:
        return
    if table["is_bound"][1] or math.isnan(float(table["added_gain_ns"][1])):
        return
    scale = scale_of(table)
    saved, unit = time_of(scale, float(table["added_gain_ns"][1])).rsplit(" ", 1)
    title = ", ".join((table.texts("title")[1] or "").splitlines())
    below = f"a step{interval_of(scale, table, 1, 'added_gain')}: {title}"
    yield Tile("Largest single gain", saved, unit, below, "accent")
