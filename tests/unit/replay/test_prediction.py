"""Predictions: ranges, order of changes, and what is said about them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from diagnose.analysis import Unavailable
from diagnose.replay import prediction
from diagnose.replay.build import build
from diagnose.replay.change import Assume, Change
from diagnose.replay.execute import CIRCLE
from diagnose.replay.model import Dependencies, Kind, Model, ProfilerCost
from diagnose.replay.overhead import PRIOR
from diagnose.replay.prediction import Prediction, Range, likely_step_ns, predict
from tests.builder import TraceBuilder, build_trace
from tests.unit.replay.hand_models import Made
from tests.unit.replay.replay_traces import late_rank, launch_bound, two_streams


@dataclass(frozen=True, kw_only=True)
class Scaled(Change):
    """All durations times a factor: the likely one, or 0.1 to either side of it."""

    id: ClassVar[str] = "scaled"
    title: ClassVar[str] = "durations scaled"
    factor: float
    known: bool = True

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        off = (
            0.0 if self.known else {Assume.LEAST: 0.1, Assume.LIKELY: 0, Assume.MOST: -0.1}[assume]
        )
        scaled = np.rint((self.factor + off) * model.operations.duration_ns).astype(np.int64)
        return model.with_operations(duration_ns=scaled).remarked(f"Scaled by {self.factor}.")


@dataclass(frozen=True, kw_only=True)
class Added(Change):
    """10 us more for every operation."""

    id: ClassVar[str] = "added"
    title: ClassVar[str] = "durations longer"

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        return model.with_operations(duration_ns=model.operations.duration_ns + 10_000)


@dataclass(frozen=True, kw_only=True)
class Meaningless(Change):
    """Means nothing here."""

    id: ClassVar[str] = "meaningless"
    title: ClassVar[str] = "nothing"

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        return Unavailable("there is nothing to change")


@dataclass(frozen=True, kw_only=True)
class Backwards(Change):
    """The first operation waits for the last of its stream."""

    id: ClassVar[str] = "backwards"
    title: ClassVar[str] = "a circle"

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        last = np.array([model.num_ops - 1])
        zero = np.zeros(1, np.int64)
        tie = Dependencies(
            last, zero, zero, np.array([Kind.EVENT_WAIT], np.int8), zero.astype("int8")
        )
        return model.with_dependencies(Dependencies.joined([model.dependencies, tie]))


def model_of(*builders: TraceBuilder) -> Model:
    model = build(build_trace(*builders))
    assert not isinstance(model, Unavailable)
    return model


def predicted(model: Model, *changes: Change) -> Prediction:
    found = predict(model, changes)
    assert not isinstance(found, Unavailable)
    return found


def us(values: Range) -> tuple[float, float, float]:
    return (values.low / 1000, values.likely / 1000, values.high / 1000)


class TestNothingChanged:
    def test_as_recorded(self) -> None:
        found = predicted(model_of(two_streams()))
        assert found.num_steps == 2
        assert found.measured_step_ns == found.replayed_step_ns == found.repeated_step_ns == 200_000
        assert found.fidelity_pct == 0
        assert found.unexplained_pct == 0
        assert us(found.now) == us(found.then) == (200, 200, 200)
        assert us(found.gain) == (0, 0, 0)
        assert found.basis == PRIOR.basis

    def test_the_profiler_is_taken_out_of_now(self) -> None:
        found = predicted(model_of(launch_bound()))
        # Three events a step at 1, 3.5 and 5 us.
        assert found.repeated_step_ns == 100_000
        assert us(found.now) == us(found.then) == (85, 89.5, 97)
        assert us(found.gain) == (0, 0, 0)

    def test_a_pause_that_nothing_explains(self) -> None:
        builder = TraceBuilder()
        for step in range(3):
            builder.step(step, 20 * step, 20)
            # Launched long before, 30 after the one ahead: 10 are a usual switch.
            builder.kernel("gemm", 500 + 130 * step, 100, launch=20 * step + 5)
        found = predicted(model_of(builder))
        assert found.replayed_step_ns == 130_000
        assert found.unexplained_pct == pytest.approx(100 * 20 / 130)


class TestChanges:
    def test_a_known_change(self) -> None:
        found = predicted(model_of(two_streams()), Scaled(factor=0.5))
        # 190 of kernels in 200.
        assert us(found.then) == (105, 105, 105)
        assert us(found.gain) == (95, 95, 95)
        assert "Scaled by 0.5." in found.remarks

    def test_what_is_not_known_is_a_range(self) -> None:
        found = predicted(model_of(two_streams()), Scaled(factor=0.5, known=False))
        assert us(found.then) == pytest.approx((86, 105, 124))
        assert us(found.gain) == pytest.approx((76, 95, 114))
        assert us(found.now) == (200, 200, 200)

    def test_the_gain_is_between_steps_under_one_assumption(self) -> None:
        # The host is the limit now and then: no assumption about the profiler makes a gain.
        found = predicted(model_of(launch_bound()), Scaled(factor=0.5))
        assert us(found.now) == us(found.then) == (85, 89.5, 97)
        assert us(found.gain) == (0, 0, 0)

    def test_a_profiler_that_hid_the_gpu(self) -> None:
        # Kernels of 120 and 60 with two usual pauses: 184, and the host needs 85 to 97.
        found = predicted(model_of(launch_bound()), Scaled(factor=6))
        assert us(found.then) == (184, 184, 184)
        assert us(found.gain) == (-99, -94.5, -87)

    def test_one_after_the_other(self) -> None:
        model = model_of(two_streams())
        first = predicted(model, Scaled(factor=2), Added())
        second = predicted(model, Added(), Scaled(factor=2))
        assert us(first.then)[1] == 10 + 2 * 190 + 30
        assert us(second.then)[1] == 10 + 2 * (190 + 30)
        assert first.changes == (Scaled(factor=2), Added())

    def test_all_ranks_count(self) -> None:
        found = predicted(model_of(*late_rank()), Scaled(factor=0.5))
        assert us(found.now)[1] == 233
        # 90 + 1 + 25 + 2.
        assert us(found.then)[1] == 118

    def test_negative_gains_are_kept(self) -> None:
        found = predicted(model_of(two_streams()), Added())
        assert us(found.gain) == (-30, -30, -30)


class TestUnavailable:
    def test_a_change_that_means_nothing(self) -> None:
        found = predict(model_of(two_streams()), (Added(), Meaningless()))
        assert found == Unavailable("there is nothing to change")

    def test_a_change_that_contradicts_the_order(self) -> None:
        assert predict(model_of(two_streams()), (Backwards(),)) is CIRCLE

    def test_a_model_that_contradicts_itself(self) -> None:
        made = Made()
        first, second = made.op("compute", 5), made.op("compute", 5)
        made.tie(Kind.EVENT_WAIT, second, first)
        assert predict(made.model(), ()) is CIRCLE


class TestLikelyStep:
    def test_it_is_the_likely_one_of_a_prediction(self) -> None:
        model = model_of(launch_bound())
        changes = (Scaled(factor=0.5, known=False),)
        assert likely_step_ns(model, ()) == predicted(model).now.likely
        assert likely_step_ns(model, changes) == predicted(model, *changes).then.likely

    def test_under_other_assumptions(self) -> None:
        model = model_of(two_streams())
        changes = (Scaled(factor=0.5, known=False),)
        assert likely_step_ns(model, changes, assume=Assume.MOST) == pytest.approx(86_000)
        assert likely_step_ns(model_of(launch_bound()), (), event_ns=2_000) == 94_000

    def test_unavailable(self) -> None:
        model = model_of(two_streams())
        assert isinstance(likely_step_ns(model, (Meaningless(),)), Unavailable)


class TestRemarks:
    def test_a_window_in_which_the_host_was_losing_its_lead(self) -> None:
        # The GPU works off what was launched before: 100 a step, while the host needs 140.
        builder = TraceBuilder()
        for step in range(3):
            builder.step(step, 140 * step, 140)
            builder.kernel("gemm", 600 + 100 * step, 100, launch=140 * step + 5)
        (*_, remark) = predicted(model_of(builder)).remarks
        assert "take 0.14 ms (+40.0 %)" in remark
        assert "gaining or losing lead" in remark

    def test_steps_that_have_no_rhythm(self) -> None:
        assert not predicted(model_of(two_streams())).repeated_step_ns % 1
        model = model_of(two_streams())
        repeated = prediction._unchanged(model)
        assert not isinstance(repeated, Unavailable)
        said = prediction._of_repetition(200_000, repeated.repeated._replace(settled=False))
        assert said == ("The step time alternates when the steps repeat; its mean was taken.",)


def test_what_does_not_depend_on_the_changes_is_worked_out_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = replace(model_of(two_streams()), profiler=ProfilerCost(0, 0, 0))
    predicted(model)

    def fail(_model: Model) -> None:
        raise AssertionError("executed again")

    monkeypatch.setattr(prediction, "prepared", fail)
    assert us(predicted(model, Added()).gain) == (-30, -30, -30)


def test_likely_lies_within() -> None:
    assert Range.of(5, [7, 3, 4]) == (3, 5, 7)
    assert Range.of(5, [7, 6]) == (5, 5, 7)
