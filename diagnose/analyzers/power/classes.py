"""``power_classes``: the power and energy of each class of time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Unavailable
from diagnose.analyzers.power.doing import NUM_CLASSES, Doing
from diagnose.analyzers.power.energy import AVERAGE_LAG_NS, UNKNOWN_LAG_NS
from diagnose.analyzers.power.fit import ClassPowers, readings, student_t
from diagnose.analyzers.power.study import Study, study
from diagnose.analyzers.power.summary import peak_sensor
from diagnose.analyzers.power.tables import POWER_CLASSES, table_of
from diagnose.trace import Table, Trace

Floats = npt.NDArray[np.float64]
Row = dict[str, Any]

WHOLE = 0.95
"""Share of what a reading may be of, from which it counts as wholly of a class."""
LEAST_WHOLE = 8
"""Readings that a mean with an interval needs."""


def power_classes(trace: Trace) -> Table | Unavailable:
    """Mean power and energy while each GPU computes, communicates, does both, copies, idles.

    By regression over all refreshes where they tell the classes apart; else from the
    refreshes that lie wholly in one class; else absent, with the reason.
    """
    studies = study(trace)
    missing = studies.unavailable
    if missing is not None:
        return missing
    return table_of(POWER_CLASSES, [row for found in studies.known for row in _rows(found)])


def _rows(found: Study) -> list[Row]:
    gpu, times, powers = found.card.gpus[0], found.times, found.powers
    seconds = times.total_ns / 1e9
    whole = _whole_readings(found)
    peaks = _peaks(found)
    rows: list[Row] = []
    for doing in Doing:
        if not times.total_ns[doing]:
            continue
        row: Row = {"source": gpu.source, "device": gpu.device, "doing": int(doing)}
        row |= {"time_ns": int(times.total_ns[doing]), "peak_w": peaks[doing]}
        row["time_pct"] = 100 * seconds[doing] / times.length_s
        row |= {"num_whole": len(whole[doing])}
        if len(whole[doing]):
            row["whole_w"] = float(whole[doing].mean())
        row |= _power(powers, doing, whole[doing], float(seconds[doing]))
        rows.append(row)
    energies = [row.get("energy_j", math.nan) for row in rows]
    for row in rows:
        if not any(map(math.isnan, energies)) and sum(energies) > 0:
            row["energy_pct"] = 100 * row["energy_j"] / sum(energies)
    return rows


def _power(powers: ClassPowers | str, doing: Doing, whole: Floats, seconds: float) -> Row:
    if isinstance(powers, ClassPowers) and not math.isnan(powers.watts[doing]):
        figures = (powers.watts[doing], powers.low[doing], powers.high[doing])
        return _figures("regression", figures, seconds)
    if len(whole) >= LEAST_WHOLE:
        return _figures("whole refreshes", _mean_with_interval(whole), seconds)
    if isinstance(powers, str):
        return {"why": powers}
    return {"why": "it is too rare, or too much like the others, for a power of its own"}


def _figures(method: str, watts: tuple[float, float, float], seconds: float) -> Row:
    named = dict(zip(("mean_w", "mean_low_w", "mean_high_w"), watts, strict=True))
    keys = ("energy_j", "energy_low_j", "energy_high_j")
    joules = dict(zip(keys, (w * seconds for w in watts), strict=True))
    return {"method": method} | named | joules


def _mean_with_interval(power: Floats) -> tuple[float, float, float]:
    """Mean and 95 % interval; what neighbours have in common widens it."""
    rest = power - power.mean()
    spread = float(rest @ rest)
    correlation = float(rest[1:] @ rest[:-1]) / spread if spread else 0.0
    correlation = min(max(correlation, 0.0), 0.9)
    number = max(len(power) * (1 - correlation) / (1 + correlation), 2.0)
    reach = student_t(max(number - 1, 3.0)) * float(power.std(ddof=1)) / math.sqrt(number)
    mean = float(power.mean())
    return mean, max(mean - reach, 0.0), mean + reach


def _shares(found: Study, end: npt.NDArray[np.int64], period_ns: float, slow: bool) -> Floats:
    """For each reading and class: the least share it may have of what the reading is of."""
    powers, times = found.powers, found.times
    if isinstance(powers, ClassPowers):
        low = high = powers.lag_ns
        length = max(powers.watched_ns, period_ns)
    else:
        low, _, high = AVERAGE_LAG_NS if slow else UNKNOWN_LAG_NS
        length = period_ns
    at = times.seconds(end)
    first, last = at - (high + length) / 1e9, at - low / 1e9
    shares = (times.until(last) - times.until(first)) / ((last - first)[:, None])
    shares[(first < 0) | (last > times.length_s)] = 0
    return shares


def _whole_readings(found: Study) -> list[Floats]:
    """For each class the readings of refreshes that lie wholly in it."""
    if found.sensor is None:
        return [np.empty(0)] * NUM_CLASSES
    end, power = readings(found.sensor)
    slow = found.sensor.column == "power_avg_w"
    shares = _shares(found, end, found.sensor.period_ns, slow)
    return [power[shares[:, doing] >= WHOLE] for doing in Doing]


def _peaks(found: Study) -> list[float]:
    """For each class the greatest reading of a moment wholly in it; NaN without one."""
    name = peak_sensor(found.samples)
    if name is None or found.sensor is None:
        return [math.nan] * NUM_CLASSES
    known = found.samples.known(name)
    end, power = found.samples["unix_ns"][known], found.samples[name][known]
    new = np.flatnonzero(power[1:] != power[:-1]) + 1
    end, power = end[new], power[new]
    shares = _shares(found, end, found.sensor.period_ns, slow=False)
    own = [power[shares[:, doing] >= WHOLE] for doing in Doing]
    return [float(readings_.max()) if len(readings_) else math.nan for readings_ in own]
