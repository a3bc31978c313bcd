"""Step times without a profiler: the truth that a prediction is compared with."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.jobs.pairs.place import Place
from benchmarks.gpu.jobs.pairs.variants import Action, Variants

NUM_REPEATS = 5
REPEAT_MS = 400.0
_LEAST_STEPS, _MOST_STEPS = 6, 400
_NUM_SETTLE, _NUM_ESTIMATE, _NUM_ISSUES = 3, 5, 7


def step_ms(place: Place, step: Action, num_steps: int) -> float:
    """Milliseconds a step of the slower rank: all start together, with nothing to do before."""
    place.meet()
    begin = time.perf_counter()
    for _ in range(num_steps):
        step()
    place.synchronize()
    return place.slowest((time.perf_counter() - begin) * 1e3 / num_steps)


def usual_ms(place: Place, step: Action) -> float:
    """A first estimate, after some steps that are not counted."""
    for _ in range(_NUM_SETTLE):
        step()
    return step_ms(place, step, _NUM_ESTIMATE)


def timing(place: Place, variants: Variants, sides: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For each side its step in repeats that alternate between the sides, and what its host needs.

    ``step_ms`` has a value per repeat. ``issue_ms`` is how long the host took to issue one
    step to a GPU that had nothing to do, ``alone_ms`` until that step was done: medians, the
    slower rank's. Where the step itself waits for the GPU, ``issue_ms`` includes it.
    """
    gc.collect()
    target_ms = place.of(REPEAT_MS, 20.0)
    counts = {}
    for side in sides:
        with variants.of(side).entered() as step:
            fits = round(target_ms / max(usual_ms(place, step), 1e-3))
            counts[side] = min(max(fits, _LEAST_STEPS), _MOST_STEPS)
    repeats: dict[str, list[float]] = {side: [] for side in sides}
    for repeat in range(NUM_REPEATS):
        # Back and forth, so that what drifts over time favours neither.
        for side in sides if repeat % 2 == 0 else reversed(sides):
            with variants.of(side).entered() as step:
                for _ in range(_NUM_SETTLE):
                    step()
                repeats[side].append(step_ms(place, step, counts[side]))
    return {
        side: {
            **spread(repeats[side]),
            "steps_per_repeat": counts[side],
            **issue(place, variants, side),
        }
        for side in sides
    }


def spread(repeats: Sequence[float]) -> dict[str, Any]:
    """The repeats, their median, and how far apart the least and the greatest are."""
    middle = statistics.median(repeats)
    return {
        "step_ms": [round(value, 4) for value in repeats],
        "median_ms": round(middle, 4),
        "spread_pct": round(100 * (max(repeats) - min(repeats)) / middle, 2),
    }


def issue(place: Place, variants: Variants, side: str) -> dict[str, float]:
    """How long the host took for one step that found an empty queue, and how long all of it."""
    issued, done = [], []
    with variants.of(side).entered() as step:
        for _ in range(_NUM_ISSUES):
            place.meet()
            begin = time.perf_counter()
            step()
            issued.append((time.perf_counter() - begin) * 1e3)
            place.synchronize()
            done.append((time.perf_counter() - begin) * 1e3)
    return {
        "issue_ms": round(place.slowest(statistics.median(issued)), 4),
        "alone_ms": round(place.slowest(statistics.median(done)), 4),
    }
