"""What the profiler cost: taken out by hand, and found from the job's own steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diagnose.analysis import Unavailable
from diagnose.replay.build import build
from diagnose.replay.model import Kind, Model, ProfilerCost
from diagnose.replay.overhead import MOST_NS, PRIOR, without_profiler
from diagnose.replay.steady import steady
from diagnose.trace import Observer, Trace
from tests.builder import TraceBuilder, build_trace
from tests.unit.replay.hand_models import Made
from tests.unit.replay.replay_traces import launch_bound, observed, two_streams


def model_of(trace: Trace) -> Model:
    model = build(trace)
    assert not isinstance(model, Unavailable)
    return model


def step_ns(model: Model) -> float:
    found = steady(model)
    assert not isinstance(found, Unavailable)
    return found.slowest_ns


class TestTakenOut:
    def test_work_first_then_the_call_down_to_its_floor(self) -> None:
        made = Made()
        made.call("main", work=10_000, takes=3_000, events=2)
        made.call("main", work=10_000, takes=3_000, events=5)
        made.call("main", work=10_000, takes=3_000, events=50)
        made.call("main", work=10_000, takes=400, events=50)
        calls = without_profiler(made.model(), 2_400).calls
        assert calls.work_ns.tolist() == [5_200, 0, 0, 0]
        # 12 of 13 us; then 1 us is left, or what there was.
        assert calls.call_ns.tolist() == [3_000, 1_000, 1_000, 400]

    def test_a_handoff_pays_instead_of_work(self) -> None:
        made = Made()
        forward = made.call("main", takes=2_000)
        backward = made.call("backward", work=30_000, takes=4_000, events=10)
        made.tie(Kind.HANDOFF, forward, backward, lag=25_000)
        model = without_profiler(made.model(), 2_000)
        assert model.dependencies.lag_ns.tolist() == [5_000]
        assert model.calls.work_ns.tolist() == [0, 10_000]
        assert model.calls.call_ns.tolist() == [2_000, 4_000]
        model = without_profiler(made.model(), 2_600)
        assert model.dependencies.lag_ns.tolist() == [0]
        assert model.calls.call_ns.tolist() == [2_000, 3_000]

    def test_other_lags_stay(self) -> None:
        made = Made()
        made.op("compute", 5, launched_by=made.call("main", events=3), lag=7_000)
        assert without_profiler(made.model(), 2_000).dependencies.lag_ns.tolist() == [7_000]

    def test_work_below_zero_stays(self) -> None:
        made = Made()
        made.call("main", work=-300, takes=500, events=1)
        assert without_profiler(made.model(), 100).calls.work_ns.tolist() == [-300]

    def test_what_was_taken_in_one_piece_comes_from_the_call_first(self) -> None:
        made = Made()
        made.call("main", work=10_000, takes=3_000)
        made.call("main", work=10_000, takes=8_000)
        model = made.model().with_calls(profiler_ns=np.array([5_000, 5_000]))
        calls = without_profiler(model, 0).calls
        assert calls.call_ns.tolist() == [1_000, 3_000]
        assert calls.work_ns.tolist() == [7_000, 10_000]

    def test_a_gpu_that_was_slower(self) -> None:
        made = Made()
        made.op("compute", 1_000, pause=500)
        made.op("compute", 1_000, pause=-500)
        model = replace(made.model(), profiler=ProfilerCost(0, 0, 0, gpu_share=0.9))
        ops = without_profiler(model, 0).operations
        assert ops.duration_ns.tolist() == [900, 900]
        assert ops.pause_ns.tolist() == [450, -500]

    def test_the_model_given_is_not_touched(self) -> None:
        model = model_of(build_trace(launch_bound()))
        work, lags = model.calls.work_ns.copy(), model.dependencies.lag_ns.copy()
        without_profiler(model, 5_000)
        assert model.calls.work_ns.tolist() == work.tolist()
        assert model.dependencies.lag_ns.tolist() == lags.tolist()


class TestInOnePiece:
    def test_a_buffer_request_within_a_call(self) -> None:
        model = model_of(build_trace(_with_overhead("Activity Buffer Request", 150.5, 1)))
        # The call before the second kernel of step 1 lasts 2, 1 of it for the buffer.
        assert model.calls.profiler_ns.tolist() == [0, 1_000, 0, 0]

    def test_a_buffer_flush_between_calls_belongs_to_the_silent_thread(self) -> None:
        builder = _with_overhead("Buffer Flush", 120, 20)
        # Another thread that calls into CUDA meanwhile, and so was not held up.
        builder.call("cudaEventQuery", 119, thread=77)
        builder.call("cudaEventQuery", 130, thread=77)
        model = model_of(build_trace(builder))
        assert model.calls.profiler_ns.tolist() == [0, 20_000, 0, 0]
        assert without_profiler(model, 0).calls.work_ns.tolist() == [58_000, 19_000, 58_000, 38_000]

    def test_a_full_launch_queue_is_not_the_profilers(self) -> None:
        model = model_of(build_trace(_with_overhead("Command Buffer Full", 150.5, 1)))
        assert not model.calls.profiler_ns.any()

    def test_a_graph_that_is_fed_node_by_node(self) -> None:
        builder = TraceBuilder()
        for step in range(3):
            t = 200 * step
            builder.step(step, t, 200)
            launch = builder.call("cudaGraphLaunch", t + 10, 150)
            for node in range(100):
                begin = t + 20 + 1.5 * node
                builder.gpu("kernel", "node", begin, 1, correlation=launch)
        model = model_of(build_trace(builder))
        # 100 nodes of 0.2 and 5 for the launch are left of 150.
        assert model.calls.profiler_ns.tolist() == [125_000, 125_000]
        assert without_profiler(model, 0).calls.call_ns.tolist() == [25_000, 25_000]


def _with_overhead(name: str, start: float, duration: float) -> TraceBuilder:
    builder = launch_bound()
    builder.event("overhead", name, start, duration, pid=-1, tid=0)
    return builder


class TestFound:
    """``launch_bound``: steps of 100 with three recorded events, one of them the mark."""

    def test_without_the_jobs_own_steps(self) -> None:
        assert model_of(build_trace(launch_bound())).profiler == PRIOR

    def test_the_cost_that_gives_the_observed_step(self) -> None:
        # 100 - 3 x 5 = 85, with 1 % either way: 5 -+ 0.283.
        model = model_of(observed(launch_bound(), 85))
        assert model.profiler.likely_ns == pytest.approx(5_000, abs=30)
        assert model.profiler.low_ns == pytest.approx(5_000 - 283, abs=30)
        assert model.profiler.high_ns == pytest.approx(5_000 + 283, abs=30)
        assert step_ns(without_profiler(model, model.profiler.likely_ns)) == pytest.approx(
            85_000, rel=0.001
        )
        assert "5.0 us an event" in model.profiler.basis[0]
        assert "seen before the window" in model.profiler.basis[0]

    def test_a_wide_spread_makes_a_wide_range(self) -> None:
        cost = model_of(observed(launch_bound(), 85, spread_us=12)).profiler
        # 85 -+ 6.
        assert cost.low_ns == pytest.approx(3_000, abs=30)
        assert cost.high_ns == pytest.approx(7_000, abs=30)

    def test_after_the_window_where_nothing_was_seen_before(self) -> None:
        trace = build_trace(launch_bound())
        trace = replace(trace, observer=Observer(after_ns=85_000, num_after=9))
        cost = model_of(trace).profiler
        assert cost.likely_ns == pytest.approx(5_000, abs=30)
        assert "seen after the window" in cost.basis[0]

    def test_a_job_that_was_not_slowed_bounds_the_cost(self) -> None:
        cost = model_of(observed(launch_bound(), 100)).profiler
        # Nothing up to 1 us (99 of 100, at three events: 0.33 us).
        assert cost.low_ns == 0
        assert cost.high_ns == pytest.approx(333, abs=30)
        assert 0 <= cost.likely_ns <= cost.high_ns

    def test_where_the_gpu_is_the_limit_the_step_does_not_tell(self) -> None:
        cost = model_of(observed(two_streams(), 200)).profiler
        assert (cost.low_ns, cost.likely_ns, cost.high_ns) == (0, PRIOR.likely_ns, PRIOR.high_ns)
        assert cost.gpu_share == 1

    def test_a_gpu_that_was_slower_in_the_window(self) -> None:
        model = model_of(observed(two_streams(), 190))
        assert model.profiler.gpu_share == pytest.approx(0.95)
        assert model.profiler[:3] == PRIOR[:3]
        # Lags of events, 6 of 200, do not shrink.
        assert step_ns(without_profiler(model, 0)) == pytest.approx(190_300)
        assert "5.3 % slower in the window" in model.profiler.basis[0]

    def test_a_job_that_did_something_else(self) -> None:
        model = model_of(observed(two_streams(), 100))
        assert model.profiler.gpu_share == 1
        assert model.profiler[:3] == PRIOR[:3]
        assert "nothing is taken out" in model.profiler.basis[0]

    def test_the_highest_cost_is_bounded(self) -> None:
        # The host alone took more than a third of the step: no cost per event explains it.
        cost = model_of(observed(launch_bound(), 20)).profiler
        assert cost.high_ns <= MOST_NS
        assert "nothing is taken out" in cost.basis[0]
