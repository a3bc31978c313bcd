"""``power_steps``: the energy of each step and of the classes in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.analyzers.power.doing import Doing
from diagnose.analyzers.power.energy import Energy
from diagnose.analyzers.power.fit import ClassPowers
from diagnose.analyzers.power.study import Study, study
from diagnose.analyzers.power.summary import mean_of, peak_sensor, spread, too_short
from diagnose.analyzers.power.tables import POWER_STEPS, table_of
from diagnose.schema import NULL
from diagnose.timeline.overlap import steps_missing
from diagnose.timeline.step_times import of_source, step_times
from diagnose.trace import Table, Trace

Row = dict[str, Any]


def power_steps(trace: Trace) -> Table | Unavailable:
    """The energy of each step that has a step time, once per physical GPU.

    Read off the counter where the step is at least ten refreshes long; else the times of
    the classes in it times their powers, where these are known; else absent, with the reason.
    """
    missing = steps_missing(trace)
    if missing is not None:
        return missing
    studies = study(trace)
    missing = studies.unavailable
    if missing is not None:
        return missing
    rows = [row for found in studies.known for row in _rows(trace, found)]
    if not rows:
        return Unavailable(
            "no step has a step time on a GPU with telemetry", "record at least three steps"
        )
    return table_of(POWER_STEPS, rows)


def _rows(trace: Trace, found: Study) -> list[Row]:
    gpu = found.card.gpus[0]
    base = trace.sources[gpu.source].base_ns or 0
    first = of_source(trace.steps, gpu.source).start
    begin, end = step_times(trace, gpu)
    timed = np.flatnonzero(end != NULL)
    rows = []
    for place in timed.tolist():
        start, stop = int(begin[place]) + base, int(end[place]) + base
        row: Row = {"source": gpu.source, "device": gpu.device, "step_row": first + place}
        row |= {"step_ns": stop - start, "num_refreshes": 0}
        rows.append(row | _of_step(found, start, stop))
    return rows


def _of_step(found: Study, begin: int, end: int) -> Row:
    times, samples = found.times, found.samples
    edges = times.until(times.seconds([begin, end]))
    seconds = edges[1] - edges[0]
    row: Row = {f"{doing.name.lower()}_ns": round(1e9 * seconds[doing]) for doing in Doing}
    row["clock_mhz"] = mean_of(samples["unix_ns"], samples["sm_clock_mhz"], begin, end)
    name = peak_sensor(samples)
    if name is not None:
        inside = samples.known(name) & (samples["unix_ns"] >= begin) & (samples["unix_ns"] < end)
        if inside.any():
            row["peak_w"] = float(samples[name][inside].max())
    if found.counter is not None:
        row["num_refreshes"] = found.counter.num_refreshes(begin, end)
    powers, why = found.powers, too_short(found, begin, end, "the step")
    if isinstance(powers, ClassPowers):
        row |= {
            f"{doing.name.lower()}_j": powers.fitted[doing] * seconds[doing]
            for doing in Doing
            if not np.isnan(powers.watts[doing])
        }
    if why is None and found.counter is not None:
        return row | _energy(found.counter.between(begin, end), "counter", end - begin)
    inside_window = begin >= times.start_ns and end <= times.end_ns
    if isinstance(powers, ClassPowers) and inside_window:
        energy = Energy(*powers.energy(seconds), row["num_refreshes"])
        return row | _energy(energy, "class powers", end - begin)
    return row | {"why": why if isinstance(powers, ClassPowers) else f"{why}, and {powers}"}


def _energy(energy: Energy, method: str, length_ns: int) -> Row:
    return spread("energy_j", energy) | {
        "method": method,
        "mean_w": energy.joules / (length_ns / 1e9),
    }
