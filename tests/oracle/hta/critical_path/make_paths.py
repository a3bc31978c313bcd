"""Asks HolisticTraceAnalysis (HTA) for the critical path of one step of each shipped recording.

::

    python -m venv hta-0.5.0
    hta-0.5.0/bin/pip install HolisticTraceAnalysis==0.5.0 psutil pandas==2.3.3
    hta-0.5.0/bin/python tests/oracle/hta/critical_path/make_paths.py examples/recordings

It writes ``HolisticTraceAnalysis-0.5.0.json`` beside itself: for rank 0 of every
recording and the second step mark, what HTA's path consists of and the
correlation ids of the GPU operations on it. HTA's own critical path fails with
pandas 3.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
from pathlib import Path

RECORDINGS = ("data_stall", "healthy", "host_sync", "launch_bound", "pageable_copy", "straggler")
DISTRIBUTION = "HolisticTraceAnalysis"


def ask(folder: Path) -> dict[str, object]:
    """The path of the second step of rank 0."""
    from hta.trace_analysis import TraceAnalysis

    file = next(folder.glob("rank00000.trace.json.gz"))
    analysis = TraceAnalysis(trace_files={0: str(file.resolve())}, include_last_profiler_step=True)
    graph, found = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=1)
    if not found:
        raise SystemExit(f"HTA found no critical path in {folder}")
    parts = graph.get_critical_path_breakdown()
    by_bound = parts.assign(bound_by=parts["bound_by"].fillna("")).groupby(["type", "bound_by"])
    events = analysis.t.get_trace(0).loc[parts["event_idx"].dropna().astype(int).unique()]
    on_gpu = events[(events["stream"] >= 0) & (events["correlation"] >= 0)]
    return {
        "recording": folder.name,
        "rank": 0,
        "step": 1,
        "total_us": float(parts["duration"].sum()),
        "parts_us": {
            "/".join(key): float(part) for key, part in by_bound["duration"].sum().items()
        },
        "gpu_correlations": sorted({int(number) for number in on_gpu["correlation"]}),
    }


def main() -> None:
    # HTA chooses rounding when it is imported; unrounded is what can be compared.
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
    recordings = Path(sys.argv[1])
    with contextlib.redirect_stdout(sys.stderr):
        paths = [ask(recordings / name) for name in RECORDINGS]
    version = importlib.metadata.version(DISTRIBUTION)
    stored = {"distribution": DISTRIBUTION, "version": version, "paths": paths}
    target = Path(__file__).parent / f"{DISTRIBUTION}-{version}.json"
    target.write_text(json.dumps(stored) + "\n")


if __name__ == "__main__":
    main()
