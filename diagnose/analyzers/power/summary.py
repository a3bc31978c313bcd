"""``power_summary``: one row per physical GPU, for reports."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Unavailable
from diagnose.analyzers.power.cap import Cap, cap_that_hurts
from diagnose.analyzers.power.clock_swings import clock_swing
from diagnose.analyzers.power.energy import LEAST_REFRESHES, Energy
from diagnose.analyzers.power.fit import ClassPowers
from diagnose.analyzers.power.reasons import slowed_ns
from diagnose.analyzers.power.study import Study, study
from diagnose.analyzers.power.tables import POWER_SUMMARY, table_of
from diagnose.schema import NULL
from diagnose.timeline.overlap import steps_missing
from diagnose.timeline.step_times import of_source, step_times
from diagnose.trace import Table, Trace

Floats = npt.NDArray[np.float64]
Row = dict[str, Any]

PEAK_SENSORS = ("power_instant_w", "power_sample_w")


def power_summary(trace: Trace) -> Table | Unavailable:
    """Power, energy, clocks and temperature of each physical GPU.

    Watts, joules, MHz and degrees Celsius; intervals are 95 % or wider. Figures of the
    window are of the recorded GPU work, those called ``recorded_`` of all telemetry.
    """
    studies = study(trace)
    missing = studies.unavailable
    if missing is not None:
        return missing
    rows = [_row(trace, found) for found in studies.known]
    for card, why in studies.others:
        row = {"source": card.gpus[0].source, "device": card.gpus[0].device, "why": why}
        rows.append(row | {"num_ranks": len(card.gpus), "shared_by": card.told_by})
    order = {(gpu.source, gpu.device): place for place, gpu in enumerate(trace.gpus)}
    rows.sort(key=lambda row: order[row["source"], row["device"]])
    return table_of(POWER_SUMMARY, rows)


def _row(trace: Trace, found: Study) -> Row:
    gpu, times = found.card.gpus[0], found.times
    row: Row = {
        "source": gpu.source,
        "device": gpu.device,
        "num_ranks": len(found.card.gpus),
        "shared_by": found.card.told_by,
        "caution": found.card.caution,
        "window_ns": times.end_ns - times.start_ns,
        "num_refreshes": len(found.window_readings),
        "num_steps": 0,
    }
    row["slowed_ns"], row["power_capped_ns"] = slowed_ns(found.samples, times)
    if found.sensor is not None:
        row |= {"sensor": found.sensor.column, "refresh_ns": found.sensor.period_ns}
    row |= _window_energy(found) | _peaks(found) | _clocks(found) | _step_energy(trace, found)
    if isinstance(found.powers, ClassPowers):
        row |= {"lag_ns": found.powers.lag_ns, "watched_ns": found.powers.watched_ns}
    cap = cap_that_hurts(found.window_readings)
    if isinstance(cap, Cap):
        row |= {
            "cap_begins_w": cap.begins_w,
            "cap_begins_low_w": cap.begins_low_w,
            "cap_begins_high_w": cap.begins_high_w,
            "cap_half_w": cap.half_w,
        }
        return row
    return row | {"cap_why": cap}


def spread(name: str, energy: Energy, divisor: float = 1.0) -> Row:
    """A figure and its interval under the keys of a table."""
    stem, suffix = name.rsplit("_", 1)
    return {
        name: energy.joules / divisor,
        f"{stem}_low_{suffix}": energy.low / divisor,
        f"{stem}_high_{suffix}": energy.high / divisor,
    }


def too_short(found: Study, begin_ns: int, end_ns: int, what: str) -> str | None:
    """Why the energy between two moments is not given; None if it is."""
    if found.counter is None or found.sensor is None:
        return "the power sensor had fewer than three new values"
    refresh_ms = found.sensor.period_ns / 1e6
    if found.counter.num_refreshes(begin_ns, end_ns) < LEAST_REFRESHES:
        return (
            f"{what} {'last' if what.endswith('s') else 'lasts'} {(end_ns - begin_ns) / 1e6:,.0f} "
            f"ms, less than {LEAST_REFRESHES} refreshes of the power sensor ({refresh_ms:,.0f} ms "
            "each)"
        )
    if not found.counter.covers(begin_ns, end_ns):
        return f"the telemetry does not cover {what} from one refresh before to one after"
    if found.counter.was_reset(begin_ns, end_ns):
        return f"the energy counter was reset during {what}"
    return None


def _window_energy(found: Study) -> Row:
    begin, end = found.times.start_ns, found.times.end_ns
    if found.counter is None or too_short(found, begin, end, "the window") is not None:
        return {}
    energy = found.counter.between(begin, end)
    return spread("energy_j", energy) | spread("mean_w", energy, (end - begin) / 1e9)


def timed_run(trace: Trace, found: Study) -> tuple[int, int, int] | None:
    """The longest run of step times without a gap: begin, end (unix ns) and their number."""
    gpu = found.card.gpus[0]
    base = trace.sources[gpu.source].base_ns or 0
    times = step_times(trace, gpu)
    timed = np.flatnonzero(times.end != NULL)
    if not len(timed):
        return None
    begin, end = times.begin[timed], times.end[timed]
    breaks = np.flatnonzero(begin[1:] != end[:-1]) + 1
    runs = np.split(np.arange(len(timed)), breaks)
    best = max(runs, key=len)
    return int(begin[best[0]]) + base, int(end[best[-1]]) + base, len(best)


def _step_energy(trace: Trace, found: Study) -> Row:
    missing = steps_missing(trace)
    if missing is not None:
        return {"step_energy_why": missing.because.rstrip(".")}
    run = timed_run(trace, found)
    if run is None:
        marks = of_source(trace.steps, found.card.gpus[0].source)
        return {"step_energy_why": f"none of {marks.stop - marks.start} steps has a step time"}
    begin, end, number = run
    steps = "step" if number == 1 else "steps"
    why = too_short(found, begin, end, f"the {number} timed {steps}" if number > 1 else "the step")
    if why is not None and found.sensor is not None:
        needed = math.ceil(LEAST_REFRESHES * found.sensor.period_ns * number / (end - begin))
        if needed > number:
            why += f"; record {needed + 1} steps or more"
    if why is not None or found.counter is None:
        return {"num_steps": number, "step_energy_why": why}
    energy = found.counter.between(begin, end)
    return {"num_steps": number} | spread("step_energy_j", energy, number)


def peak_sensor(samples: Table) -> str | None:
    """The column that peaks are read from: a reading of a moment, not a mean of a second."""
    known = (name for name in PEAK_SENSORS if samples.known(name).any())
    return next(known, None)


def _peaks(found: Study) -> Row:
    samples, times = found.samples, found.times
    name = peak_sensor(samples)
    limits = samples["power_limit_w"][samples.known("power_limit_w")]
    limit = float(limits.min()) if len(limits) else math.nan
    row: Row = {"limit_w": limit, "peak_sensor": name}
    if name is None:
        return row
    known = samples.known(name)
    time, power = samples["unix_ns"][known], samples[name][known]
    inside = (time >= times.start_ns) & (time < times.end_ns)
    row["recorded_peak_w"] = float(power.max())
    if inside.any():
        row["peak_w"] = float(power[inside].max())
    if math.isnan(limit):
        return row
    # Rows repeat a reading until the next refresh: only a new value counts.
    new = np.concatenate([[True], power[1:] != power[:-1]])
    row["recorded_num_over_limit"] = int(np.count_nonzero(new & (power > limit)))
    over = inside & (power > limit)
    row["num_over_limit"] = int(np.count_nonzero(over & (new | ~np.roll(inside, 1))))
    until = np.append(time[1:], time[-1])
    stretch = np.clip(until, times.start_ns, times.end_ns) - time
    row["over_limit_ns"] = int(stretch[over].sum())
    return row


def _clocks(found: Study) -> Row:
    samples, times = found.samples, found.times
    time = samples["unix_ns"]
    inside = (time >= times.start_ns) & (time < times.end_ns)
    clock, heat = samples["sm_clock_mhz"], samples["temperature_c"]
    row: Row = {}
    if samples.known("sm_clock_mhz").any():
        row |= {
            "recorded_clock_least_mhz": float(np.nanmin(clock)),
            "recorded_clock_most_mhz": float(np.nanmax(clock)),
        }
    if (inside & samples.known("sm_clock_mhz")).any():
        row |= {
            "clock_mhz": mean_of(time, clock, times.start_ns, times.end_ns),
            "clock_least_mhz": float(np.nanmin(clock[inside])),
            "clock_most_mhz": float(np.nanmax(clock[inside])),
        }
        swing = clock_swing(samples, times.start_ns, times.end_ns)
        row |= {
            "clock_swing_mhz": swing.swing_mhz,
            "clock_frequency_hz": swing.frequency_hz,
            "clock_nyquist_hz": swing.nyquist_hz,
        }
    if (inside & samples.known("temperature_c")).any():
        row |= {
            "temperature_c": mean_of(time, heat, times.start_ns, times.end_ns),
            "temperature_most_c": float(np.nanmax(heat[inside])),
        }
    return row


def mean_of(time: npt.NDArray[np.int64], value: Floats, begin_ns: int, end_ns: int) -> float:
    """Mean over time of a sensor whose rows hold until the next; NaN without a row."""
    known = ~np.isnan(value)
    at, held = time[known], value[known]
    until = np.append(at[1:], max(end_ns, int(at[-1])) if len(at) else end_ns)
    length = np.clip(until, begin_ns, end_ns) - np.clip(at, begin_ns, end_ns)
    if not length.sum() > 0:
        return math.nan
    return float(np.average(held, weights=length))
