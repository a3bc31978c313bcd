"""Jobs of one rank that compute throughout, with telemetry that says what a test wants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from diagnose.trace import Trace
from tests.power_tables import builder, samples
from tests.unit.rules.judging import trace_of


def sensed(ms: Any, **columns: Any) -> Trace:
    """100 steps of 10 ms without a pause; ``ms`` are the times of the rows, from their start."""
    one = builder()
    for step in range(100):
        at = step * 10_000
        one.step(step, at, 9_999)
        one.kernel("gemm", at, 10_000, launch=at)
    return replace(trace_of(one), samples=samples(ms=np.asarray(ms), **columns))
