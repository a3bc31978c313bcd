"""A GEMM needs a second wave because communication holds some SMs."""

from __future__ import annotations

import pytest

from diagnose import readers
from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "gemm-wave-quantization"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_persistent"


def job(
    beside_us: float = 195,
    *,
    kernel: str = GEMM,
    blocks: int = 132,
    held: int = 16,
    each: int = 5,
    shapes: list[list[int]] | None = None,
    multiprocessors: int | None = 132,
) -> TraceBuilder:
    """GEMMs of 100 us alone and of ``beside_us`` beside an all-gather just as long."""
    builder, at = TraceBuilder(rank=0, world_size=2), 1000.0
    if multiprocessors:
        builder.top["deviceProperties"] = [{"id": 0, "numSms": multiprocessors}]
    for number in range(2 * each):
        overlapped = number >= each
        length = beside_us if overlapped else 100
        dims = {"Input Dims": shapes} if shapes else {}
        parent = builder.operator("aten::mm", number * 6, 4, **dims)
        shape = {"grid": [blocks, 1, 1], "block": [384, 1, 1]}
        builder.kernel(kernel, at, length, launch=number * 6 + 1, parent=parent, **shape)
        if overlapped:
            shape = {"grid": [held, 1, 1], "block": [512, 1, 1]}
            builder.collective("_allgather_base", at, length, launch=number * 6 + 4.5, **shape)
        at += length
    return builder


def test_fires_where_a_gemm_that_fills_the_gpu_doubles():
    finding = found(trace_of(job()), RULE)
    evidence = values(finding)
    assert evidence["duration_ratio"] == pytest.approx(1.95)
    assert (evidence["num_blocks"], evidence["num_multiprocessors"]) == (132, 132)
    assert evidence["held_pct"] == pytest.approx(100 * 16 / 132)
    # On the 116 multiprocessors that are left 100 us would be 113.793; five times 81.207 are lost.
    assert evidence["lost_ns"] == pytest.approx(406_034, abs=1)
    # Of a window of 5 * 100 + 5 * 195 us.
    assert evidence["lost_pct"] == pytest.approx(27.5277, abs=1e-3)
    assert finding.cost.per_step_ns == pytest.approx(406_034, abs=1)
    assert finding.advice[0].code == "torch._C._set_sm_carveout_experimental(16)"


def test_fires_for_two_blocks_on_each_multiprocessor_and_large_shapes(tmp_path):
    # Written and read: only the reader knows shapes.
    path = job(blocks=264, shapes=[[4096, 4096], [4096, 4096]]).write(tmp_path)
    assert values(found(readers.read([str(path)]), RULE))["num_blocks"] == 264


def test_what_it_loses_is_per_step():
    """Three steps are marked and two have a time: see diagnose.timeline."""
    builder = TraceBuilder(rank=0, world_size=2)
    builder.top["deviceProperties"] = [{"id": 0, "numSms": 132}]
    for step in range(3):
        builder.step(step, step * 2000, 1999)
        for number in range(6):
            beside, at = number >= 3, step * 2000 + 10 + 100 * number + 100 * max(number - 3, 0)
            launch = step * 2000 + number * 6 + 1
            shape = {"grid": [132, 1, 1], "block": [384, 1, 1]}
            builder.kernel(GEMM, at, 190 if beside else 90, launch=launch, **shape)
            if beside:
                shape = {"grid": [12, 1, 1], "block": [512, 1, 1]}
                builder.collective("_allgather_base", at, 190, launch=launch + 3, **shape)
    # Three a step, of 190 us; on 120 of 132 multiprocessors 90 us are 99.
    assert values(found(trace_of(builder), RULE))["lost_ns"] == pytest.approx(3 * 91_000)


def test_silent_where_the_grid_leaves_multiprocessors_free():
    assert is_clean(trace_of(job(blocks=116)), RULE)


def test_silent_for_kernels_that_are_no_gemm():
    elementwise = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>"
    assert is_clean(trace_of(job(kernel=elementwise)), RULE)


def test_silent_for_a_gemm_that_memory_limits(tmp_path):
    path = job(shapes=[[16, 4096], [4096, 4096]]).write(tmp_path)
    assert is_clean(readers.read([str(path)]), RULE)


def test_silent_where_collectives_hold_much_of_the_gpu():
    # 40 of 132 are 30 %.
    assert is_clean(trace_of(job(held=40)), RULE)


@pytest.mark.parametrize("beside_us", [150, 230])
def test_silent_where_the_ratio_is_not_that_of_a_second_wave(beside_us):
    assert is_clean(trace_of(job(beside_us)), RULE)


def test_silent_with_too_few_twins():
    assert is_clean(trace_of(job(each=4)), RULE)


def test_is_not_judged_where_multiprocessors_are_not_known():
    _, checked = judged(trace_of(job(multiprocessors=None)), RULE)
    assert [one.because for one in checked.not_checked] == [
        "the number of multiprocessors is not known"
    ]
