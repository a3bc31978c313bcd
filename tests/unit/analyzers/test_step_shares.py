"""The mean step of a GPU, with sums worked out by hand. Times in microseconds."""

from __future__ import annotations

import pytest

from diagnose import engine
from diagnose.analysis import Unavailable
from diagnose.schema import NULL
from tests.builder import TraceBuilder, build_trace


def shares(trace):
    return engine.run(engine.analyzers()["step_shares"], trace)


def three_steps(rank=None):
    """Steps end on the GPU at 80, 200 and 400: step times of 120 and 200.

    Of (80, 200]: compute [100, 160), all-reduce [140, 190), copy [195, 200). Of (200, 400]:
    compute [210, 310), all-reduce [300, 400).
    """
    builder = TraceBuilder(rank=rank, world_size=None if rank is None else 2)
    builder.step(1, 0, 50).kernel("gemm", 10, 70, launch=1)
    builder.step(2, 50, 50).kernel("gemm", 100, 60, launch=51)
    builder.collective("allreduce", 140, 50, launch=54).copy("HtoD", 195, 5, launch=57)
    builder.step(3, 100, 50).kernel("gemm", 210, 100, launch=101)
    return builder.collective("allreduce", 300, 100, launch=104)


def test_the_five_states_are_means_over_the_timed_steps():
    table = shares(build_trace(three_steps()))
    row = {name: values[0].item() for name, values in table.columns.items()}
    assert row == {
        "source": 0,
        "device": 0,
        "rank": NULL,
        "num_steps": 2,
        "step_ns": 160_000,  # (120 + 200) / 2
        "compute_only_ns": 65_000,  # [100, 140) and [210, 300): (40 + 90) / 2
        "overlapped_ns": 15_000,  # [140, 160) and [300, 310): (20 + 10) / 2
        "exposed_communication_ns": 60_000,  # [160, 190) and [310, 400): (30 + 90) / 2
        "memory_only_ns": 2_500,  # [195, 200) / 2
        "idle_ns": 17_500,  # [80, 100), [190, 195) and [200, 210): (25 + 10) / 2
    }


def test_a_gpu_without_a_timed_step_has_no_row():
    alone = TraceBuilder(rank=1, world_size=2).step(1, 0, 50).kernel("gemm", 10, 70, launch=1)
    table = shares(build_trace(three_steps(rank=0), alone))
    assert table["rank"].tolist() == [0]


@pytest.mark.parametrize("steps", [0, 1])
def test_without_a_step_time_it_is_unavailable_and_says_what_to_record(steps):
    builder = TraceBuilder().kernel("gemm", 10, 70)
    for number in range(steps):
        builder.step(number, 0, 50)
    answer = shares(build_trace(builder))
    assert isinstance(answer, Unavailable)
    assert "three steps" in answer.remedy
