"""A GPU whose power is known, watched by a sensor with the faults of real ones.

Power is played on a line of 1 ms cells: each stretch of work draws its class's watts
with an error of its own, and a slow wander is laid over everything. The sensor has a
new value every 100 ms (not quite regularly): the mean over the last ``watched_ms`` of a
time that ended ``delay_ms`` ago, with noise; its energy counter adds that mean times the
period. It is read every 20 ms or so, now and then much later. Shares no code with
``diagnose``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

CLASSES = ("compute", "overlapped", "communication", "copies", "idle")
UNIX_NS = 1_796_000_000_000_000_000
CELL_MS = 1.0


@dataclass(frozen=True)
class Sensor:
    """What the driver shows. ``watched_ms`` of each ``period_ms``, ``delay_ms`` late."""

    period_ms: float = 100.0
    watched_ms: float = 100.0
    delay_ms: float = 20.0
    noise_w: float = 8.0
    jitter_ms: float = 0.3
    row_ms: float = 20.0
    row_jitter_ms: float = 6.0
    late_rows: float = 0.01
    """Share of rows that come 80 to 120 ms late."""


@dataclass(frozen=True)
class World:
    """The truth: the watts of each class, the stretches that were played, the power drawn."""

    watts: dict[str, float]
    stretches: list[tuple[str, float, float]]
    """Class, start and end in ms."""
    power: np.ndarray
    """Watts in each cell of 1 ms."""
    lead_ms: float
    """Cells before the first stretch (idle, not recorded in the trace)."""
    samples: dict[str, np.ndarray] = field(default_factory=dict)

    def energy_j(self, begin_ms: float, end_ms: float) -> float:
        """The energy drawn between two times, in ms since the first stretch."""
        first, last = round(begin_ms + self.lead_ms), round(end_ms + self.lead_ms)
        return float(self.power[first:last].sum() * CELL_MS / 1e3)


def play(
    random: np.random.Generator,
    stretches: list[tuple[str, float]],
    watts: dict[str, float],
    sensor: Sensor,
    *,
    kernel_spread: float = 0.05,
    wander_w: float = 5.0,
    wander_ms: float = 300.0,
) -> World:
    """Play ``stretches`` (class, length in ms) and read the sensor meanwhile."""
    lead = tail = 1500
    lengths = np.array([max(round(length), 1) for _, length in stretches])
    ends = np.cumsum(lengths)
    total = lead + int(ends[-1]) + tail
    power = np.full(total, watts["idle"], float)
    placed = []
    for (name, _), length, end in zip(stretches, lengths, ends, strict=True):
        begin = end - length
        own = watts[name] * (1 + kernel_spread * random.standard_normal() * (name != "idle"))
        power[lead + begin : lead + end] = own
        placed.append((name, float(begin), float(end)))
    power += _wander(random, total, wander_w, wander_ms)
    power = np.maximum(power, 1.0)
    return World(watts, placed, power, lead, _read(random, power, lead, sensor))


def _wander(random: np.random.Generator, total: int, size: float, length: float) -> np.ndarray:
    """A stationary AR(1) line, drawn every 20 cells and joined by straight lines."""
    step = 20
    keep = np.exp(-step / length)
    draws = random.standard_normal(total // step + 2) * size * np.sqrt(1 - keep**2)
    draws[0] = random.standard_normal() * size
    line = np.empty(len(draws))
    last = 0.0
    for at, draw in enumerate(draws.tolist()):
        last = keep * last + draw
        line[at] = last
    return np.interp(np.arange(total) / step, np.arange(len(line)), line)


def _read(
    random: np.random.Generator, power: np.ndarray, lead: int, sensor: Sensor
) -> dict[str, np.ndarray]:
    total = len(power)
    drawn = np.concatenate([[0.0], np.cumsum(power)])

    def mean(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        cells = np.arange(total + 1)
        return (np.interp(end, cells, drawn) - np.interp(begin, cells, drawn)) / (end - begin)

    first = 400 + random.uniform(0, sensor.period_ms)
    at = np.arange(first, total, sensor.period_ms)
    at = at + random.normal(0, sensor.jitter_ms, len(at))
    seen = mean(at - sensor.delay_ms - sensor.watched_ms, at - sensor.delay_ms)
    seen = seen + random.normal(0, sensor.noise_w, len(at))
    counter = 5000 + np.cumsum(seen * sensor.period_ms / 1e3)

    gaps = sensor.row_ms + random.uniform(0, sensor.row_jitter_ms, int(total / sensor.row_ms))
    late = random.random(len(gaps)) < sensor.late_rows
    gaps = gaps + np.where(late, random.uniform(80, 120, len(gaps)), 0)
    rows = 520 + np.cumsum(gaps)
    rows = rows[rows < total]
    last = np.searchsorted(at, rows, side="right") - 1
    return {
        "unix_ns": UNIX_NS + np.rint((rows - lead) * 1e6).astype(np.int64),
        "power_instant_w": np.round(seen[last], 3),
        "energy_j": np.round(counter[last], 3),
    }


def phases(random: np.random.Generator, seconds: float) -> list[tuple[str, float]]:
    """Steps of about a second made of phases of unequal length, as a training job has them."""
    found: list[tuple[str, float]] = []
    left = seconds * 1e3
    while left > 0:
        for name, mean in (
            ("compute", 300.0),
            ("overlapped", 220.0),
            ("communication", 150.0),
            ("copies", 60.0),
            ("idle", 120.0),
        ):
            found.append((name, float(random.gamma(3.0, mean / 3))))
            left -= found[-1][1]
    return found


def small_steps(random: np.random.Generator, seconds: float) -> list[tuple[str, float]]:
    """Parts far shorter than a refresh, whose mix changes slowly: no refresh holds one alone."""
    found: list[tuple[str, float]] = []
    left = seconds * 1e3
    while left > 0:
        mix = random.dirichlet([3.0, 2.0, 1.5, 0.8, 1.0])
        for _ in range(int(random.integers(4, 12))):
            found += [(n, float(40 * share)) for n, share in zip(CLASSES, mix, strict=True)]
            left -= 40
    return found


WATTS = {
    "compute": 640.0,
    "overlapped": 700.0,
    "communication": 340.0,
    "copies": 260.0,
    "idle": 120.0,
}


def edges(world: World) -> tuple[np.ndarray, np.ndarray]:
    """The stretches as edges in unix ns and class codes, as an estimator wants them."""
    ends = np.array([0.0, *(end for _, _, end in world.stretches)])
    doing = np.array([CLASSES.index(name) for name, _, _ in world.stretches], np.int8)
    return UNIX_NS + np.rint(ends * 1e6).astype(np.int64), doing
