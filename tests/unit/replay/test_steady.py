"""The step time that repeated steps settle at: by hand, and against many passes of recursion."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from diagnose.analysis import Unavailable
from diagnose.replay.execute import CIRCLE, prepared, times_of
from diagnose.replay.model import Entries, Kind, Model
from diagnose.replay.steady import Steady, _Repetition, steady
from tests.unit.replay.hand_models import Made, Node, SlowTimes, models


def settled(model: Model) -> Steady:
    found = steady(model)
    assert not isinstance(found, Unavailable)
    return found


def step_of(made: Made) -> float:
    found = settled(made.model())
    assert found.settled
    return found.slowest_ns


def launched(made: Made, count: int, *, host: int, gpu: int) -> list[Node]:
    """``count`` kernels of ``gpu`` ns, launched every ``host`` ns."""
    return [
        made.op("compute", gpu, launched_by=made.call("main", work=host - 2, takes=2), lag=5)
        for _ in range(count)
    ]


class TestByHand:
    def test_the_host_is_the_limit(self) -> None:
        made = Made()
        launched(made, 10, host=12, gpu=7)
        assert step_of(made) == 120

    def test_the_gpu_is_the_limit(self) -> None:
        made = Made()
        launched(made, 10, host=12, gpu=40)
        assert step_of(made) == 400

    def test_per_step_not_per_pass(self) -> None:
        made = Made(num_steps=4)
        launched(made, 8, host=12, gpu=40)
        assert step_of(made) == 80

    def test_a_host_that_waits_at_the_end_of_the_step_adds_up(self) -> None:
        made = Made()
        *_, last = launched(made, 10, host=12, gpu=40)
        wait = made.call("main", work=3, takes=1, waits=True)
        made.tie(Kind.HOST_WAIT, last, wait, lag=6)
        # Return at R. Next first launch at R + 10, its kernel at + 5, then 10 x 40, then + 6.
        assert step_of(made) == 10 + 5 + 400 + 6

    def test_two_streams_take_turns(self) -> None:
        made = Made()
        compute = made.op("compute", 100)
        reduce = made.op("communication", 30)
        made.tie(Kind.EVENT_WAIT, compute, reduce, lag=5)
        made.tie(Kind.EVENT_WAIT, reduce, compute, lag=4, passes=1)
        assert step_of(made) == 100 + 5 + 30 + 4

    def test_communication_that_the_next_step_does_not_need_hides(self) -> None:
        made = Made()
        compute = made.op("compute", 100)
        made.tie(Kind.EVENT_WAIT, compute, made.op("communication", 30), lag=5)
        assert step_of(made) == 100

    def test_a_circle_over_two_passes_counts_half(self) -> None:
        made = Made()
        kernel, copy = made.op("compute", 10), made.op("copy", 80)
        made.tie(Kind.EVENT_WAIT, kernel, copy)
        made.tie(Kind.EVENT_WAIT, copy, kernel, lag=90, passes=2)
        # 10 + 80 + 90 every two passes; the copies alone would take 80.
        assert step_of(made) == 90

    def test_all_ranks_go_at_the_pace_of_the_late_one(self) -> None:
        made = Made()
        made.op("compute 0", 50)
        made.op("compute 1", 90, gpu=1)
        made.op("compute 0", 20, match=0)
        made.op("compute 1", 20, match=0, gpu=1)
        assert settled(made.model()).step_ns.tolist() == [110, 110]

    def test_gpus_that_share_nothing_have_their_own_steps(self) -> None:
        made = Made()
        made.op("compute 0", 50)
        made.op("compute 1", 90, gpu=1)
        found = settled(made.model())
        assert found.step_ns.tolist() == [50, 90]
        assert found.slowest_ns == 90

    def test_a_gpu_without_work_has_no_step(self) -> None:
        made = Made()
        made.op("compute 1", 90, gpu=1)
        found = settled(made.model())
        assert np.isnan(found.step_ns[0])
        assert found.slowest_ns == 90

    def test_pause_of_the_first_operation_is_between_passes(self) -> None:
        made = Made()
        made.op("compute", 50, pause=9)
        made.op("compute", 50, pause=1)
        assert step_of(made) == 110

    def test_a_circle_is_no_step(self) -> None:
        made = Made()
        first, second = made.op("compute", 5), made.op("compute", 5)
        made.tie(Kind.EVENT_WAIT, second, first)
        assert steady(made.model()) is CIRCLE


class TestFarAhead:
    """What shows only after many steps is found without executing all of them."""

    @staticmethod
    def _side_by_side(period: int, lead: int) -> Made:
        """A GPU that takes ``period``, and one that takes 1 ns less but may not lead by more."""
        made = Made()
        slow = made.op("compute 0", period)
        fast = made.op("compute 1", period - 1, gpu=1)
        made.tie(Kind.EVENT_WAIT, slow, fast, lag=-lead - period)
        return made

    def test_a_slow_drift_is_followed_to_its_end(self) -> None:
        found = settled(self._side_by_side(100, lead=200).model())
        # After some 200 passes the lead is used up.
        assert found.step_ns.tolist() == [100, 100]
        assert found.num_passes < 20

    def test_a_lead_that_lasts_for_ever_is_left_alone(self) -> None:
        found = settled(self._side_by_side(100, lead=100_000).model())
        assert found.step_ns.tolist() == [100, 99]
        assert found.num_passes < 20

    def test_a_stall_that_the_lead_hides_only_as_far_as_the_queue_reaches(self) -> None:
        # 40 kernels of 10 ns a step, launched every 2 ns after a stall of 350 ns: the host
        # needs 430 ns a step, the GPU 400.
        made = Made()
        launches = [made.call("main", work=352 if not k else 2) for k in range(40)]
        kernels = [made.op("compute", 10, launched_by=call, lag=1) for call in launches]
        assert step_of(made) == 350 + 40 * 2
        # Launch k + 4 needs the end of kernel k: only 4 kernels are launched ahead of a stall.
        for k in range(40):
            passes = 1 if k >= 36 else 0
            made.tie(Kind.QUEUE_LIMIT, kernels[k], launches[(k + 4) % 40], passes=passes)
        # From the start of launch 0 to that of launch 39: kernel k ends at 1 + 10 (k + 1), and
        # launch 39 waits for kernel 35: 361 ns; then 352 ns to the next launch 0.
        assert step_of(made) == 361 + 352


class TestAgainstRecursion:
    @given(models())
    def test_every_pass(self, model: Model) -> None:
        execution = prepared(model)
        assert not isinstance(execution, Unavailable)
        repetition, slow = _Repetition(model, execution), SlowTimes(_without_entries(model))
        history: list[np.ndarray] = []
        for turn in range(5):
            history.append(repetition.next_pass(history))
            found = times_of(model, execution, history[-1])
            assert found.begin_ns.tolist() == [slow.begin(op, turn) for op in range(model.num_ops)]
            calls = range(model.calls.row.size)
            assert found.return_ns.tolist() == [slow.back(call, turn) for call in calls]

    @given(models())
    @settings(max_examples=30)
    def test_the_slope_of_many_passes(self, model: Model) -> None:
        if not model.num_ops:
            return
        found = settled(model)
        slow = SlowTimes(_without_entries(model))
        for gpu, step in enumerate(found.step_ns.tolist()):
            if np.isnan(step):
                continue
            # Rates that differ by 1 ns a pass meet after some 300 passes at most.
            wanted = slow.slope(gpu, 800) / model.num_steps
            assert step == pytest.approx(wanted, abs=0.5 if found.settled else 4)


def _without_entries(model: Model) -> Model:
    nothing = np.zeros(0, np.int64)
    return replace(model, entries=Entries(nothing, nothing))
