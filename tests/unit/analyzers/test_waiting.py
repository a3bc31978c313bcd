"""Exposed communication divided into waiting and transfer: by hand, and against `overlap`."""

from __future__ import annotations

import numpy as np
import pytest

import diagnose
from diagnose.analysis import Unavailable
from diagnose.analyzers.waiting import waiting
from diagnose.errors import UsageError
from diagnose.schema import NULL, Detail
from diagnose.timeline import overlap
from tests.builder import TraceBuilder, build_trace

US = 1000


def rank(number, arrives, compute_until):
    """Per step from t: compute [t+10, t+c), all-reduce [t+arrives, t+70); 5 us alone before."""
    builder = TraceBuilder(rank=number, world_size=2)
    builder.kernel("gemm", 0, 5)
    for step in range(3):
        t = 100 * step
        builder.step(step + 1, t, 100)
        builder.kernel("gemm", t + 10, compute_until - 10, launch=t + 1)
        builder.collective("allreduce", t + arrives, 70 - arrives, launch=t + 2)
    return builder


@pytest.fixture
def trace():
    # Rank 0 waits [30,60), of which compute covers [30,40); both move bytes [60,70).
    return build_trace(rank(0, 30, 40), rank(1, 60, 60))


def rows(table):
    names = ("rank", "num_ops", "num_matched", "exposed_transfer_ns", "waiting_ns")
    return list(zip(*(table[name].tolist() for name in names), strict=True))


def test_by_rank(trace):
    assert rows(waiting(trace)) == [(0, 3, 3, 30 * US, 60 * US), (1, 3, 3, 30 * US, 0)]


def test_by_step(trace):
    each = [(1, 1, 10 * US, 20 * US)] * 3 + [(0, 0, NULL, NULL)]
    late = [(1, 1, 10 * US, 0)] * 3 + [(0, 0, NULL, NULL)]
    expected = [(0, *row) for row in each] + [(1, *row) for row in late]
    assert rows(waiting(trace, by="step")) == expected


def test_waiting_beside_a_transfer_is_no_waiting():
    """While one operation moves bytes, another that waits costs nothing more."""
    builders = []
    for number, arrives in ((0, 10), (1, 50)):
        builder = TraceBuilder(rank=number, world_size=2)
        for step in range(3):
            t = 100 * step
            builder.step(step + 1, t, 100)
            builder.kernel("gemm", t + 2, 3, launch=t + 1)
            start = t + arrives
            builder.collective("allreduce", start, 60 - arrives, launch=t + 2)
            # Moves bytes on both, [15, 40), on another stream.
            builder.collective(
                "broadcast", t + 15, 25, group="1", elements=64, stream=21, launch=t + 3
            )
        builders.append(builder)
    first = rows(waiting(build_trace(*builders), by="step"))[0]
    # Exposed [10,60) = 50; moving [15,40) and [50,60) = 35.
    assert first == (0, 2, 2, 35 * US, 15 * US)


@pytest.mark.parametrize("name", ["healthy", "straggler", "launch_bound"])
@pytest.mark.parametrize("by", ["rank", "step"])
def test_both_parts_sum_to_the_exposed_communication(recordings, name, by):
    trace = diagnose.load(str(recordings / name), only="launches").trace
    divided, whole = waiting(trace, by=by), overlap(trace, by=by)
    for column in ("source", "device", "step_row"):
        np.testing.assert_array_equal(divided[column], whole[column])
    known = divided["num_matched"] > 0
    assert known.any()
    total = divided["waiting_ns"] + divided["exposed_transfer_ns"]
    np.testing.assert_array_equal(total[known], whole["exposed_communication_ns"][known])
    assert (divided["waiting_ns"][known] >= 0).all()


def test_what_is_missing_is_said():
    alone = build_trace(rank(0, 30, 40))
    assert isinstance(waiting(alone), Unavailable)
    assert "one GPU only" in waiting(alone).because
    less = build_trace(rank(0, 30, 40), rank(1, 60, 60), detail=Detail.GPU)
    assert isinstance(waiting(less, by="step"), Unavailable)
    with pytest.raises(UsageError, match="stream"):
        waiting(alone, by="stream")
