"""Everything that the tables of power are drawn from, worked out once per trace."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Unavailable
from diagnose.analyzers.power.cards import Card, cards
from diagnose.analyzers.power.doing import ClassTimes, class_times
from diagnose.analyzers.power.energy import Counter
from diagnose.analyzers.power.fit import ClassPowers, fit_class_powers, readings
from diagnose.analyzers.power.refreshes import Refreshes, refreshes
from diagnose.trace import Table, Trace

Floats = npt.NDArray[np.float64]

SENSORS = ("energy_j", "power_instant_w", "power_sample_w", "power_avg_w")
"""By trust: the counter misses nothing; an average over a second blurs what is shorter."""
REMEDY = "record with telemetry: `diagnose attach` and `diagnose run` do where NVML is installed"


class Study(NamedTuple):
    """One physical GPU with telemetry, and what its sensors say."""

    card: Card
    samples: Table
    times: ClassTimes
    sensor: Refreshes | None
    """The refreshes of the first of ``SENSORS`` that has any."""
    counter: Counter | None
    powers: ClassPowers | str
    """The powers of the classes, or why there are none."""

    @property
    def window_readings(self) -> Floats:
        """Mean power of each refresh that ended in the window of the GPU's work."""
        if self.sensor is None:
            return np.empty(0)
        end, power = readings(self.sensor)
        begin = self.times.start_ns + self.sensor.period_ns
        inside: Floats = power[(end >= begin) & (end <= self.times.end_ns)]
        return inside


class Studies(NamedTuple):
    """The GPUs with telemetry, and the others with the reason why they have no power."""

    known: tuple[Study, ...]
    others: tuple[tuple[Card, str], ...]

    @property
    def unavailable(self) -> Unavailable | None:
        """Why nothing can be said of any GPU, or None."""
        if self.known:
            return None
        if not self.others:
            return Unavailable("no GPU work was recorded", "record with ProfilerActivity.CUDA")
        return Unavailable(self.others[0][1], REMEDY)


# Several tables are drawn from one study. Only the last is kept, as long as its trace lives.
_last: tuple[weakref.ref[Trace], Studies] | None = None


def study(trace: Trace) -> Studies:
    """The studies of a trace. Remembered for the last trace."""
    global _last
    remembered = _last
    if remembered is not None and remembered[0]() is trace:
        return remembered[1]
    found = _study(trace)
    _last = (weakref.ref(trace, _forget), found)
    return found


def _forget(reference: weakref.ref[Trace]) -> None:
    global _last
    if _last is not None and _last[0] is reference:
        _last = None


def _study(trace: Trace) -> Studies:
    known: list[Study] = []
    others: list[tuple[Card, str]] = []
    for card in cards(trace):
        why = card.why_not
        if card.samples is not None:
            found = _of_card(trace, card, card.samples)
            if isinstance(found, Study):
                known.append(found)
                continue
            why = found
        others.append((card, why or "no telemetry was recorded"))
    return Studies(tuple(known), tuple(others))


def _of_card(trace: Trace, card: Card, samples: Table) -> Study | str:
    times = class_times(trace, card.gpus)
    if times is None:
        return "the ranks that share this GPU were not recorded at the same time"
    time = samples["unix_ns"]
    if time[-1] < times.start_ns or time[0] > times.end_ns:
        return "the telemetry is of another time than the GPU work"
    sensor = next((r for name in SENSORS if (r := refreshes(samples, name)) is not None), None)
    if sensor is None:
        why = "the power sensor had fewer than three new values"
        return Study(card, samples, times, None, None, why)
    powers = _powers(trace, card, sensor, times)
    counter = Counter(sensor, powers if isinstance(powers, ClassPowers) else None)
    return Study(card, samples, times, sensor, counter, powers)


def _powers(trace: Trace, card: Card, sensor: Refreshes, times: ClassTimes) -> ClassPowers | str:
    if not all(trace.sources[gpu.source].complete for gpu in card.gpus):
        return "events of the trace were lost, so what the GPU did is not known at all times"
    return fit_class_powers(sensor, times)
