"""Kernels faster, clocks higher, the optimizer fused, no contention: worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diagnose.replay.change import Assume
from diagnose.replay.changes._slowdown import Slowdowns, beside_ns
from diagnose.replay.changes.contention import NoContention
from diagnose.replay.changes.kernels import FasterKernels, HigherClocks
from diagnose.replay.changes.optimizer import FusedOptimizer
from diagnose.schema import SAMPLES
from diagnose.trace import Table, Trace
from tests.builder import build_trace
from tests.unit.replay.changes.jobs import Job, after, because, changed, step_of

GEMM = "nvjet_sm90_tst_128x128_64x6_2x4_h_bz_NTT"
POINTWISE = "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add>"


def computing() -> Job:
    """A matrix product of 60, additions of 20, a collective of 15 beside nothing."""
    job = Job()
    job.kernel(GEMM, 60)
    job.kernel(POINTWISE, 20)
    job.collective(15, stream="compute")
    return job


def test_a_family_faster() -> None:
    model = computing().model()
    assert step_of(model) == 95
    assert after(model, FasterKernels(family="gemm")) == 65
    assert after(model, FasterKernels(family="elementwise", factor=4.0)) == 80
    assert after(model, FasterKernels()) == 30 + 10 + 15
    assert after(model, FasterKernels(factor=1.0)) == 95


def test_kernels_by_a_part_of_their_name() -> None:
    model = computing().model()
    assert after(model, FasterKernels(name="NVJET_sm90")) == 65
    assert because(model, FasterKernels(name="flash")).startswith("no kernel of the replayed")
    assert because(model, FasterKernels(name="nvjet", family="elementwise")).startswith("no kernel")


def test_a_family_has_to_exist() -> None:
    with pytest.raises(ValueError, match=r"no family 'gem'.*gemm"):
        FasterKernels(family="gem")


def with_clock(trace: Trace, *mhz: float) -> Trace:
    """Samples a us apart, from where the trace begins."""
    base = trace.sources[0].base_ns
    assert base is not None
    columns = {
        column.name: np.full(len(mhz), np.nan, column.dtype)
        if column.dtype == "float64"
        else np.zeros(len(mhz), column.dtype)
        for column in SAMPLES.columns
    }
    begin = int(trace.gpu_ops["start_ns"].min())
    columns["unix_ns"] = base + begin + 1_000 * np.arange(len(mhz))
    columns["sm_clock_mhz"] = np.array(mhz)
    return replace(trace, samples=Table(SAMPLES, columns, trace.strings))


def test_a_higher_clock_helps_what_is_bound_by_it() -> None:
    """1500 to 2000 MHz: 60 becomes 45; with most gain 20 becomes 15 as well."""
    job = computing()
    model = job.model(with_clock(build_trace(*job.builders), 1_400.0, 1_600.0))
    change = HigherClocks(mhz=2_000.0)
    assert after(model, change) == after(model, change, Assume.LEAST) == 45 + 20 + 15
    assert after(model, change, Assume.MOST) == 45 + 15 + 15
    assert changed(model, change).remarks == ("The clocks of the GPUs were 1500 MHz (mean).",)
    assert after(model, HigherClocks(mhz=1_500.0)) == 95


def test_an_unknown_clock() -> None:
    assert because(computing().model(), HigherClocks(mhz=1_980.0)).startswith("no telemetry")


def optimizing(name: str = "void multi_tensor_apply_kernel<>", marked: bool = True) -> Job:
    """A backward kernel of 50, then an optimizer of three kernels of 20, pauses of 5."""
    job = Job()
    for step in range(2):
        job.kernel("gemm", 50, by=job.call(work=3, takes=2), pause=5)
        begin = job.builders[0].events[-1]["ts"] - job.builders[0].zero_us
        for _ in range(3):
            job.kernel(name, 20, by=job.call(work=3, takes=2), pause=5)
        end = job.builders[0].events[-1]["ts"] - job.builders[0].zero_us
        if marked:
            mark = f"Optimizer.step#AdamW.step{step}"
            job.builders[0].operator(mark, begin + 0.6, end - begin, category="user_annotation")
        job.next_step()
    return job


def test_a_fused_optimizer_is_one_pass() -> None:
    """60 of kernels shrink to 0.45 of them, two pauses go; with least gain only the pauses."""
    model = optimizing().model()
    assert step_of(model) == 4 * 5 + 50 + 60
    assert after(model, FusedOptimizer()) == 2 * 5 + 50 + 3 * 9
    assert after(model, FusedOptimizer(), Assume.LEAST) == 2 * 5 + 50 + 60
    assert after(model, FusedOptimizer(), Assume.MOST) == 2 * 5 + 50 + 3 * 7
    assert changed(model, FusedOptimizer()).calls.work_ns.tolist() == [3, 3, 0, 0] * 2


def test_an_optimizer_that_is_fused_or_unknown() -> None:
    assert because(optimizing("FusedAdamMathFunctor").model(), FusedOptimizer()).endswith("already")
    assert because(optimizing(marked=False).model(), FusedOptimizer()).startswith("no optimizer")


def contended() -> Job:
    """A kernel from 10 to 30 us, 10 of it beside a collective from 20 to 40 us."""
    job = Job()
    job.kernel(GEMM, 20_000, at=(10, 20))
    job.collective(20_000, at=(20, 20))
    return job


def test_time_beside_the_other_class() -> None:
    assert beside_ns(contended().model()).tolist() == [10_000, 10_000]


def test_of_a_collective_only_the_transfer_counts() -> None:
    """The last 15 us of it, from 25 to 40: 5 us beside the kernel."""
    job = Job()
    job.kernel(GEMM, 20_000, at=(10, 20))
    job.collective(15_000, at=(20, 20))
    assert beside_ns(job.model()).tolist() == [10_000, 5_000]


def test_what_ran_beside_communication_is_divided_by_the_slowdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = Slowdowns(
        {"gemm": (1.0, 1.25, 2.0)}, (1.0, 1.1, 1.2), {"all_reduce": (1.0, 2.0, 4.0)}, ""
    )
    for module in ("contention", "_slowdown"):
        monkeypatch.setattr(f"diagnose.replay.changes.{module}.slowdowns", lambda _: measured)
    model = contended().model()
    found = [changed(model, NoContention(), one).operations.duration_ns.tolist() for one in Assume]
    assert found == [[20_000, 20_000], [18_000, 15_000], [15_000, 12_500]]


def test_contention_that_was_not_measured() -> None:
    assert because(contended().model(), NoContention()).startswith("contention could not be")
