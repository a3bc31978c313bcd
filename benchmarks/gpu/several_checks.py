"""What must hold of a recording of several GPUs, whatever the job: each check says what it saw.

The windows of all ranks begin at the same step; waiting and moving bytes add up to each
collective's time; bus bandwidths agree with the same collectives timed alone, by nccl-tests'
definition; and the findings are those of the fault that was planted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import diagnose
from diagnose import manifest
from diagnose.recording import Recording

MUST = {
    "healthy": (),
    "fsdp": (),
    "serial": ("collective-on-compute-stream",),
    "tiny_buckets": ("tiny-collectives",),
    "straggler": ("straggler-rank", "work-imbalance"),
    "low_bandwidth": ("nccl-env-pinned",),
}
"""Rules that have to fire, by job."""
GRAVE = ("warning", "critical")
MUST_NOT = ("straggler-rank", "work-imbalance", "tiny-collectives", "nccl-env-pinned")
"""Rules that must not be grave in a job that does not plant them."""
BANDWIDTH_TOLERANCE = 0.25
"""Collectives of a training step run beside compute and in other sizes than those timed alone:
the best of them must come this near, and none may be faster than the link was alone by more."""


class Check(NamedTuple):
    """One thing that must hold. ``holds`` None: the recording does not tell."""

    name: str
    holds: bool | None
    saw: str


def checks(folder: Path, job: str, alone: Path) -> Iterator[Check]:
    """All of them for one recording folder."""
    recording = diagnose.load(folder)
    yield same_step(folder)
    yield adds_up(recording)
    yield from bandwidths(recording, json.loads(alone.read_text()))
    yield from findings(recording, job)


def same_step(folder: Path) -> Check:
    """Whether the first and last step's number is the same on all ranks."""
    said = manifest.read(folder / "recording.json")
    trace = diagnose.load(folder).trace
    steps = trace.steps
    seen = {
        tuple(steps["number"][steps["source"] == source].tolist())
        for source in range(len(said.ranks))
    }
    return Check("same step", len(seen) == 1, "; ".join(map(str, sorted(seen))))


def adds_up(recording: Recording) -> Check:
    """Whether wait and transfer of each matched collective are its duration, to the nanosecond."""
    table = recording.rank_waits()
    whole = table[table["complete"]]
    off = (whole["wait_ns"] + whole["transfer_ns"] - whole["duration_ns"]).abs().max()
    ends = whole.groupby("match")["wait_ns"].min().abs().max()
    return Check(
        "wait + transfer",
        bool(off == 0 and ends == 0),
        f"{len(whole)} of {len(table)} matched whole; largest difference {off} ns",
    )


def bandwidths(recording: Recording, alone: dict[str, dict[str, float]]) -> Iterator[Check]:
    """Each kind of collective that was timed alone and occurs in the recording."""
    table = recording.transfer_bandwidth()
    for kind, times in alone.items():
        rows = table[(table["collective"] == kind) & (table["num_incomplete"] == 0)]
        rows = rows[rows["bytes"] >= min(map(int, times))].dropna(subset="best_busbw_gb_per_s")
        if not len(rows):
            continue
        row = rows.sort_values("bytes").iloc[-1]
        expected = busbw_alone(kind, int(row["bytes"]), times, int(row["group_size"]))
        best = float(row["best_busbw_gb_per_s"])
        yield Check(
            f"bus bandwidth of {kind}",
            bool(abs(best / expected - 1) <= BANDWIDTH_TOLERANCE),
            f"{int(row['bytes']):,} bytes: {best:.1f} GB/s recorded, {expected:.1f} timed alone",
        )


def busbw_alone(kind: str, size: int, times: dict[str, float], world: int) -> float:
    """What was timed alone, at that size: between the sizes that were timed, by straight lines.

    nccl-tests, PERFORMANCE.md: bytes a second, times 2(n-1)/n for all-reduce and (n-1)/n for
    all-gather and reduce-scatter, of the whole buffer.
    """
    sizes = np.array(sorted(map(int, times)), float)
    took_ms = np.array([times[str(int(one))] for one in sizes])
    if size <= sizes[-1]:
        milliseconds = float(np.interp(size, sizes, took_ms))
    else:
        milliseconds = float(took_ms[-1] * size / sizes[-1])
    factor = {"all_reduce": 2 * (world - 1) / world, "send_recv": 1.0}
    return size / milliseconds * 1e-6 * factor.get(kind, (world - 1) / world)


def findings(recording: Recording, job: str) -> Iterator[Check]:
    """What must be found, and what must not be grave."""
    found = [one for top in recording.diagnosis().findings for one in top.everything()]
    for rule in MUST[job]:
        ranks = [one.where.ranks for one in found if one.rule == rule]
        right = any(job != "straggler" or where == (1,) for where in ranks)
        yield Check(f"finds {rule}", right, f"on ranks {ranks}" if ranks else "not found")
    grave = {one.rule for one in found if one.severity in GRAVE}
    wrong = sorted(grave & {*MUST_NOT} - {*MUST[job]})
    yield Check("finds nothing else", not wrong, ", ".join(wrong) or "nothing")
