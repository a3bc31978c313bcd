"""Counts compute, communication, overlap and steps of a trace the slow and obvious way.

It shares nothing with the package: standard library alone, its own reading, its
own rule for what is communication (an NCCL kernel; no more is needed for the
shipped recordings), and a sweep over all instants at which something begins or
ends, counting what runs between two of them. Times are integer nanoseconds.

    python tests/oracle/brute_force.py TRACE.json.gz
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

WORK = {"kernel": None, "gpu_memcpy": "memory", "gpu_memset": "memory"}


@dataclass(frozen=True)
class Op:
    kind: str
    start: int
    end: int
    step: str | None


@dataclass(frozen=True)
class Mark:
    name: str
    start: int
    end: int


def read(path: Path) -> tuple[list[Op], list[Mark]]:
    """The GPU operations and step marks of a file, in order of time."""
    text = path.read_bytes()
    text = gzip.decompress(text) if path.suffix == ".gz" else text
    events = json.loads(text, parse_float=Decimal)["traceEvents"]
    timed = [e for e in events if e.get("ph") == "X"]
    marks = sorted(
        (
            Mark(e["name"], _ns(e["ts"]), _ns(e["ts"]) + _ns(e["dur"]))
            for e in timed
            if e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep")
        ),
        key=lambda mark: mark.start,
    )
    launched = {
        e["args"]["correlation"]: _ns(e["ts"])
        for e in timed
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
    }
    ops = []
    for e in timed:
        if e.get("cat") in WORK:
            at = launched.get(e["args"]["correlation"])
            step = next((m.name for m in marks if at is not None and m.start <= at < m.end), None)
            kind = WORK[e["cat"]] or (
                "communication" if e["name"].startswith("nccl") else "compute"
            )
            ops.append(Op(kind, _ns(e["ts"]), _ns(e["ts"]) + _ns(e["dur"]), step))
    return ops, marks


def _ns(microseconds: Any) -> int:
    exact = Decimal(microseconds) * 1000
    if exact != int(exact):
        raise ValueError(f"{microseconds} us is no whole number of nanoseconds")
    return int(exact)


def time_while(groups: dict[str, list[Op]], wanted: Callable[[set[str]], bool]) -> int:
    """How long ``wanted`` holds of the set of groups that run at an instant."""
    changes = sorted(
        [(op.start, 1, name) for name, ops in groups.items() for op in ops]
        + [(op.end, -1, name) for name, ops in groups.items() for op in ops]
    )
    running = dict.fromkeys(groups, 0)
    total, before = 0, 0
    for now, change, name in changes:
        if now > before and wanted({n for n, count in running.items() if count}):
            total += now - before
        running[name] += change
        before = now
    return total


def measure(own: list[Op], everything: list[Op]) -> dict[str, int]:
    """The measures of some operations of a GPU; hidden is what any compute there hides."""
    groups = {kind: [op for op in own if op.kind == kind] for kind in _KINDS}
    beside = [op for op in everything if op.kind == "compute"]
    hidden = time_while(
        {"communication": groups["communication"], "beside": beside},
        lambda running: len(running) == 2,
    )
    lengths = {f"{kind}_ns": time_while({kind: groups[kind]}, bool) for kind in _KINDS}
    return lengths | {
        "num_ops": len(own),
        "overlapped_ns": hidden,
        "exposed_communication_ns": lengths["communication_ns"] - hidden,
        "busy_ns": time_while(groups, bool),
        "kernel_time_ns": sum(op.end - op.start for op in own),
    }


_KINDS = ("compute", "communication", "memory")


def by_rank(ops: list[Op]) -> dict[str, int]:
    """The measures of a GPU over its window."""
    result = measure(ops, ops)
    window = max(op.end for op in ops) - min(op.start for op in ops)
    return result | {"window_ns": window, "idle_ns": window - result["busy_ns"]}


def by_step(ops: list[Op], marks: list[Mark]) -> list[dict[str, Any]]:
    """The measures of each step, and last of the work that no step launched."""
    rows: list[dict[str, Any]] = []
    previous_end: int | None = None
    for mark in marks:
        own = [op for op in ops if op.step == mark.name]
        end = max((op.end for op in own), default=None)
        row: dict[str, Any] = {"step": mark.name, **measure(own, ops)}
        if previous_end is not None and end is not None and end > previous_end:
            begin = previous_end
            inside = [
                Op(op.kind, max(op.start, begin), min(op.end, end), None)
                for op in ops
                if op.end > begin and op.start < end
            ]
            row["step_ns"] = end - begin
            row["idle_ns"] = end - begin - time_while({"any": inside}, bool)
        rows.append(row)
        previous_end = end
    outside = [op for op in ops if op.step is None]
    if outside:
        rows.append({"step": None, **measure(outside, ops)})
    return rows


if __name__ == "__main__":
    read_ops, read_marks = read(Path(sys.argv[1]))
    answer = {"rank": by_rank(read_ops), "steps": by_step(read_ops, read_marks)}
    sys.stdout.write(json.dumps(answer, indent=1) + "\n")
