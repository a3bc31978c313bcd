"""Against jobs that were measured before and after, unprofiled: ``examples/recordings``.

The step times are means of ten steps without a profiler, in ms, of the slower rank: of the job
with the behaviour induced on purpose, and of the same job without it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.analysis import Unavailable
from diagnose.readers import read
from diagnose.replay.build import build
from diagnose.replay.change_text import parse
from diagnose.replay.prediction import predict

RECORDINGS = Path(__file__).parents[4] / "examples" / "recordings"


@pytest.mark.parametrize(
    ("name", "change", "before_ms", "after_ms"),
    [
        ("data_stall", "data-ready", 48.67, 38.47),
        ("data_stall", "prefetch-data", 48.67, 38.47),
        ("pageable_copy", "pinned-copies", 80.99, 47.06),
        ("straggler", "no-straggler", 42.16, 38.47),
        ("host_sync", "no-host-sync", 39.63, 38.47),
    ],
)
def test_the_step_after_the_fix(name: str, change: str, before_ms: float, after_ms: float) -> None:
    """Within 5 %, and the gain is at least half and at most one and a half times the measured."""
    model = build(read([str(RECORDINGS / name)]))
    assert not isinstance(model, Unavailable)
    found = predict(model, [parse(change)])
    assert not isinstance(found, Unavailable)
    assert found.then.likely / 1e6 == pytest.approx(after_ms, rel=0.05)
    assert found.gain.likely / 1e6 == pytest.approx(before_ms - after_ms, rel=0.5)


@pytest.mark.parametrize("change", ["no-host-sync", "data-ready", "pinned-copies", "cuda-graph"])
def test_a_healthy_job_has_nothing_to_gain(change: str) -> None:
    """Nothing was induced there: less than 1 % of the step."""
    model = build(read([str(RECORDINGS / "healthy")]))
    assert not isinstance(model, Unavailable)
    found = predict(model, [parse(change)])
    if not isinstance(found, Unavailable):
        assert found.gain.likely < 0.01 * found.now.likely
