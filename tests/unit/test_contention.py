"""The cost of overlap on timelines worked out by hand. Times in microseconds."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose import readers
from diagnose.analysis import Unavailable
from diagnose.contention import (
    contention,
    contention_basis,
    contention_causes,
    contention_kernels,
    overlap_balance,
)
from diagnose.contention._rates import quantile
from diagnose.errors import UsageError
from tests.builder import TraceBuilder, build_trace
from tests.contention_lines import US, Line, row_of


def test_a_kernel_that_is_overlapped_completely():
    """Three times 1600 beside and 1000 alone: 1.6 times as long, 600 us each."""
    trace = Line().times(3, "gemm", 1600, 1600).times(3, "gemm", 1000).trace
    row = row_of(contention_kernels(trace))
    assert (row["num_alone"], row["num_overlapped"], row["num_paired"]) == (3, 3, 3)
    assert (row["alone_ns"], row["overlapped_duration_ns"]) == (1000 * US, 1600 * US)
    assert row["slowdown"] == pytest.approx(1.6, rel=1e-12)
    # Nothing varied, so nothing is uncertain.
    assert [row["slowdown_low"], row["slowdown_high"]] == pytest.approx([1.6, 1.6])
    assert row["cost_ns"] == pytest.approx(1800 * US)
    assert row["coverage_pct"] == 100
    row = row_of(contention(trace), collective="all_gather")
    assert row["slowdown"] == pytest.approx(1.6)
    assert row["cost_ns"] == row["estimated_ns"] == pytest.approx(1800 * US)
    assert row_of(contention(trace, "family"))["family"] == "gemm"
    assert row_of(contention(trace, "gpu"))["rank"] == 0


def test_a_kernel_that_is_overlapped_in_part():
    """1300 us, of them 800 beside at a rate of 1 / 1.6: 500 + 500 = 1000 us of work.

    The slowdown while beside is 1.6; the whole kernel takes 1.3 times as long. A line
    through duration against share of time would give 1 + 0.3 / (800 / 1300) = 1.4875.
    """
    trace = Line().times(3, "gemm", 1300, 800).times(3, "gemm", 1000).trace
    row = row_of(contention_kernels(trace))
    assert row["slowdown"] == pytest.approx(1.6, rel=1e-12)
    assert row["duration_ratio"] == pytest.approx(1.3, rel=1e-12)
    assert row["cost_ns"] == pytest.approx(900 * US)
    assert row["overlapped_share_pct"] == pytest.approx(100 * 800 / 1300)


def test_whole_and_partial_overlap_together_give_one_slowdown():
    line = Line().times(2, "gemm", 1600, 1600).times(3, "gemm", 1300, 800).times(4, "gemm", 1000)
    row = row_of(contention(line.trace), collective="all_gather")
    assert row["slowdown"] == pytest.approx(1.6, rel=1e-12)
    assert row["cost_ns"] == pytest.approx((2 * 600 + 3 * 300) * US)
    assert row["overlapped_ns"] == (2 * 1600 + 3 * 800) * US


def test_a_kernel_that_is_faster_beside_communication():
    trace = Line().times(3, "gemm", 900, 900).times(3, "gemm", 1000).trace
    row = row_of(contention_kernels(trace))
    assert row["slowdown"] == pytest.approx(0.9)
    assert row["cost_ns"] == pytest.approx(-300 * US)
    assert row_of(overlap_balance(trace))["gain_ns"] == pytest.approx((2700 + 300) * US)


def test_several_kernels_and_kinds_are_told_apart():
    """GEMM 1.5 under all-reduce, norm 2.0 under all-gather: cost 3 x 500 and 3 x 100."""
    line = Line().times(3, "gemm_kernel", 1500, 1500, kind="allreduce")
    line.times(3, "layer_norm_kernel", 200, 200)
    trace = line.times(3, "gemm_kernel", 1000).times(3, "layer_norm_kernel", 100).trace
    by_kind = contention(trace)
    assert row_of(by_kind, collective="all_reduce")["slowdown"] == pytest.approx(1.5)
    assert row_of(by_kind, collective="all_gather")["slowdown"] == pytest.approx(2.0)
    assert by_kind["cost_ns"].tolist() == pytest.approx([1500 * US, 300 * US])
    by_family = contention(trace, "family")
    assert row_of(by_family, family="gemm")["cost_ns"] == pytest.approx(1500 * US)
    assert row_of(by_family, family="norm")["slowdown"] == pytest.approx(2.0)
    whole = row_of(contention(trace, "all"))
    # 4500 + 600 us beside, done alone in 3000 + 300.
    assert whole["slowdown"] == pytest.approx(5100 / 3300)
    kernels = contention_kernels(trace)
    assert kernels.texts("name") == ["gemm_kernel", "layer_norm_kernel"]


def test_two_kinds_at_once_are_a_class_of_their_own():
    """Beside all-gather and all-reduce at once for 800 us, done alone in 500."""
    line = Line()
    for _ in range(3):
        line.builder.collective("allreduce", line.now, 800, stream=21)
        line.ran("gemm", 800, 800)
    trace = line.times(3, "gemm", 500).trace
    row = row_of(contention(trace))
    assert row["collective"] == "several"
    assert row["slowdown"] == pytest.approx(1.6)
    assert "several" in contention_causes(trace).texts("collective")


def test_another_launch_shape_is_another_kernel():
    small, large = (
        {"grid": [8, 1, 1], "block": [128, 1, 1]},
        {"grid": [9, 1, 1], "block": [128, 1, 1]},
    )
    line = Line().times(3, "gemm", 1600, 1600, **large).times(5, "gemm", 1000, **small)
    line.times(3, "gemm", 500, 500, **small)
    trace = line.trace
    kernels = contention_kernels(trace)
    paired = row_of(kernels, launch_shape="grid [8, 1, 1] block [128, 1, 1]")
    assert paired["slowdown"] == pytest.approx(0.5)
    alone = row_of(kernels, launch_shape="grid [9, 1, 1] block [128, 1, 1]")
    assert alone["num_paired"] == 0
    assert np.isnan(alone["slowdown"])
    row = row_of(contention(trace))
    assert row["coverage_pct"] == pytest.approx(100 * 1500 / 6300)
    # What has no twin is taken to lose as the rest: 1 - 1 / 0.5 of its 4800 us.
    assert row["estimated_ns"] == pytest.approx((-1500 - 4800) * US)


def shaped(tmp_path, *runs):
    """A trace read from a file: runs of (shapes or None, duration, time beside)."""
    builder = TraceBuilder(rank=0, world_size=1)
    now = 1000
    for shapes, duration, beside in runs:
        parent = None
        if shapes is not None:
            parent = builder.operator("aten::mm", now - 100, 20, **{"Input Dims": shapes})
        if beside:
            builder.collective("allreduce", now, beside)
        launch = None if parent is None else now - 95
        builder.kernel("gemm", now, duration, launch=launch, parent=parent)
        now += duration + 200
    return readers.read(str(builder.write(tmp_path)))


SMALL, LARGE = [[8, 8], [8, 8]], [[64, 8], [8, 64]]


def test_other_input_shapes_are_another_kernel(tmp_path):
    """Persistent kernels have one grid for all sizes: 900 alone is the large, not the small."""
    trace = shaped(
        tmp_path,
        *[(SMALL, 150, 150)] * 3, *[(SMALL, 100, 0)] * 3, *[(LARGE, 990, 990)] * 3,
        *[(LARGE, 900, 0)] * 3,
    )  # fmt: skip
    found = contention_kernels(trace)
    slowdowns = dict(zip(found.texts("shapes"), found["slowdown"].tolist(), strict=True))
    assert slowdowns == pytest.approx({str(SMALL): 1.5, str(LARGE): 1.1})


def test_kernels_of_unknown_shapes_take_the_only_known_ones(tmp_path):
    trace = shaped(tmp_path, *[(None, 150, 150)] * 3, *[(SMALL, 100, 0)] * 3)
    assert row_of(contention_kernels(trace))["slowdown"] == pytest.approx(1.5)


def test_kernels_of_unknown_shapes_stay_alone_where_there_are_several(tmp_path):
    runs = [*[(None, 150, 150)] * 3, *[(None, 100, 0)] * 3, (SMALL, 100, 0), (LARGE, 900, 0)]
    trace = shaped(tmp_path, *runs)
    assert isinstance(contention(trace), Unavailable)
    assert row_of(contention_basis(trace))["unclear_ns"] == 450 * US
    trace = shaped(tmp_path, *[(None, 150, 150)] * 3, *[(None, 100, 0)] * 3)
    assert row_of(contention_kernels(trace))["slowdown"] == pytest.approx(1.5)


def test_each_gpu_has_its_own_twins():
    """The second GPU is slower, alone too: 1200. It is not paired with the first's 1000."""
    line = Line().times(3, "gemm", 1500, 1500).times(3, "gemm", 1000)
    Line(device=1, builder=line.builder).times(3, "gemm", 1500, 1500).times(3, "gemm", 1200)
    found = contention_kernels(line.trace)
    assert row_of(found, device=0)["slowdown"] == pytest.approx(1.5)
    assert row_of(found, device=1)["slowdown"] == pytest.approx(1.25)
    by_gpu = contention(line.trace, "gpu")
    assert by_gpu["device"].tolist() == [0, 1]
    assert by_gpu["cost_ns"].tolist() == pytest.approx([1500 * US, 900 * US])
    # All 9000 us together, done alone in 3000 + 3600.
    assert row_of(contention(line.trace))["slowdown"] == pytest.approx(9000 / 6600)


