"""Makes a recording of ``jobs/contention.py`` small enough to keep with the tests.

    python -m benchmarks.gpu.slim DIR/ctas32 tests/unit/test_contention_data --rounds 8

Kept of each pattern are the first rounds (steps): their GPU kernels, the launches, the
operators with their input shapes, the step marks; of telemetry the rows of the window.
The measured times (``rankNNNNN.timed.json``) are kept whole. Times are not touched.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

Event = dict[str, Any]

MARGIN_NS = 200_000_000
LEFT_OUT = frozenset(
    {
        "queued", "context", "shared memory", "registers per thread", "cbid", "bytes",
        "blocks per SM", "warps per SM", "est. achieved occupancy %", "Record function id",
        "Ev Idx", "Concrete Inputs", "Input Strides", "Input type",
    }
)  # fmt: skip
COLUMNS = (
    "unix_ns",
    "power_instant_w",
    "energy_j",
    "sm_clock_mhz",
    "clocks_event_reasons",
    "power_limit_w",
    "temperature_c",
)


def main() -> None:
    """Write the slim copy of one recording."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True)
    spans = []
    for path in sorted(arguments.folder.glob("rank*.trace.json.gz")):
        whole = json.loads(gzip.decompress(path.read_bytes()))
        timed = path.with_name(path.name.replace(".trace.json.gz", ".timed.json"))
        patterns = len(json.loads(timed.read_text())["timed"])
        kept = kept_events(whole["traceEvents"], arguments.rounds, patterns)
        starts = [float(event["ts"]) for event in kept if event.get("cat") == "kernel"]
        base = int(whole["baseTimeNanoseconds"])
        spans.append((base + int(min(starts) * 1e3), base + int(max(starts) * 1e3)))
        text = json.dumps({**whole, "traceEvents": kept}, separators=(",", ":"))
        slim = gzip.compress(text.encode(), 9, mtime=0)
        (arguments.out / path.name).write_bytes(slim)
    begin, end = min(low for low, _ in spans), max(high for _, high in spans)
    for path in arguments.folder.glob("rank*.telemetry.csv"):
        _window(path, arguments.out / path.name, begin - MARGIN_NS, end + MARGIN_NS)
    for name in ("recording.json", "rank*.env.json", "rank*.timed.json"):
        for path in arguments.folder.glob(name):
            shutil.copyfile(path, arguments.out / path.name)


def kept_events(events: list[Event], rounds: int, patterns: int) -> list[Event]:
    """The events of the first rounds of each pattern, without what the analysis never reads."""
    marks = [event for event in events if _is_step(event)]
    per_pattern = len(marks) // patterns
    marks = [one for one in marks if int(one["name"].rpartition("#")[2]) % per_pattern < rounds]
    spans = [(float(one["ts"]), float(one["ts"]) + float(one["dur"])) for one in marks]

    def inside(event: Event) -> bool:
        return any(begin <= float(event["ts"]) <= end for begin, end in spans)

    launches = [
        event
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "Launch" in event["name"]
    ]
    launched = {event["args"]["correlation"] for event in launches if inside(event)}
    kernels = [
        event
        for event in events
        if event.get("cat") == "kernel" and event["args"]["correlation"] in launched
    ]
    operators = {event["args"].get("External id") for event in kernels}
    ran = {event["args"]["correlation"] for event in kernels}
    further = [event for event in launches if event["args"]["correlation"] in ran]
    further += [
        event
        for event in events
        if event.get("cat") == "cpu_op" and event["args"].get("External id") in operators
    ]
    metadata = [event for event in events if event["ph"] == "M"]
    return [_without(event) for event in (*metadata, *marks, *further, *kernels)]


def _is_step(event: Event) -> bool:
    return event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")


def _without(event: Event) -> Event:
    arguments = {k: v for k, v in event.get("args", {}).items() if k not in LEFT_OUT}
    return {**event, "args": arguments}


def _window(path: Path, out: Path, begin_ns: int, end_ns: int) -> None:
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if begin_ns <= int(row["unix_ns"]) <= end_ns]
    with open(out, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
