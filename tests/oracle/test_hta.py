"""HolisticTraceAnalysis (HTA) and this package agree once HTA's rules are applied to our columns.

HTA's answers for the shipped recordings are kept in ``hta/*.json``, with the
script that asked for them. They differ from ``overlap`` for reasons that this
test reproduces one by one, so that nothing is left to explain:

1. Work whose launch is not in the file is left out (here a third of it).
2. ``include_last_profiler_step=False``, the default, also leaves out what was
   launched at or after the start of the last step mark; and the copies of the
   marks on the GPU count as marks, which moves that start behind all launches
   where the last copy begins late.
3. Synchronisations on a stream ("Stream Wait Event", "Stream Sync") count as
   work of the GPU: they make it busy. Release 0.5.0 even counts "Stream Wait
   Event" as compute, which hides communication.
4. Starts are rounded up and ends down to whole microseconds. An op within one
   microsecond gets a negative duration, which is subtracted from the total, or
   not, where another op begins in the same microsecond: the order of equal
   starts is left to an unstable sort. Each such op is a microsecond of slack.
5. Times are floats in microseconds; as far from zero as here, neighbouring
   floats are a nanosecond apart, and each start and each end is off by as much.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose.intervals import Intervals, intersection_length
from diagnose.readers import read
from diagnose.schema import Activity
from diagnose.trace import Gpu, Trace

RECORDINGS = Path(__file__).parents[2] / "examples" / "recordings"
FILES = sorted((Path(__file__).parent / "hta").glob("*.json"))
ANSWERS = [
    (stored["version"], answer)
    for stored in map(json.loads, map(Path.read_text, FILES))
    for answer in stored["answers"]
]


@cache
def recording(name: str) -> Trace:
    return read(RECORDINGS / name)


@cache
def gpu_marks(name: str, rank: int) -> list[tuple[int, int]]:
    """Starts and ends of the step marks' copies on the GPU, which a ``Trace`` leaves out."""
    path = RECORDINGS / name / f"rank{rank:05d}.trace.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [
        (round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000))
        for event in events
        if event.get("cat") == "gpu_user_annotation" and "ProfilerStep" in event["name"]
    ]


class Seen:
    """The rows on which HTA counts, in nanoseconds: GPU work and waits on streams."""

    def __init__(self, trace: Trace, answer: dict[str, Any], version: str) -> None:
        gpu: Gpu = trace.gpus[answer["rank"]]
        ops = trace.gpu_ops.take(trace.on(gpu))
        calls = trace.launches.take(trace.launches["source"] == gpu.source)
        syncs = trace.syncs.take(
            (trace.syncs["source"] == gpu.source) & trace.syncs.known("stream")
        )
        limit = self._limit(trace, gpu, answer)
        start = calls["start_ns"]
        early = start <= limit if answer["last_step"] else start < limit
        launched = calls["correlation"][early & calls.known("correlation")]

        ops = ops.take(np.isin(ops["correlation"], launched))
        syncs = syncs.take(np.isin(syncs["correlation"], launched))
        names = np.array(syncs.texts("sync_kind"), object)
        waits_compute = (names == "Stream Wait Event") & (version == "0.5.0")

        self.start = np.concatenate([ops["start_ns"], syncs["start_ns"]])
        self.end = np.concatenate([ops["end_ns"], syncs["end_ns"]])
        none = np.zeros(len(syncs), bool)
        self.compute = np.concatenate([ops["activity"] == Activity.COMPUTE, waits_compute])
        self.communication = np.concatenate([ops["activity"] == Activity.COMMUNICATION, none])

    @staticmethod
    def _limit(trace: Trace, gpu: Gpu, answer: dict[str, Any]) -> int:
        own = trace.steps["source"] == gpu.source
        marks = list(zip(trace.steps["start_ns"][own], trace.steps["end_ns"][own], strict=True))
        copies = gpu_marks(answer["recording"], answer["rank"])
        # Traces begin at their own zero in both readings, so nothing has to be aligned.
        limit = max(pair[1 if answer["last_step"] else 0] for pair in [*marks, *copies])
        return int(limit)

    def rounded(self) -> None:
        # In floats, as HTA does: where the sum falls short of a whole microsecond, one is lost.
        start_us, duration_us = self.start / 1000, (self.end - self.start) / 1000
        self.start = np.ceil(start_us).astype(np.int64) * 1000
        self.end = np.floor(start_us + duration_us).astype(np.int64) * 1000


def merged(start: np.ndarray, end: np.ndarray) -> Intervals:
    """HTA's merging: it keeps intervals that end before they start."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(end)
    first = np.flatnonzero(np.append(True, start[1:] > reached[:-1]))
    return Intervals(start[first], np.maximum.reduceat(end, first))


@pytest.mark.parametrize(
    ("version", "answer"),
    ANSWERS,
    ids=[
        f"{version}-{a['recording']}-{a['rank']}"
        + ("-last" if a["last_step"] else "")
        + ("-rounded" if a["rounded"] else "")
        for version, a in ANSWERS
    ],
)
def test_same_answer_under_its_rules(version, answer):
    seen = Seen(recording(answer["recording"]), answer, version)
    if answer["rounded"]:
        seen.rounded()
    busy = merged(seen.start, seen.end)
    compute = merged(seen.start[seen.compute], seen.end[seen.compute])
    talk = merged(seen.start[seen.communication], seen.end[seen.communication])
    window_ns = int(busy.end[-1] - busy.start[0])
    lengths = [int((part.end - part.start).sum()) for part in (busy, compute, talk)]
    overlapped_ns = intersection_length(compute, talk)

    # Not rounded, a start and an end are each off by at most half the step between two floats.
    step_us = 0.0 if answer["rounded"] else float(np.spacing(int(seen.end.max()) / 1000))

    def off(part: Intervals, chosen: np.ndarray) -> float:
        start, end = seen.start[chosen], seen.end[chosen]
        starts, times = np.unique(start, return_counts=True)
        ties = int(np.isin(start[end < start], starts[times > 1]).sum())
        return len(part.start) * step_us + ties + 1e-6

    assert abs(answer["window_us"] - window_ns / 1000) <= step_us + 1e-6
    assert abs(answer["compute_us"] - lengths[1] / 1000) <= off(compute, seen.compute)
    assert abs(answer["idle_us"] - (window_ns - lengths[0]) / 1000) <= off(busy, seen.start >= 0)
    ratio = 100 * overlapped_ns / lengths[2]
    slack_us = off(talk, seen.communication) + off(compute, seen.compute)
    # HTA gives two decimals.
    assert abs(answer["overlap_pct"] - ratio) <= 0.005 + 1e-9 + 100 * 1000 * slack_us / lengths[2]
    # The slack stays too small to hide another class, rule or step.
    assert slack_us * 1000 < 0.001 * lengths[1]


def test_both_releases_answered_everything():
    assert {version for version, _ in ANSWERS} == {"0.5.0", "0.6.1"}
    assert len(ANSWERS) == 2 * 6 * 2 * 2 * 2
