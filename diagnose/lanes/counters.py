"""What the sensors of the GPUs read, on the axis of the timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.intervals import Array
from diagnose.lanes.lane import Lane, LaneKind
from diagnose.telemetry.clock_reasons import ClockReason, clock_reasons
from diagnose.timeline.step_times import of_source
from diagnose.trace import Table, Trace

Floats = npt.NDArray[np.float64]

_SENSORS = (
    (("power_instant_w", "power_sample_w", "power_avg_w"), "power", "W"),
    (("sm_clock_mhz",), "SM clock", "MHz"),
    (("gpm_dram_bw_util_pct",), "memory bandwidth in use", "%"),
)
"""Of the first sensor that was recorded: what is shown, and its unit."""
_AVERAGED = "power, averaged by the driver"


@dataclass(frozen=True, eq=False)
class Counter:
    """One sensor of one source's GPU over a window; columns of equal length, by time.

    Where several readings lie in a pixel they are one entry: the lowest, the highest and the
    mean of the readings, at the middle between the first and the last. Else each reading is
    an entry, with all three alike. The last reading before the window and the first after
    it are there as well. Clocks held down (``unit`` "held") are 1 while the reason held and 0
    while not; the mean is the share of readings at which it held.
    """

    source: int
    gpu: str | None
    """Key of the lane of its GPU: the source's first; None if it has no GPU work."""
    sensor: str
    """The column of ``Trace.samples``."""
    label: str
    unit: str
    x_ns: Array
    low: Floats
    high: Floats
    mean: Floats


def counters_of(
    trace: Trace,
    lanes: Sequence[Lane],
    to_common: Callable[[int, Array], Array],
    start_ns: int,
    end_ns: int,
    pixels: int,
) -> tuple[Counter, ...]:
    """The counters of every source with telemetry and a known wall clock, in order of lanes."""
    order = list(dict.fromkeys(lane.source for lane in lanes))
    first_gpu = {lane.source: lane.key for lane in reversed(lanes) if lane.kind == LaneKind.STATES}
    found: list[Counter] = []
    for source in order:
        base = trace.sources[source].base_ns
        rows = of_source(trace.samples, source)
        if base is None or rows.stop == rows.start:
            continue
        samples = trace.samples.take(rows)
        time = to_common(source, samples["unix_ns"] - base)
        for sensor, label, unit, known, value in _readings(samples):
            columns = _thinned(time[known], value, start_ns, end_ns, pixels)
            found.append(Counter(source, first_gpu.get(source), sensor, label, unit, *columns))
    return tuple(found)


def _readings(
    samples: Table,
) -> list[tuple[str, str, str, npt.NDArray[np.bool_], Floats]]:
    """Sensor, label, unit, where it was read, and its values there."""
    found = []
    for sensors, label, unit in _SENSORS:
        sensor = next((name for name in sensors if samples.known(name).any()), None)
        if sensor is not None:
            known = samples.known(sensor)
            shown = _AVERAGED if sensor == "power_avg_w" else label
            found.append((sensor, shown, unit, known, samples[sensor][known]))
    sensor = "clocks_event_reasons"
    known = samples.known(sensor)
    masks = samples[sensor][known]
    reasons: dict[int, ClockReason] = {}
    for mask in np.unique(masks).tolist():
        reasons |= {reason.bit: reason for reason in clock_reasons(mask) if reason.slows}
    bits = masks.astype(np.uint64)
    for bit in sorted(reasons):
        held = ((bits & np.uint64(bit)) != 0).astype(np.float64)
        found.append((sensor, f"clocks held down: {reasons[bit].meaning}", "held", known, held))
    return found


def _thinned(
    time: Array, value: Floats, start_ns: int, end_ns: int, pixels: int
) -> tuple[Array, Floats, Floats, Floats]:
    low = max(int(np.searchsorted(time, start_ns, side="right")) - 1, 0)
    high = min(int(np.searchsorted(time, end_ns, side="left")) + 1, time.size)
    time, value = time[low:high], value[low:high]
    if time.size <= max(pixels, 2):
        return time, value, value, value
    pixel = (time - start_ns) // max(1, -(-(end_ns - start_ns) // max(pixels, 1)))
    first = np.flatnonzero(np.concatenate([[True], pixel[1:] != pixel[:-1]]))
    last = np.append(first[1:], time.size) - 1
    count = last - first + 1
    return (
        time[first] + (time[last] - time[first]) // 2,
        np.minimum.reduceat(value, first),
        np.maximum.reduceat(value, first),
        np.add.reduceat(value, first) / count,
    )