def test_a_gpu_whose_kernels_never_ran_alone_borrows_no_twins():
    line = Line().times(3, "gemm", 1500, 1500).times(3, "gemm", 1000)
    Line(device=1, builder=line.builder).times(3, "gemm", 1500, 1500)
    second = row_of(contention_kernels(line.trace), device=1)
    assert second["num_paired"] == 0
    assert row_of(contention(line.trace))["coverage_pct"] == pytest.approx(50)


def test_compute_beside_compute_is_left_out():
    """Half of each overlapped kernel runs beside another kernel: slower for two reasons."""
    line = Line()
    for _ in range(3):
        line.builder.kernel("copy_kernel", line.now, 800, stream=8)
        line.ran("gemm", 1600, 1600)
    line.times(3, "gemm", 1000)
    found = contention(line.trace)
    assert isinstance(found, Unavailable)
    assert row_of(contention_basis(line.trace))["crowded_ns"] == (3 * 1600 + 3 * 800) * US


def test_an_outlier_among_twins_does_not_count():
    line = Line().times(3, "gemm", 1600, 1600).times(6, "gemm", 1000).ran("gemm", 9000)
    row = row_of(contention_kernels(line.trace))
    assert (row["num_alone"], row["alone_ns"]) == (6, 1000 * US)
    assert row["slowdown"] == pytest.approx(1.6)


