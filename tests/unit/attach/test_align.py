"""The start of a window: worked out by hand, then against ranks played step by step."""

from __future__ import annotations

import itertools
import math
import operator
import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from diagnose.attach.align import TRAVEL_S, Mark, check, plan
from diagnose.errors import NoStepsError, UsageError

MS = 1_000_000
T0 = 1_796_133_376_000_000_000


def marks(*seqs, step=100, every_ms=100.0, at=T0):
    """Boundaries with these sequence numbers, evenly spaced."""
    return [Mark(step + i, seq, at + round(i * every_ms * MS)) for i, seq in enumerate(seqs)]


def test_the_sequence_number_is_the_clock():
    # 0.3 s of 100 ms steps: at most 4 boundaries pass, so prepare at the 5th, start at the 6th.
    rank0, rank1 = marks(40, 50, 60), marks(30, 40, 50, step=7)
    found = plan([rank0, rank1], steps=3)
    assert found.start == {"seq": 60 + 6 * 10}
    assert (found.clock, found.stride, found.steps, found.margin) == ("seq", 10, 3, 6)
    assert found.step_ns == 100 * MS
    assert found.reason == ""


@pytest.mark.parametrize(
    ("every_ms", "margin"),
    [
        (30_000.0, 3),  # 30 s a step: 0.3 s may pass one boundary
        (301.0, 3),
        (300.0, 4),  # 0.3 s may pass two
        (10.0, 33),
        (0.1, 3003),
    ],
)
def test_the_margin_covers_the_request_and_one_step_to_prepare(every_ms, margin):
    found = plan([marks(1, 2, 3, every_ms=every_ms)], steps=1)
    assert found.margin == margin
    assert found.start == {"seq": 3 + margin}


def test_the_margin_doubles_after_a_missed_start():
    ranks = [marks(40, 50, 60), marks(40, 50, 60)]
    assert plan(ranks, steps=3, factor=2).start == {"seq": 60 + 12 * 10}
    assert plan(ranks, steps=3, factor=4).start == {"seq": 60 + 24 * 10}


def test_what_has_passed_since_a_rank_answered_counts():
    # 1.3 s of 100 ms steps in all: 13 + 3.
    assert plan([marks(40, 50)], steps=3, ages_s=[1.0]).start == {"seq": 50 + 16 * 10}
    # Rank 0 answered with 50 a second ago and may be at 50 + 16 * 10; rank 1 is just behind.
    ranks = [marks(40, 50), marks(110, 120)]
    assert plan(ranks, steps=3, ages_s=[1.0, 0.0]).start == {"seq": 210}
    assert plan(ranks, steps=3, ages_s=[0.0, 0.0]).start == {"seq": 120 + 6 * 10}


@pytest.mark.parametrize(
    ("seconds", "steps"), [(0.001, 1), (0.1, 1), (0.11, 2), (5.0, 50), (5.01, 51)]
)
def test_seconds_become_steps_once_for_all(seconds, steps):
    slow = marks(1, 2, 3, every_ms=100.0)
    assert plan([slow, slow], seconds=seconds).steps == steps


def test_gradient_accumulation_is_one_regular_stride():
    # Four backward passes of 5 collectives each, and one step.
    found = plan([marks(100, 120, 140), marks(120, 140, 160)], steps=2)
    assert (found.stride, found.start) == (20, {"seq": 160 + 6 * 20})


def test_steps_with_more_collectives_than_others():
    # Every third step logs: 10, 10, 13. Prepare at 116 + 4 * 10 or later, 13 before the start.
    ranks = [marks(83, 93, 103, 116), marks(93, 103, 116)]
    found = plan(ranks, steps=3)
    assert (found.clock, found.stride) == ("seq", 13)
    assert found.start == {"seq": 116 + 5 * 10 + 13}


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        ([marks(5, 5, 5), marks(5, 5, 5)], "is not used in every step"),
        ([marks(5, 6, 6), marks(5, 6, 6)], "is not used in every step"),
        ([marks(1, 2, 3), marks(None, None)], "not every rank has a default process group"),
        ([marks(1, 2, 3), marks(1, 2, None)], "not every rank has a default process group"),
        ([marks(10, 20, 30), marks(15, 25, 35)], "count different collectives"),
        ([marks(10, 20, 30), marks(10, 21, 30)], "count different collectives"),
        ([marks(10, 20, 30), marks(45, 55)], "were seen at different steps"),
        ([marks(10, 20), marks(31, 42)], "were seen at different steps"),
    ],
)
def test_a_sequence_number_that_is_no_clock(ranks, reason):
    found = plan(ranks, steps=3)
    assert found.clock == "unix"
    assert reason in found.reason
    counted = plan(ranks, steps=3, counted_together=True)
    last = max(rank[-1].step for rank in ranks)
    assert (counted.clock, counted.stride, counted.start) == ("step", 1, {"step": last + 6})
    assert reason in counted.reason


