"""Keeps recordings of whole jobs as test data, without what tells of the machine.

    python -m benchmarks.gpu.hazards.keep_jobs DIR tests/data/check_sync

Left out of the traces are the Python functions but for the jobs' own; times and layout are not
touched. The same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

from benchmarks.gpu.hazards.keep import UUID, Event, scrubbed, thinned, without_machine

OWN = re.compile(r"(?:^|/)hazards/jobs\.py\(\d+\)")
HOST = "host"


def main() -> None:
    """Write what is kept of each job."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    for manifest in sorted(arguments.folder.glob("*/recording.json")):
        keep(manifest.parent, arguments.out / manifest.parent.name)


def keep(folder: Path, out: Path) -> None:
    """Keep one recording; raises OSError where a part of it is missing."""
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.glob("*.json.gz")):
        text = gzip.decompress(path.read_bytes()).decode()
        if not path.name.endswith(".execution_trace.json.gz"):
            text = thinned(text, is_dropped)
        (out / path.name).write_bytes(gzip.compress(scrubbed(text).encode(), 9, mtime=0))
    for path in sorted(folder.glob("*.env.json")):
        environment = without_machine(json.loads(path.read_text()))
        (out / path.name).write_text(json.dumps(environment, indent=1) + "\n")
    said: dict[str, Any] = json.loads((folder / "recording.json").read_text())
    for rank in said["ranks"]:
        rank.update(host=HOST, gpu_uuid=UUID)
    (out / "recording.json").write_text(json.dumps(said, indent=1) + "\n")
    shutil.copyfile(folder / "measured.json", out / "measured.json")


def is_dropped(event: Event) -> bool:
    """Whether it is a Python function that is none of the jobs' own."""
    return event.get("cat") == "python_function" and not OWN.search(event["name"])


if __name__ == "__main__":
    main()
