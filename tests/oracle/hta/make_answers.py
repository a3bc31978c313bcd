"""Asks HolisticTraceAnalysis (HTA) about the shipped recordings and stores its answers.

Run once per release, each in an environment of its own, since both install the
module ``hta``::

    python -m venv hta-0.5.0
    hta-0.5.0/bin/pip install HolisticTraceAnalysis==0.5.0 psutil pandas==2.3.3
    hta-0.5.0/bin/python tests/oracle/hta/make_answers.py examples/recordings

    python -m venv traceinsight-0.6.1
    traceinsight-0.6.1/bin/pip install traceinsight==0.6.1 psutil pandas==2.3.3
    traceinsight-0.6.1/bin/python tests/oracle/hta/make_answers.py examples/recordings

It writes ``<distribution>-<version>.json`` beside itself. Every recording is asked
with and without HTA's rounding to whole microseconds and with and without the
last step, because these decide most of what differs from an exact count.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

RECORDINGS = ("data_stall", "healthy", "host_sync", "launch_bound", "pageable_copy", "straggler")
DISTRIBUTIONS = ("HolisticTraceAnalysis", "traceinsight")


def ask(folder: Path, last_step: bool) -> list[dict[str, object]]:
    """Overlap and temporal breakdown of one recording, a dictionary a rank."""
    from hta.trace_analysis import TraceAnalysis

    files = {
        int(path.name[4:9]): str(path.resolve())
        for path in sorted(folder.glob("rank*.trace.json.gz"))
    }
    analysis = TraceAnalysis(trace_files=files, include_last_profiler_step=last_step)
    overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
    times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    return [
        {
            "recording": folder.name,
            "rank": rank,
            "last_step": last_step,
            "overlap_pct": float(overlap.loc[rank, "comp_comm_overlap_pctg"]),
            "compute_us": float(times.loc[rank, "compute_time(us)"]),
            "idle_us": float(times.loc[rank, "idle_time(us)"]),
            "window_us": float(times.loc[rank, "kernel_time(us)"]),
        }
        for rank in sorted(files)
    ]


def child(folder: Path) -> None:
    """Print the answers of one recording. HTA chooses rounding when it is imported."""
    rounded = os.environ["HTA_DISABLE_NS_ROUNDING"] == "0"
    with contextlib.redirect_stdout(sys.stderr):
        rows = [row for last_step in (False, True) for row in ask(folder, last_step)]
    sys.stdout.write(json.dumps([{"rounded": rounded, **row} for row in rows]))


def main(root: Path) -> None:
    installed = [name for name in DISTRIBUTIONS if _version(name)]
    if len(installed) != 1:
        raise SystemExit(f"exactly one of {DISTRIBUTIONS} has to be installed")
    name, rows = installed[0], []
    for recording in RECORDINGS:
        for flag in ("0", "1"):
            answer = subprocess.run(
                [sys.executable, __file__, "--child", str(root / recording)],
                env={**os.environ, "HTA_DISABLE_NS_ROUNDING": flag},
                stdout=subprocess.PIPE,
                check=True,
            )
            rows += json.loads(answer.stdout)
    result = {"tool": name, "version": _version(name), "pandas": _version("pandas")}
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    text = json.dumps(result)[:-1] + ',\n "answers": [\n  ' + lines + "\n]}\n"
    target = Path(__file__).parent / f"{name.lower()}-{_version(name)}.json"
    target.write_text(text)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        child(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
