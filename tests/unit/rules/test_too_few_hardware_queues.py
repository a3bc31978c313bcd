"""More streams than hardware queues: streams wait for strangers."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values
from tests.unit.rules.waiting_streams import shape, wait

RULE = "too-few-hardware-queues"
H100 = {"name": "NVIDIA H100", "sm_count": 132}


def job(
    *,
    streams: int = 9,
    tied: bool = False,
    waits: bool = True,
    blocks: int = 8,
    second: float = 100,
    second_launch: float = -6,
    start: float = 101,
    copy: bool = False,
    other_copy: bool = False,
) -> TraceBuilder:
    """Stream 7: [0, 100) and [100, 200). Stream 8, launched last, begins at ``start``.

    Others ran a kernel before, from -50 on: 250 us in all.
    """
    builder = TraceBuilder(rank=0, world_size=1)
    for number in range(streams - 2):
        at = -50 + number
        builder.kernel("early", at, 5, stream=9 + number, launch=at - 5, **shape(1))
    builder.kernel("first", 0, 100, launch=-12, **shape(blocks))
    if tied:
        wait(builder, -10, stream=8, of=7)
    builder.kernel("second", second, 100, launch=second_launch, **shape(blocks))
    if other_copy:
        builder.copy("HtoD", 0, 101, stream=9, launch=-8)
    if copy:
        builder.copy("HtoD", start, 20, stream=8, launch=-3)
    else:
        builder.kernel("stranger", start, 20, stream=8, launch=-3, **shape(8))
    if waits:
        wait(builder, 190, stream=9)
    return builder


def test_fires_for_a_stranger_behind_another_stream():
    finding = found(trace_of(job(), gpu=H100), RULE)
    # Launched at -1, begun at 101, as the second of stream 7 was let go.
    assert values(finding) == {
        "held_ns": 102_000,
        "held_pct": pytest.approx(100 * 102 / 250),
        "num_operations": 1,
        "num_streams": 9,
        "num_queues": 8,
    }
    assert finding.advice[0].code == "CUDA_DEVICE_MAX_CONNECTIONS=16"
    assert finding.gain.basis == "upper bound"
    assert finding.gain.high_ns == 102_000


def test_fires_on_what_an_h200_did_with_two_queues():
    """Four streams of two kernels of one block each: times as recorded, to 0.1 us."""
    builder = TraceBuilder(rank=0, world_size=1)
    for stream, first, second, launches in (
        (13, 0.0, 203.7, (-10.1, 0.8)),
        (17, 31.9, 235.9, (24.1, 31.2)),
        (21, 204.1, 407.9, (52.8, 60.3)),
        (25, 236.2, 440.0, (81.1, 88.5)),
    ):
        if stream == 13:
            wait(builder, -14, stream=13, of=7)
        for start, launch in zip((first, second), launches, strict=True):
            builder.kernel("sleep", start, 202.6, launch=launch, stream=stream, **shape(1))
    env = {"CUDA_DEVICE_MAX_CONNECTIONS": "2"}
    evidence = values(found(trace_of(builder, env=env, gpu=H100), RULE))
    # Stream 21 was free at 54.8 and stood behind the second kernel of 13 until 204.1; stream 25
    # was free at 83.1 and stood behind that of 17 until 236.2. Second ones wait for first ones.
    assert evidence["num_operations"] == 2
    assert evidence["held_ns"] == 181_400


def test_fires_where_more_queues_are_not_enough():
    env = {"CUDA_DEVICE_MAX_CONNECTIONS": "16"}
    finding = found(trace_of(job(streams=17), env=env, gpu=H100), RULE)
    assert finding.advice[0].code == "CUDA_DEVICE_MAX_CONNECTIONS=32"


def test_fires_for_a_copy_beside_kernels_that_fill_the_gpu():
    # A copy needs no multiprocessor.
    finding = found(trace_of(job(copy=True, blocks=132), gpu=H100), RULE)
    assert values(finding)["held_ns"] == 102_000


@pytest.mark.parametrize("number", ["9", "16", "32"])
def test_silent_where_there_are_queues_enough(number):
    env = {"CUDA_DEVICE_MAX_CONNECTIONS": number}
    assert is_clean(trace_of(job(), env=env, gpu=H100), RULE)
    assert is_clean(trace_of(job(streams=8), gpu=H100), RULE)


@pytest.mark.parametrize(
    "env",
    [
        {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"},
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"},
        {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    ],
)
def test_silent_under_mps_and_with_one_queue(env):
    assert is_clean(trace_of(job(), env=env, gpu=H100), RULE)


def test_silent_on_amd():
    trace = trace_of(job(), gpu={"name": "AMD Instinct MI300X", "sm_count": 304})
    assert judged(trace, RULE)[1].not_applicable == (RULE,)


def test_silent_where_a_wait_ties_the_streams():
    # The wait covers the first kernel of stream 7, which ends at 100.
    assert is_clean(trace_of(job(tied=True), gpu=H100), RULE)


def test_silent_where_there_was_no_room():
    # The GPU is full from 0 to 200: 1 us of 250 is left.
    assert is_clean(trace_of(job(blocks=132), gpu=H100), RULE)


def test_silent_for_a_copy_behind_another_copy():
    assert is_clean(trace_of(job(copy=True, other_copy=True), gpu=H100), RULE)


def test_silent_where_it_begins_at_a_time_of_its_own():
    assert is_clean(trace_of(job(start=106), gpu=H100), RULE)
    # 3 us after the second began, but 6 us after the first ended.
    assert is_clean(trace_of(job(second=103, start=106), gpu=H100), RULE)


def test_silent_where_nothing_stood_ahead_of_it():
    # The second of stream 7 was launched after it.
    assert is_clean(trace_of(job(second_launch=1), gpu=H100), RULE)


def test_silent_where_waits_or_multiprocessors_are_not_known():
    assert is_clean(trace_of(job(waits=False), gpu=H100), RULE)
    assert is_clean(trace_of(job()), RULE)
