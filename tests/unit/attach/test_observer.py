"""What recording cost, from boundaries worked out by hand."""

from __future__ import annotations

import pytest

from diagnose.attach.observer import RankMarks, rank_marks, step_times
from diagnose.manifest import Observer, StepTimes, observer_of

MS = 1_000_000


def marks(*times_ms: int, first: int = 1) -> list[tuple[int, int]]:
    return [(first + n, ms * MS) for n, ms in enumerate(times_ms)]


def ms(*times: int) -> tuple[int, ...]:
    return tuple(time * MS for time in times)


def test_preparing_stopping_and_writing_belong_to_no_part() -> None:
    """Boundaries 1 to 10; the window is 4, 5, 6; it is prepared at 3 and stopped at 6."""
    seen = marks(0, 10, 20, 55, 66, 78, 120, 131, 142, 154)
    rank = RankMarks(seen, seen[3:6], busy_ns=30 * MS)
    # 3 to 4 (35 ms) held the preparation, 6 to 7 (42 ms) the stop; the trace is
    # written until 78 + 30 = 108 ms, so what begins at boundary 7 (120 ms) is quiet.
    assert step_times([rank]) == [StepTimes(ms(10, 10), ms(11, 12), ms(11, 11, 12))]


def test_all_ranks_wait_for_the_one_that_writes_longest() -> None:
    seen = marks(0, 10, 20, 30, 40, 50, 60, 70)
    window = seen[2:4]
    quick, slow = RankMarks(seen, window, 0), RankMarks(seen, window, 25 * MS)
    # The window ends at 30 ms; the slow one writes until 55 ms.
    assert step_times([quick])[0].after == ms(10, 10, 10)
    assert [times.after for times in step_times([quick, slow])] == [ms(10), ms(10)]


def test_boundaries_that_were_not_seen_make_no_interval() -> None:
    seen = [*marks(0, 10), *marks(50, 60, 70, 80, first=6)]
    rank = RankMarks(seen, seen[3:5])
    assert step_times([rank])[0].before == ms(10)


def test_a_clock_that_was_set_back_makes_no_interval() -> None:
    seen = marks(100, 110, 20, 30, 40, 50)
    assert step_times([RankMarks(seen, seen[4:6])])[0].before == ms(10, 10)


def test_only_the_latest_steps_before_the_window_count() -> None:
    seen = marks(*range(0, 1000, 10))
    assert len(step_times([RankMarks(seen, seen[90:94])])[0].before) == 50


def test_the_words_of_an_agent_are_checked() -> None:
    good = {"marks": [[4, 12, 40], [5, 15, 50]], "stop_ns": 3, "export_ns": 4}
    assert rank_marks([[3, 9, 30]], good) == RankMarks([(3, 30)], [(4, 40), (5, 50)], 7)
    assert rank_marks([], {"marks": [[4, 12, 40]]}) is None
    assert rank_marks([], {"marks": None}) is None
    assert rank_marks([], {}) is None
    assert rank_marks(["x", [1], [1, 2, "y"]], {**good, "stop_ns": "long"}) == RankMarks(
        [], [(4, 40), (5, 50)], 4
    )


def test_medians_are_over_all_ranks() -> None:
    one = StepTimes((1, 2, 3, 4, 5), (10, 20), (1,) * 5 + (7,) * 5)
    two = StepTimes((6, 7, 8, 9, 10), (30,), ())
    # Before: 1 to 10, the middle of 5 and 6 rounded to even; within: 10, 20, 30. Of the
    # ten before, the quartiles lie at 1 + 9 / 4 and 1 + 27 / 4: 4.5 apart, rounded to even.
    assert observer_of([one, None, two]) == Observer(6, 20, 7, 10, 3, 5, 4)


@pytest.mark.parametrize(
    ("number", "known", "counted"), [(8, None, 4), (9, None, 4), (10, 32, 5), (11, 32, 5)]
)
def test_a_host_that_catches_up_after_the_window_is_not_the_job(
    number: int, known: int | None, counted: int
) -> None:
    # Four intervals at the host's own rate, then at the GPU's: the later half decides.
    times = StepTimes((32,) * 5, (30,), (15, 15, 20, 18, *(32,) * (number - 4)))
    assert observer_of([times]) == Observer(32, 30, known, 5, 1, counted, 0)


@pytest.mark.parametrize(("number", "known"), [(4, None), (5, 3)])
def test_fewer_than_five_steps_say_nothing(number: int, known: int | None) -> None:
    times = StepTimes((3,) * number, (1,), (3,) * 2 * number)
    # Two ranks with four intervals each have seen four steps, not eight.
    found = observer_of([times, times])
    spread = None if known is None else 0
    assert found == Observer(known, 1, known, 2 * number, 2, 2 * number, spread)


def test_without_any_interval_nothing_is_said() -> None:
    assert observer_of([]) is None
    assert observer_of([StepTimes(), None]) is None
