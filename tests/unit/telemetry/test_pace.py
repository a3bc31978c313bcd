"""The share of a core holds for any course of costs."""

from __future__ import annotations

import random

import pytest

from diagnose.telemetry.pace import Pace


def run(pace, costs, *, of_wall=1.0):
    """Reads in a row; returns (time of each start, whole time). Wall = processor / ``of_wall``."""
    now_s, starts = 0.0, []
    for cost_s in costs:
        starts.append(now_s)
        end_s = now_s + cost_s / of_wall
        now_s = end_s + pace.wait_s(now_s, end_s, cost_s)
    return starts, now_s


def test_a_cheap_reading_keeps_the_interval():
    starts, _ = run(Pace(0.02), [0.001] * 50)
    assert starts[1] == pytest.approx(0.02)
    assert starts[-1] == pytest.approx(49 * 0.02)


def test_dear_readings_settle_at_a_tenth():
    # 10 ms each at 10 % of a core: one every 100 ms. The first ones come sooner, on credit:
    # five readings' worth, 50 ms.
    starts, _ = run(Pace(0.02), [0.010] * 100)
    assert starts[1] - starts[0] == pytest.approx(0.02)
    assert starts[-1] - starts[-2] == pytest.approx(0.1)
    assert len([s for s in starts if s < 10.0]) <= 10.0 * 0.1 / 0.010 + 5 + 1


def test_one_very_dear_reading_is_waited_off_once():
    pace = Pace(0.02)
    # 300 ms used, 50 ms of it on credit: 250 ms are owed, earned back in 2.5 s. 30 ms of
    # processor time were earned during the reading itself but the account was full.
    assert pace.wait_s(0.0, 0.3, 0.3) == pytest.approx(2.5)
    assert pace.wait_s(2.8, 2.801, 0.001) == pytest.approx(0.019, abs=0.002)


def test_a_reading_that_waits_leaves_as_much_time_free():
    # 30 ms long, but the processor was used for 0.3 ms: no more than half of the time.
    assert Pace(0.02).wait_s(0.0, 0.03, 0.0003) == pytest.approx(0.03)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_the_share_holds_for_any_costs(share):
    draw = random.Random(7)
    costs = [draw.choice([0.0005, 0.003, 0.03, 0.2]) for _ in range(400)]
    _, whole_s = run(Pace(0.02, share), costs)
    assert sum(costs) <= share * whole_s + 0.05 + 1e-9


@pytest.mark.parametrize(("interval_s", "share"), [(0, 0.1), (-1, 0.1), (0.02, 0), (0.02, 1.1)])
def test_impossible_settings(interval_s, share):
    with pytest.raises(ValueError, match="must be over 0"):
        Pace(interval_s, share)