def test_numbers_from_before_the_process_group_do_not_matter():
    assert plan([marks(None, 10, 20), marks(10, 20, 30)], steps=3).start == {"seq": 30 + 6 * 10}


def test_one_process_without_a_process_group_counts_its_steps():
    found = plan([marks(None, None, None)], steps=3)
    assert (found.clock, found.start) == ("step", {"step": 102 + 6})


def test_the_wall_clock_aims_between_two_boundaries():
    ranks = [marks(7, 7), marks(7, 7, at=T0 + 30 * MS)]
    found = plan(ranks, steps=3)
    assert found.clock == "unix"
    # Last seen at T0 + 130 ms; the sixth boundary after it is 600 ms later.
    assert found.start == {"unix_ns": T0 + 130 * MS + 550 * MS}


@pytest.mark.parametrize("ranks", [[], [marks(1, 2), []], [marks(1, 2), marks(3)]])
def test_a_rank_without_steps_is_refused(ranks):
    with pytest.raises(NoStepsError, match="take no optimizer steps"):
        plan(ranks, steps=3)


def test_a_clock_that_stands_still_tells_no_pace():
    with pytest.raises(NoStepsError):
        plan([marks(1, 2, 3, every_ms=0.0)], steps=3)


@pytest.mark.parametrize(
    "length",
    [
        {},
        {"steps": 3, "seconds": 1.0},
        {"steps": 0},
        {"steps": -1},
        {"seconds": 0.0},
        {"seconds": math.nan},
        {"seconds": math.inf},
    ],
)
def test_lengths_that_cannot_be(length):
    with pytest.raises(UsageError):
        plan([marks(1, 2, 3)], **length)


def test_marks_as_they_come_over_the_socket():
    raw = [[1, 10, T0], [2, 20, T0 + 100 * MS]]
    assert plan([raw], steps=1) == plan([marks(10, 20, step=1)], steps=1)


def test_equal_windows_are_aligned():
    one = marks(10, 20, 30, 40)
    other = marks(10, 20, 30, 40, step=3, at=T0 + 5 * MS)
    found = check([one, other])
    assert found.aligned is True
    assert found.start_skew_ns == 5 * MS
    assert found.sentence == "all ranks recorded the same 3 steps"


def test_windows_a_step_apart_are_not():
    found = check([marks(10, 20, 30, 40), marks(20, 30, 40, 50)])
    assert found.aligned is False
    assert found.sentence == "the ranks recorded different steps, 2 in common"


def test_without_common_numbers_nobody_knows():
    assert check([marks(5, 5, 5), marks(5, 5, 5)]).aligned is None
    assert check([marks(None, None), marks(None, None)]).aligned is None
    assert check([marks(5, 5, 5), marks(5, 5, 5)], clock="step").aligned is True


def test_one_rank_is_aligned_with_itself():
    assert check([marks(1, 2)]).aligned is True
    assert check([]).aligned is True


# Ranks played step by step. This knows what an agent does with a start, not how it is planned.


@dataclass
class RankPlay:
    """A rank's boundaries: when each happens and what the sequence number is then."""

    step_s: float
    skew_s: float
    hooked: int
    seqs: Sequence[int]

    def time_s(self, index):
        return index * self.step_s + self.skew_s

    def mark(self, index):
        return Mark(index + self.hooked, self.seqs[index], T0 + round(self.time_s(index) * 1e9))

    def seen(self, armed_s, count):
        """The first ``count`` boundaries after arming, and when the last of them was."""
        first = max(math.ceil((armed_s - self.skew_s) / self.step_s), 0)
        last = first + count - 1
        return [self.mark(index) for index in range(first, last + 1)], self.time_s(last)

    def started_at(self, heard_s, clock, value, stride):
        """The index of the boundary where the window starts, or None if it is missed."""
        past = bisect_right(range(len(self.seqs)), heard_s, key=self.time_s)

        def reading(index):
            return getattr(self.mark(index), clock)

        if past and reading(past - 1) >= value - stride:
            return None
        prepared = bisect_left(range(len(self.seqs)), value - stride, lo=past, key=reading)
        assert prepared < len(self.seqs), "the play is too short"
        return prepared + 1


