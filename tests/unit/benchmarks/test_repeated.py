"""A recording repeated in memory: the original's measures, times the copies."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.repeated import repeated
from benchmarks.timeline_queries import num_events, windows
from diagnose import load
from diagnose.lanes import Timeline
from diagnose.timeline import overlap

HEALTHY = Path(__file__).parents[3] / "examples" / "recordings" / "healthy"


def test_measures_are_those_of_the_original():
    trace = load(HEALTHY).trace
    more = repeated(trace, 4, 3)
    assert num_events(more) == 6 * num_events(trace)
    original, measured = overlap(trace), overlap(more)
    for name in ("compute_ns", "communication_ns", "overlapped_ns", "memory_ns", "num_ops"):
        expected = 3 * np.tile(original[name], 2)
        assert measured[name].tolist() == expected.tolist()
    for table in (more.gpu_ops, more.host_ops, more.launches, more.collectives, more.steps):
        keys = [table[name] for name in reversed(table.schema.order)]
        assert np.lexsort(keys).tolist() == list(range(len(table)))


def test_references_lead_to_the_same_copy():
    trace = load(HEALTHY).trace
    more = repeated(trace, 3, 2)
    ops, launches = more.gpu_ops, more.launches
    row = ops["launch_row"]
    launched = row >= 0
    assert launched.sum() == 2 * sum(
        (trace.gpu_ops["launch_row"][trace.gpu_ops["source"] == s] >= 0).sum() for s in (0, 1, 0)
    )
    assert np.all(launches["source"][row[launched]] == ops["source"][launched])
    assert np.all(launches["correlation"][row[launched]] == ops["correlation"][launched])
    named = ops["name"][more.collectives["gpu_op_row"]]
    assert set(named.tolist()) == set(
        trace.gpu_ops["name"][trace.collectives["gpu_op_row"]].tolist()
    )


def test_windows_lie_in_the_recording_and_can_be_drawn():
    timeline = Timeline(load(HEALTHY).trace)
    for start, end in windows(timeline.end_ns, 20):
        assert 0 <= start < end <= timeline.end_ns
        picture = timeline.picture(start, end, pixels=1500, lanes=["g0.0"])
        assert len(picture) <= 4000
