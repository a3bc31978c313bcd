"""A collective was ready and found no room."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values
from tests.unit.rules.waiting_streams import shape, wait

RULE = "comm-starved-by-compute"
H100 = {"name": "NVIDIA H100", "sm_count": 132}


def job(
    *,
    gemms: tuple[float, ...] = (300, 300, 300),
    blocks: int = 132,
    copy: bool = False,
    launch: float = -24,
    waits: bool = True,
    of: int | None = 7,
) -> TraceBuilder:
    """A kernel until 100, then GEMMs in a row; communication, waiting for that kernel, at 700."""
    builder = TraceBuilder(rank=0, world_size=2)
    builder.kernel("producer", 0, 100, launch=-30, **shape(132))
    at = 100.0
    for number, length in enumerate(gemms):
        builder.kernel("gemm", at, length, launch=-20 + 4 * number, **shape(blocks))
        at += length
    if waits:
        wait(builder, launch - 2, stream=20, of=of)
    if copy:
        builder.copy("PtoP", 700, 500, stream=20, launch=launch)
    else:
        builder.collective("allreduce", 700, 500, launch=launch)
    return builder


def test_fires_where_later_gemms_go_first():
    finding = found(trace_of(job(), gpu=H100), RULE)
    # Ready at 100. The GEMM until 400 ran already; the one until 700 took its place: 300 of 500.
    assert values(finding) == {
        "delay_ns": 300_000,
        "step_pct": 25,
        "delay_pct": 60,
        "num_collectives": 1,
    }
    assert finding.gain.basis == "upper bound"
    assert finding.gain.high_ns == 300_000
    assert finding.advice[0].code == "TORCH_NCCL_HIGH_PRIORITY=1"


def test_fires_beside_a_small_kernel_that_it_cannot_have_waited_for():
    # On a stream of its own until 5000: neither in the way nor what the wait was for.
    builder = job(of=None)
    builder.kernel("small", 0, 5000, stream=9, launch=-34, **shape(1))
    assert values(found(trace_of(builder, gpu=H100), RULE))["delay_ns"] == 300_000


def test_silent_behind_one_long_kernel():
    # Priority never interrupts what runs.
    assert is_clean(trace_of(job(gemms=(600, 300)), gpu=H100), RULE)


def test_silent_for_copies():
    assert is_clean(trace_of(job(copy=True), gpu=H100), RULE)


@pytest.mark.parametrize(
    "env", [{"TORCH_NCCL_HIGH_PRIORITY": "1"}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}]
)
def test_silent_where_priority_or_one_queue_is_set(env):
    assert is_clean(trace_of(job(), env=env, gpu=H100), RULE)


def test_silent_where_a_wait_holds_it():
    # Launched after the GEMM that ends at 700, for which it waits.
    assert is_clean(trace_of(job(launch=-10), gpu=H100), RULE)


def test_silent_where_there_is_room():
    assert is_clean(trace_of(job(blocks=66), gpu=H100), RULE)


def test_silent_for_short_delays():
    # The GEMM that takes its place lasts 190 us.
    assert is_clean(trace_of(job(gemms=(410, 190, 300)), gpu=H100), RULE)


def test_silent_where_waits_or_multiprocessors_are_not_known():
    assert is_clean(trace_of(job(waits=False), gpu=H100), RULE)
    assert is_clean(trace_of(job()), RULE)