def play(chance):
    """Ranks in lockstep, skewed within a step, whose agents came in at different times."""
    step_s = chance.choice([0.0001, 0.003, 0.02, 0.1, 0.31, 1.0, 30.0])
    moves = [chance.randint(1, 50) for _ in range(chance.choice([1, 1, 2, 3]))]
    # Four times the margin of 0.1 ms, in steps that may move 17 instead of the 50 seen.
    length = 40_000 if step_s < 0.001 else 2000
    cycled = itertools.islice(itertools.cycle(moves), length)
    seqs = list(itertools.accumulate(cycled, initial=chance.randrange(10**6)))
    return [
        RankPlay(step_s, chance.uniform(0, 0.45) * step_s, chance.randrange(1000), seqs)
        for _ in range(chance.randint(1, 5))
    ]


def answers_of(ranks, chance):
    """The marks of each rank, and when it answered: at once, or just before its next boundary."""
    found = []
    for rank in ranks:
        seen, at = rank.seen(chance.uniform(0, 3) * rank.step_s, chance.randint(2, 4))
        found.append((seen, at + chance.choice([0.0, 0.5, 0.999]) * rank.step_s))
    return found


def heard_by(ranks, now, chance, most_s):
    """When each rank hears of the window; half the time one of them as late as may be."""
    found = [now + chance.uniform(0, most_s) for _ in ranks]
    if chance.random() < 0.5:
        found[chance.randrange(len(ranks))] = now + most_s
    return found


def starts(ranks, heard, found, stride=None):
    [(clock, value)] = found.start.items()
    stride = found.stride if stride is None else stride
    return {r.started_at(at, clock, value, stride) for r, at in zip(ranks, heard, strict=True)}


JUST_IN_TIME_S = TRAVEL_S * 0.999


def test_ranks_start_at_the_same_boundary_or_say_that_they_missed_it():
    counts = Counter()
    for seed in range(3000):
        chance = random.Random(seed)
        ranks = play(chance)
        answers = answers_of(ranks, chance)
        now = max(at for _, at in answers)
        found = plan(
            [seen for seen, _ in answers],
            steps=3,
            ages_s=[now - at for _, at in answers],
            factor=chance.choice([1, 1, 2, 4]),
        )
        counts[found.clock] += 1
        if found.clock != "seq":  # steps differ in collectives, and the marks do not meet
            assert "seen at different steps" in found.reason
            continue
        late = chance.random() < 0.3
        heard = heard_by(ranks, now, chance, 3.0 if late else JUST_IN_TIME_S)
        started = starts(ranks, heard, found)
        assert len(started - {None}) <= 1, seed
        if not late and len(set(map(operator.sub, ranks[0].seqs[1:9], ranks[0].seqs))) == 1:
            assert None not in started, seed
            counts["regular and in time"] += 1
        counts["missed"] += None in started
    assert counts["seq"] > 2500
    assert counts["regular and in time"] > 800
    assert counts["missed"] > 100


def test_cooperative_ranks_start_at_the_same_step():
    for seed in range(500):
        chance = random.Random(seed)
        ranks = play(chance)
        still = [7] * len(ranks[0].seqs)
        same = [RankPlay(rank.step_s, rank.skew_s, 0, still) for rank in ranks]
        answers = answers_of(same, chance)
        now = max(at for _, at in answers)
        ages = [now - at for _, at in answers]
        marks_seen = [seen for seen, _ in answers]
        found = plan(marks_seen, steps=3, counted_together=True, ages_s=ages)
        assert found.clock == "step"
        started = starts(same, heard_by(same, now, chance, JUST_IN_TIME_S), found)
        assert len(started) == 1, seed
        assert None not in started, seed


def test_by_the_wall_clock_skew_below_half_a_step_does_no_harm():
    clocks = Counter()
    for seed in range(500):
        chance = random.Random(seed)
        ranks = play(chance)
        still = [7] * len(ranks[0].seqs)
        same = [RankPlay(rank.step_s, rank.skew_s, rank.hooked, still) for rank in ranks]
        answers = [rank.seen(0.0, 3) for rank in same]
        found = plan([seen for seen, _ in answers], steps=3)
        clocks[found.clock] += 1
        if found.clock == "unix":
            # An agent takes a step for the stride of a moment.
            now = max(at for _, at in answers)
            started = starts(same, [now] * len(same), found, round(same[0].step_s * 1e9))
            assert len(started) == 1, seed
            assert None not in started, seed
    assert clocks["unix"] > 300
