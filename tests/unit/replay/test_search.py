"""The staircase: which change comes first, when it ends, what a row adds.

The step times are those of a made-up job, worked out by hand:
``max(host, gpu)`` of 40 and 30 ms. "faster host" takes 20 from the host, "faster
kernels" 10 from the GPU, "tidy" 0.3 from the GPU; the bound leaves 5 ms of GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from diagnose.analysis import Unavailable
from diagnose.replay import search
from diagnose.replay.change import Assume, Change
from diagnose.replay.prediction import Prediction, Range

MS = 1e6


@dataclass(frozen=True, kw_only=True)
class Made(Change):
    """Takes time from the host or the GPU."""

    host_ms: float = 0.0
    gpu_ms: float = 0.0

    def apply(self, model, assume: Assume):
        raise AssertionError("the search never applies a change itself")

    @property
    def label(self) -> str:
        return self.id


def made(name: str, host: float = 0.0, gpu: float = 0.0, **marks) -> type[Change]:
    class One(Made):
        id = name
        title = name
        is_bound = marks.get("bound", False)
        searched = marks.get("searched", True)
        effort = marks.get("effort", 2)
        host_ms = host
        gpu_ms = gpu

        def __init__(self) -> None:
            """Its figures are those of the class."""

    One.__name__ = name
    return One


FASTER_HOST = made("faster-host", host=20)
FASTER_KERNELS = made("faster-kernels", gpu=10)
TIDY = made("tidy", gpu=0.3)
NOT_HERE = made("not-here", gpu=29)
ASK_FIRST = made("ask-first", gpu=25, searched=False)
BOUND = made("bound", host=100, gpu=25, bound=True)


class Job:
    """Stands for the engine: ``max(host, gpu)``, and counts what it is asked."""

    def __init__(self, off_pct: float = 0.0) -> None:
        self.off_pct = off_pct
        self.tried: list[tuple[str, ...]] = []

    def likely(self, model, changes):
        self.tried.append(tuple(change.id for change in changes))
        if any(change.id == "not-here" for change in changes):
            return Unavailable("there is nothing of the kind")
        host = 40 - sum(change.host_ms for change in changes)
        gpu = 30 - sum(change.gpu_ms for change in changes)
        return max(host, gpu) * MS

    def predict(self, model, changes):
        then = self.likely(model, changes)
        if isinstance(then, Unavailable):
            return then
        # The profiler's cost is known to 2 ms; a change may save a tenth less, or more.
        gain = 40 * MS - then
        return Prediction(
            changes=tuple(changes),
            num_steps=2,
            measured_step_ns=41 * MS,
            replayed_step_ns=41 * MS * (1 + self.off_pct / 100),
            repeated_step_ns=41 * MS,
            remarks=(),
            basis=(),
            fidelity_pct=self.off_pct,
            unexplained_pct=0.0,
            now=Range(38 * MS, 40 * MS, 42 * MS),
            then=Range(then - 2 * MS, then, then + 2 * MS),
            gain=Range(0.9 * gain, gain, 1.1 * gain),
        )


@pytest.fixture
def job(monkeypatch):
    def use(*kinds, off_pct: float = 0.0) -> Job:
        one = Job(off_pct)
        monkeypatch.setattr(search, "known", lambda: {kind.id: kind for kind in kinds})
        monkeypatch.setattr(search, "predict", one.predict)
        monkeypatch.setattr(search, "likely_step_ns", one.likely)
        return one

    return use


def stairs(given=(), most=search.MOST_STAIRS):
    found = search.staircase_of(None, given, most)
    assert not isinstance(found, Unavailable), found
    return found


def names(found):
    return [tuple(change.id for change in stair.added) for stair in found]


def test_a_change_that_saves_nothing_yet_comes_once_the_other_limit_is_gone(job):
    job(FASTER_KERNELS, FASTER_HOST, BOUND)
    found = stairs()
    # At first faster kernels save nothing: max(40, 20) = 40. The host saves 10: max(20, 30).
    assert names(found) == [(), ("faster-host",), ("faster-kernels",), ("bound",)]
    then = [stair.prediction.then.likely / MS for stair in found]
    # The bound: host 40 - 20 - 100, GPU 30 - 10 - 25: the GPU's -5 stands for nothing left.
    assert then == pytest.approx([40, 30, 20, -5])


def test_what_a_row_adds_is_the_difference_of_two_executions(job):
    job(FASTER_KERNELS, FASTER_HOST)
    found = stairs()
    assert [stair.added_gain.likely / MS for stair in found] == pytest.approx([0, 10, 10])
    # Each way to assume by itself: 0.9 and 1.1 of (20 - 10) ms.
    assert tuple(found[2].added_gain) == pytest.approx((9 * MS, 10 * MS, 11 * MS))


def test_it_ends_below_one_percent_and_tries_what_is_left_each_time(job):
    one = job(TIDY, FASTER_HOST, FASTER_KERNELS)
    # After both, tidy saves nothing: max(20, 20). And 0.3 of 40 ms is under 1 %.
    assert names(stairs()) == [(), ("faster-host",), ("faster-kernels",)]
    assert ("faster-host", "faster-kernels", "tidy") in one.tried


def test_a_gain_within_what_the_replay_is_off_is_not_claimed(job):
    small = made("small", host=1)
    # 1 of 40 ms is 2.5 %: enough, unless the unchanged replay is off by 3 % of 41 ms.
    job(small, off_pct=0.5)
    assert names(stairs()) == [(), ("small",)]
    job(small, off_pct=3.0)
    assert names(stairs()) == [()]
    job(small, off_pct=-3.0)
    assert names(stairs()) == [()]


def test_what_does_not_apply_is_tried_once_and_what_is_not_searched_never(job):
    one = job(NOT_HERE, ASK_FIRST, FASTER_HOST, FASTER_KERNELS)
    assert names(stairs()) == [(), ("faster-host",), ("faster-kernels",)]
    assert sum("not-here" in tried for tried in one.tried) == 1
    assert not any("ask-first" in tried for tried in one.tried)


def test_a_search_starts_after_what_was_given_and_does_not_offer_it_again(job):
    job(FASTER_HOST, FASTER_KERNELS)
    found = stairs((FASTER_HOST(),))
    assert names(found) == [(), ("faster-kernels",)]
    assert found[0].prediction.then.likely == 30 * MS
    assert tuple(found[0].added_gain) == (0, 0, 0)
    assert [c.id for c in found[1].prediction.changes] == ["faster-host", "faster-kernels"]


def test_less_effort_goes_first_where_it_may_save_as_much(job):
    def first(rework_ms, option_ms):
        job(made("rework", host=rework_ms, effort=3), made("option", host=option_ms, effort=1))
        return names(stairs())[1]

    # The range of 9 ms goes down to 8.1; 8.7 is also within 1 % of 40 ms of 9.
    assert first(9, 8.7) == ("option",)
    assert first(9, 8.2) == ("option",)
    assert first(9, 8) == ("rework",)
    # The other way round nothing speaks for the smaller one.
    assert first(8.5, 9) == ("option",)


def test_what_may_save_nothing_is_no_stair_but_is_named(job, monkeypatch):
    one = job(FASTER_HOST, FASTER_KERNELS, BOUND)

    def unsure(model, changes):
        found = one.predict(model, changes)
        # Of faster-kernels it is not known whether it helps.
        if changes and changes[-1].id == "faster-kernels":
            return replace(found, gain=Range(10 * MS * 0.9, found.gain.likely, found.gain.high))
        return found

    monkeypatch.setattr(search, "predict", unsure)
    found = stairs()
    assert names(found) == [(), ("faster-host",), ("bound",)]
    # Likely 10, at best 1.1 of it; at least the 9 of faster-host alone: nothing more.
    assert found[-1].prediction.remarks == (
        "Not counted, because it may save nothing: faster-kernels (10.00 ms, 0.00 to 11.00).",
    )


def test_all_bounds_stand_in_one_last_row(job):
    other = made("other-bound", gpu=1, bound=True)
    job(BOUND, other, FASTER_HOST)
    found = stairs()
    assert names(found) == [(), ("faster-host",), ("bound", "other-bound")]
    assert [stair.is_bound for stair in found] == [False, False, True]
    # One bound that does not apply leaves the other alone.
    absent = made("not-here", bound=True)
    job(absent, other, FASTER_HOST)
    assert names(stairs())[-1] == ("other-bound",)
    job(absent, FASTER_HOST)
    assert names(stairs())[-1] == ("faster-host",)


def test_no_more_rows_than_asked_for(job):
    kinds = [made(f"step-{n}", host=2, gpu=2) for n in range(12)]
    job(*kinds, BOUND)
    assert names(stairs(most=3)) == [(), ("step-0",), ("step-1",), ("step-2",), ("bound",)]
    assert len(stairs()) == 1 + search.MOST_STAIRS + 1
    assert names(stairs(most=0)) == [(), ("bound",)]


def test_a_recording_that_cannot_be_replayed_says_why(monkeypatch, job):
    job(FASTER_HOST)
    reason = Unavailable("no step has a time")
    monkeypatch.setattr(search, "predict", lambda model, changes: reason)
    assert search.staircase_of(None) is reason


def test_a_quick_search_makes_one_round_whole_and_says_that_it_ended(job):
    kinds = [made(f"step-{n}", host=2, gpu=2) for n in range(4)]
    one = job(*kinds, BOUND)
    # The first round tries 4, the second 3, the third would try 2 more.
    found = stairs_of_tries(8)
    assert names(found) == [(), ("step-0",), ("step-1",), ("bound",)]
    assert found[2].prediction.remarks == (search.CUT_SHORT,)
    assert names(stairs_of_tries(9)) == [(), ("step-0",), ("step-1",), ("step-2",), ("bound",)]
    assert names(stairs_of_tries(0)) == [(), ("step-0",), ("bound",)]
    assert one.tried


def stairs_of_tries(tries):
    found = search.staircase_of(None, tries=tries)
    assert not isinstance(found, Unavailable)
    return found
