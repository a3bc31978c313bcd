"""Usual lags: how soon something follows what it waited for, in this recording.

What was waited for last shows its lag. For the rest, which could have let go earlier, only
that it was not longer than measured is known; they get the median of those that show it,
or, where fewer than ``_ENOUGH`` do, a value from elsewhere.
"""

from __future__ import annotations

import numpy as np

from diagnose.replay.model import Array, Mask

_ENOUGH = 20
"""Fewer than that and a median is left to chance (its 95 % interval spans half the sample)."""
PAUSE_NS = 2_000
"""Between two kernels of a stream: medians of 1.2 to 3.3 us over the recordings of one H200."""
COPY_PAUSE_NS = 4_000
"""The same where one of the two is a copy: medians of 2.5 to 5.6 us there."""
EVENT_NS = 4_000
"""From the end of an operation to the begin of one that waits for its event: 2.7 to 5.4 us."""
LAUNCH_NS = 9_000
"""From the start of a launch to the begin of its operation on an idle stream: 8.9 to 16 us."""
RETURN_NS = 15_000
"""From the end of an operation to the return of the call that waits for it: 7.6 to 30 us."""
CALL_NS = 5_000
"""A waiting call that has nothing to wait for: 3 to 8 us."""


def usual(measured: Array, shows: Mask, otherwise: int) -> int:
    """The median of what shows its lag; ``otherwise`` where too few do. In ns, not below 0."""
    shown = measured[shows]
    if shown.size < _ENOUGH:
        return otherwise
    return max(int(np.median(shown)), 0)