def test_twins_that_differ_too_much_are_not_the_same_work():
    line = Line().times(4, "gemm", 1600, 1600)
    for duration in (300, 1000, 2000, 400, 900):
        line.ran("gemm", duration)
    assert isinstance(contention(line.trace), Unavailable)
    assert row_of(contention_basis(line.trace))["disagree_ns"] == 6400 * US


def test_a_kernel_that_stands_still_has_a_bound_and_no_slowdown():
    """1000 us of work, done in 1000 us after 500 us beside: the rate is 0."""
    trace = Line().times(4, "gemm", 1500, 500).times(4, "gemm", 1000).trace
    row = row_of(contention(trace))
    assert np.isnan(row["slowdown"])
    assert np.isnan(row["slowdown_high"])
    assert row["duration_ratio"] == pytest.approx(1.5)
    assert row["cost_ns"] == pytest.approx(2000 * US)


def test_it_is_refused_with_a_sentence():
    nothing = contention(build_trace(TraceBuilder(rank=0).kernel("gemm", 0, 10)))
    assert "holds no communication" in nothing.because
    apart = TraceBuilder(rank=0).kernel("gemm", 0, 10).collective("allreduce", 20, 10)
    assert "no compute ran beside communication" in contention(build_trace(apart)).because
    few = Line().times(2, "gemm", 1600, 1600).times(5, "gemm", 1000).trace
    for analysis in (contention, contention_kernels, contention_causes, overlap_balance):
        missing = analysis(few)
        assert "of 2 overlapped kernels 2 have a twin" in missing.because
        assert "3 are needed" in missing.because
        assert "--alone" in missing.remedy
    with pytest.raises(UsageError, match="cannot be split by 'colour'"):
        contention(few, by="colour")
    with pytest.raises(UsageError, match="no recording of compute alone"):
        contention(few, alone=3)


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (1e9, 1.960)],
)
def test_student_quantiles_are_those_of_the_tables(freedom, expected):
    assert quantile(np.array([freedom], np.float64))[0] == pytest.approx(expected, rel=0.006)
