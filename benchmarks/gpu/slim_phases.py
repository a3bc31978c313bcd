"""Makes a recording of ``jobs/power_phases.py`` small enough to keep with the tests.

    python -m benchmarks.gpu.slim_phases DIR/power tests/unit/test_power_data/phases

Kept are all GPU operations with what tells their class, the step marks, the phases and the
sensor columns that power is worked out from. Times are not touched.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

ARGUMENTS = ("device", "stream", "correlation", "Collective name", "Process Group Name")
COLUMNS = (
    "unix_ns",
    "power_avg_w",
    "power_instant_w",
    "power_sample_w",
    "energy_j",
    "sm_clock_mhz",
    "clocks_event_reasons",
    "power_limit_w",
)
_GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def main() -> None:
    """Write the slim copy of one recording."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True)
    for path in sorted(arguments.folder.glob("rank*.trace.json.gz")):
        whole = json.loads(gzip.decompress(path.read_bytes()))
        kept = [slim for event in whole["traceEvents"] if (slim := slimmed(event)) is not None]
        text = json.dumps({**whole, "traceEvents": kept}, separators=(",", ":"))
        (arguments.out / path.name).write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    for path in arguments.folder.glob("rank*.telemetry.csv"):
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        with gzip.open(arguments.out / f"{path.name}.gz", "wt", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    for name in ("recording.json", "rank*.env.json", "rank*.phases.csv"):
        for path in arguments.folder.glob(name):
            shutil.copyfile(path, arguments.out / path.name)


def slimmed(event: dict[str, Any]) -> dict[str, Any] | None:
    """The event as it is kept; None: left out."""
    if event["ph"] == "M":
        return event
    if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#"):
        return {key: event[key] for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur")}
    if event.get("cat") not in _GPU_WORK:
        return None
    arguments = {k: v for k, v in event.get("args", {}).items() if k in ARGUMENTS}
    return {**event, "args": arguments}


if __name__ == "__main__":
    main()
