"""The interval comparison: the same arrays for both, the functions alone timed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.candidates import CHILDREN
from benchmarks.environments import WORK, python_of
from benchmarks.measure import measure

ORDERS = ("by start, as in a trace", "shuffled")


def _write(path: Path, num_intervals: int, shuffled: bool) -> None:
    random = np.random.default_rng(20)
    half = num_intervals // 2
    arrays: dict[str, npt.NDArray[np.int64]] = {}
    for name in ("compute", "communication"):
        # Distinct starts: HTA's sweep needs a boundary order that equal times do not give.
        start = np.cumsum(random.integers(1, 2_000, half, dtype=np.int64))
        end = start + random.integers(1, 1_500, half, dtype=np.int64)
        order = random.permutation(half) if shuffled else np.arange(half)
        arrays[f"{name}_start"], arrays[f"{name}_end"] = start[order], end[order]
    np.savez(path, allow_pickle=False, **arrays)


def compare(num_intervals: int, rounds: int) -> list[dict[str, Any]]:
    """One entry per order of the input: CPU seconds of both, and whether they agree."""
    found = []
    for order in ORDERS:
        path = WORK / "intervals.npz"
        _write(path, num_intervals, order == "shuffled")
        cpu: dict[str, list[float]] = {"this": [], "hta": []}
        answers: dict[str, dict[str, int]] = {}
        pythons = {"this": sys.executable, "hta": python_of("hta")}
        for _ in range(rounds):
            for who, python in pythons.items():
                command = [python, str(CHILDREN / f"intervals_{who}.py"), str(path)]
                printed = json.loads(measure(command, timeout_s=900).output)
                cpu[who].append(printed["cpu_s"])
                answers[who] = printed["answer"]
        path.unlink()
        this, hta = median(cpu["this"]), median(cpu["hta"])
        found.append(
            {
                "num_intervals": num_intervals,
                "order": order,
                "num_runs": rounds,
                "this_cpu_s": round(this, 3),
                "hta_cpu_s": round(hta, 3),
                "less_cpu": round(hta / this, 1),
                "answers": answers,
            }
        )
    return found
