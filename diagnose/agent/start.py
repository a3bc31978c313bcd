"""Where a window starts: at a sequence number, a step number or a moment.

It is prepared at the first boundary that is ``near``, one stride early, and starts at the
boundary after that one. With a sequence number every rank sees the same numbers, so all of
them start at the same step even where a stride is irregular.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .protocol import BAD_REQUEST, NO_STEPS, RefusalError
from .steps import Mark

SEQ, STEP, UNIX = "seq", "step", "unix"
_KEYS = {"seq": SEQ, "step": STEP, "unix_ns": UNIX}


class Start(NamedTuple):
    """``value`` on the clock ``clock``; ``stride``: how far that clock moves in a step."""

    clock: str
    value: int
    stride: int

    def missed(self, last: Mark | None) -> str | None:
        """Why it is too late to prepare for it, given the last boundary; None if it is not."""
        now = None if last is None else self._reading(last)
        if now is None:
            if self.clock == SEQ:
                raise RefusalError(NO_STEPS, "this process has no sequence number to start at")
            return None
        if now < self.value - self.stride:
            return None
        return f"the start {self.value} ({self.clock}) is missed: it is at {now} already"

    def near(self, mark: Mark) -> bool:
        """Whether this boundary is the one to prepare at."""
        now = self._reading(mark)
        return now is not None and now >= self.value - self.stride

    def _reading(self, mark: Mark) -> int | None:
        if self.clock == SEQ:
            return mark.seq
        return mark.step if self.clock == STEP else mark.unix_ns


def read_start(start: Any, stride: Any, step_ns: int | None) -> Start:
    """The start of a request. Raises RefusalError with ``bad-request``.

    ``stride`` counts on the clock of ``start``; for a moment it is the time of a step.
    """
    if not isinstance(start, dict) or len(start) != 1:
        raise RefusalError(BAD_REQUEST, "start is an object with one of seq, step, unix_ns")
    key, value = next(iter(start.items()))
    if key not in _KEYS or not _is_whole(value):
        raise RefusalError(BAD_REQUEST, "start is a whole number of seq, step or unix_ns")
    if _KEYS[key] == UNIX:
        return Start(UNIX, value, step_ns or 0)
    if stride is None:
        stride = 1
    if not _is_whole(stride) or stride < 1:
        raise RefusalError(BAD_REQUEST, "stride must be a whole number of 1 or more")
    return Start(_KEYS[key], value, stride)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
