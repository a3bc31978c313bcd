"""How often to read sensors: as asked, but never at more than a tenth of a core."""

from __future__ import annotations

INTERVAL_S = 0.02
CORE_SHARE = 0.1
_WALL_SHARE = 0.5
_MOST_CREDIT_S = 0.05


class Pace:
    """Keeps an account of processor time: it grows with the clock, each reading is paid from it.

    ``interval_s``: from start to start of two readings if that is cheap enough.
    ``core_share``: processor time of all readings, of one core. Besides, half of the time
    is left without a reading, since a driver serves the job with the same locks.
    """

    def __init__(self, interval_s: float = INTERVAL_S, core_share: float = CORE_SHARE) -> None:
        if not interval_s > 0 or not 0 < core_share <= 1:
            raise ValueError("interval_s must be over 0, core_share over 0 and at most 1")
        self._interval_s, self._core_share = interval_s, core_share
        self._credit_s = _MOST_CREDIT_S
        self._last_end_s: float | None = None

    def wait_s(self, start_s: float, end_s: float, processor_s: float) -> float:
        """How long to wait after a reading that took from ``start_s`` to ``end_s`` (steady clock).

        ``processor_s`` is what it used of a core. A steep price once is waited off once: the
        average of all readings stays under the share.
        """
        since_s = end_s - (start_s if self._last_end_s is None else self._last_end_s)
        self._last_end_s = end_s
        earned_s = self._credit_s + since_s * self._core_share
        self._credit_s = min(earned_s, _MOST_CREDIT_S) - processor_s
        took_s = end_s - start_s
        return max(
            self._interval_s - took_s,
            took_s * (1 / _WALL_SHARE - 1),
            -self._credit_s / self._core_share,
            0.0,
        )
