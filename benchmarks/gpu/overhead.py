"""What attaching costs on a GPU: ``python -m benchmarks.gpu.overhead --out DIR``.

Four jobs of two NCCL ranks, one after the other: untouched; with the cooperative agent in it and
no window; with windows by an injected agent; the same with ``TEARDOWN_CUPTI=1``.
The jobs write down when each step ended and know of no profiler; step times come from
that record alone. Writes ``overhead.json`` and prints the table of ``docs/overhead.md``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import diagnose
from benchmarks.gpu import two_ranks

TRAINING = Path(__file__).parent / "jobs" / "training.py"
LAUNCH = Path(diagnose.__file__).parent / "agent" / "launch"
COOPERATIVE = {"DIAGNOSE_AGENT": "1", "PYTHONPATH": str(LAUNCH)}
NUM_STEPS = 3
# Name -> what the environment adds, how many windows are recorded, seconds of training.
JOBS: dict[str, tuple[dict[str, str], int, float]] = {
    "untouched": ({}, 0, 15),
    "agent, no window": (COOPERATIVE, 0, 15),
    "attach": ({}, 6, 34),
    "attach, TEARDOWN_CUPTI=1": ({"TEARDOWN_CUPTI": "1"}, 6, 34),
}


def main() -> None:
    """Run the jobs and state what each did to the step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    two_ranks.end_cleanly()
    results = []
    for name, (extra, num_windows, seconds) in JOBS.items():
        folder = arguments.out / name.replace(", ", "-").replace("=", "").replace(" ", "-")
        folder.mkdir(parents=True)
        try:
            result = run(folder, extra, seconds, num_windows)
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            result = {"failed": str(error)}
        results.append({"job": name, **result})
        print(json.dumps(results[-1]), flush=True)
    (arguments.out / "overhead.json").write_text(json.dumps(results, indent=1))


def run(folder: Path, environment: dict[str, str], seconds: float, windows: int) -> dict[str, Any]:
    """One job: its exit status, its step times, and what each window said of itself."""
    script = [str(TRAINING), "--out", str(folder), "--seconds", str(seconds)]
    recorded = []
    with two_ranks.job(script, environment, folder / "alive") as running:
        time.sleep(5)
        for number in range(windows):
            recorded.append(attach(folder / f"window{number}"))
            time.sleep(1.5)
        status = running.wait(seconds + 30)
    ends = [np.loadtxt(path, np.int64, ndmin=1) for path in sorted(folder.glob("*.steps.txt"))]
    spans = [span for window in recorded for span in window.pop("spans", ())]
    return {"status": status, **step_times(ends, spans), "windows": recorded}


def attach(output: Path) -> dict[str, Any]:
    """Record one window from outside; what it cost and what its traces hold."""
    line = [sys.executable, "-m", "diagnose", "attach", "--no-report"]
    line += ["--steps", str(NUM_STEPS), "-o", str(output)]
    begin, begin_unix = time.monotonic(), time.time_ns()
    done = subprocess.run(line, capture_output=True, text=True, timeout=40, check=False)
    took = {"attach_s": round(time.monotonic() - begin, 2), "status": done.returncode}
    if done.returncode != 0:
        return {**took, "said": done.stderr[-600:], "spans": [(begin_unix, time.time_ns())]}
    manifest = json.loads((output / "recording.json").read_text())
    return {
        **took,
        "spans": [(begin_unix, time.time_ns())],
        "observer": manifest.get("observer"),
        "notes": [note["code"] for note in manifest.get("notes", ())],
        "ranks": [
            {key: value for key, value in rank.items() if key.endswith("_ns")}
            for rank in manifest["ranks"]
        ],
        **damage(output),
    }


def damage(output: Path) -> dict[str, Any]:
    """Kernels without a launch, or that start before it: records CUPTI spoilt."""
    trace = diagnose.load(output).trace
    operations, launches = trace.gpu_ops, trace.launches
    row = operations["launch_row"]
    linked = row >= 0
    before = operations["start_ns"][linked] < launches["start_ns"][row[linked]]
    return {
        "gpu_ops": len(operations),
        "without_launch": int((~linked).sum()),
        "before_launch": int(before.sum()),
        "collectives": len(trace.collectives),
        "files_bytes": sum(path.stat().st_size for path in output.iterdir()),
        "note_codes": sorted({note.code for note in trace.notes}),
    }


def step_times(ends: Iterable[Any], spans: list[tuple[int, int]]) -> dict[str, Any]:
    """Median step in ms before the first span, between and after them, over the ranks.

    A step counts as outside if neither of its ends lies within 50 ms of a span.
    """
    first = min((begin for begin, _ in spans), default=None)
    parts: dict[str, list[float]] = {"before": [], "outside": [], "during": []}
    for marks in ends:
        steps, at = np.diff(marks) / 1e6, marks[1:]
        warm = at > marks[0] + 3e9
        inside = np.zeros(len(at), bool)
        for begin, end in spans:
            inside |= (at > begin - 50e6) & (at < end + 50e6)
        earlier = at < (marks[-1] if first is None else first)
        parts["before"] += steps[warm & earlier & ~inside].tolist()
        parts["outside"] += steps[warm & ~earlier & ~inside].tolist()
        parts["during"] += steps[warm & inside].tolist()
    return {
        f"{name}_ms": {
            "median": round(statistics.median(values), 4),
            "mean": round(statistics.fmean(values), 4),
            "num": len(values),
        }
        for name, values in parts.items()
        if values
    }


if __name__ == "__main__":
    main()
