"""The accuracy table: its arithmetic by hand, and its figures on the measured pairs."""

from __future__ import annotations

from statistics import median

import pytest

from benchmarks.accuracy.score import Score, Truth, scores, truths
from diagnose.replay import Prediction
from diagnose.replay.prediction import Range


def truth(before: tuple[float, ...], after: tuple[float, ...]) -> Truth:
    return Truth("job", 1, "", (), True, "", before, after, "recordings/job")


def prediction(then_ms: float, gain_ms: float) -> Prediction:
    def around(value: float) -> Range:
        return Range(value * 0.9e6, value * 1e6, value * 1.1e6)

    return Prediction(
        (), 1, 1e7, 1e7, 1e7, 0.0, 0.0, around(10), around(then_ms), around(gain_ms), (), ()
    )


def test_errors_are_relative_to_what_was_measured():
    score = Score(truth((9.0, 10.0, 12.0), (7.0, 8.0, 8.5)), prediction(8.8, 1.0))
    assert score.step_error_pct == pytest.approx(10)  # 8.8 of 8
    assert score.gain_error_pct == pytest.approx(-50)  # 1 of 10 - 8
    assert score.unchanged_error_pct == pytest.approx(25)  # 10 of 8
    assert score.range_holds  # 7.92 to 9.68 meets 7 to 8.5


def test_sides_whose_repeats_meet_are_not_told_apart():
    assert truth((9.0, 10.0), (7.0, 8.9)).is_told
    assert not truth((9.0, 10.0), (7.0, 9.0)).is_told
    assert truth((7.0, 8.0), (9.0, 10.0)).is_told  # a repair that made it slower
    assert not truth((9.0,), (7.0,)).is_told


SLOWER_BY_ITS_REPAIR = "wide_gradients"
"""Nothing models what the hook of this pair costs; see docs/accuracy.md."""

FAR_OFF = "pinned_in_step"
"""Its driver calls took twice as long in the window as untouched; see docs/accuracy.md."""


def test_pairs_kept_aside_are_predicted():
    """No constant was fitted to them: what fails here is the replay, not the table."""
    found = [s for s in scores([t for t in truths() if t.kept_aside]) if s.truth.is_told]
    errors = {s.truth.name: abs(e) for s in found if (e := s.step_error_pct) is not None}
    assert len(errors) >= 12
    assert median(errors.values()) < 5
    # A pair that is far off stays in the table: leaving it out would flatter the others' figures.
    assert errors.pop(FAR_OFF) < 50
    assert max(errors.values()) < 15
    better = [s for s in found if s.truth.gain_ms > 0.05 * median(s.truth.before_ms)]
    assert SLOWER_BY_ITS_REPAIR not in {s.truth.name for s in better}
    assert len(better) >= 8
    for score in better:
        error = score.step_error_pct
        if error is not None:
            assert abs(error) < abs(score.unchanged_error_pct), score.truth.name
