"""Where a lower power limit would begin to hurt, from the power that was drawn without it.

A limit acts on refreshes whose mean power lies above it. So the limit that a share of
the refreshes exceed is a quantile of their powers; its interval is a bootstrap over
blocks of neighbouring refreshes. What a limit then costs cannot be read off one
recording: ``diagnose power-sweep`` measures it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEAST_REFRESHES = 50
BEGINS_PCT = 5.0
_NUM_BOOTSTRAPS = 300


class Cap(NamedTuple):
    """Watts: a limit at ``begins_w`` is exceeded in 5 % of refreshes, at ``half_w`` in half."""

    begins_w: float
    begins_low_w: float
    begins_high_w: float
    half_w: float
    num_refreshes: int


def cap_that_hurts(power: Floats, *, seed: int = 0) -> Cap | str:
    """From the mean power of each refresh while the GPU's work was recorded; or why not."""
    size = len(power)
    if size < LEAST_REFRESHES:
        return (
            "too few refreshes of the power sensor to say how power is spread "
            f"({size}; {LEAST_REFRESHES} are needed)"
        )
    block = max(round(size ** (1 / 3)), 1)
    starts = np.random.default_rng(seed).integers(
        0, size - block + 1, size=(_NUM_BOOTSTRAPS, -(-size // block))
    )
    drawn = power[(starts[:, :, None] + np.arange(block)).reshape(_NUM_BOOTSTRAPS, -1)]
    begins = np.percentile(drawn, 100 - BEGINS_PCT, axis=1)
    low, high = np.percentile(begins, [2.5, 97.5])
    point, half = np.percentile(power, [100 - BEGINS_PCT, 50])
    return Cap(float(point), float(low), float(high), float(half), size)
