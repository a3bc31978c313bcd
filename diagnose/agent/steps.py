"""Counts training steps: one hook behind the optimizer step, a ring of the last marks.

A step boundary is the end of ``step()`` of one optimizer, the clock. In idle the hook costs
about half a microsecond: a comparison, the sequence number, the time, one tuple in a ring.

Which optimizer: the first one seen. An agent that came into a running job watches one whole
round first and takes the optimizer with the most parameters, so that ranks entered at
different moments of a step settle on the same one. The clock moves on to another optimizer
when its own is gone, or has not stepped while the other did 64 times.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

from .sequence import SequenceReader

RING = 4096
_STALLED = 64
_INTERVALS = 20


class Mark(NamedTuple):
    """A step boundary: its number, the sequence number (None: unknown), unix nanoseconds."""

    step: int
    seq: Optional[int]
    unix_ns: int


class StepClock:
    """The marks of one process. ``listener`` is told of each boundary, on the training thread."""

    def __init__(self, *, watch_round: bool = False) -> None:
        self.step = 0
        self.ring: deque[tuple[int, int | None, int]] = deque(maxlen=RING)
        self.listener: Callable[[Mark], None] | None = None
        self.sequence = SequenceReader()
        self.cuda_device: int | None = None
        self.training_thread: int | None = None
        self.on_first: Callable[[], None] | None = None
        self._watch_round = watch_round
        self._seen: dict[int, tuple[int, tuple[int, int | None, int]]] = {}
        self._wanted = 0
        self._patience = 0
        self._chosen = 0
        self._reference: weakref.ref[Any] | None = None
        self._rival = (0, 0, 0)  # id, the clock's step at that time, its steps since

    def hook(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        """Behind every optimizer step, on the thread that made it."""
        if id(optimizer) != self._chosen and not self._is_clock_now(optimizer):
            return
        self.mark()

    def mark(self) -> None:
        """A step boundary, now."""
        step = self.step = self.step + 1
        mark = (step, self.sequence.read(), time.time_ns())
        self.ring.append(mark)
        listener = self.listener
        if listener is not None:
            self.observe_thread()
            listener(Mark(*mark))

    def marks(self, since: int = 0, most: int = RING) -> list[Mark]:
        """The last marks of steps after ``since``, oldest first."""
        # Copying a deque in one call is atomic; a loop over it could meet an append.
        return [Mark(*mark) for mark in list(self.ring) if mark[0] > since][-most:]

    def interval_ns(self) -> int | None:
        """Median of the last 20 intervals between boundaries; None with fewer than 2 marks."""
        times = [mark.unix_ns for mark in self.marks(most=_INTERVALS + 1)]
        intervals = sorted(later - earlier for earlier, later in zip(times, times[1:]))
        return intervals[len(intervals) // 2] if intervals else None

    def observe_thread(self) -> None:
        """Note what only the training thread knows: CUDA's current device is per thread."""
        self.training_thread = threading.get_ident()
        try:
            cuda = sys.modules.get("torch.cuda")
            if cuda is not None and cuda.is_initialized():
                self.cuda_device = int(sys.modules["torch"]._C._cuda_getDevice())
        except Exception:
            self.cuda_device = None

    def _is_clock_now(self, optimizer: Any) -> bool:
        if self._chosen:
            return self._takes_over(optimizer)
        if not self._watch_round:
            self._choose(optimizer)
            return True
        return self._round_complete(optimizer)

    def _choose(self, optimizer: Any) -> None:
        self._chosen = id(optimizer)
        try:
            self._reference = weakref.ref(optimizer, self._gone)
        except TypeError:  # a class with slots: another one takes over when it does not step
            self._reference = None
        self.observe_thread()
        first, self.on_first = self.on_first, None
        if first is not None:
            first()

    def _gone(self, _reference: object) -> None:
        self._chosen = 0

    def _takes_over(self, optimizer: Any) -> bool:
        rival, since, count = self._rival
        if since != self.step or not rival:
            self._rival = (id(optimizer), self.step, 1)
        elif rival == id(optimizer):
            self._rival = (rival, since, count + 1)
            if count + 1 >= _STALLED:
                self._choose(optimizer)
                return True
        return False

    def _round_complete(self, optimizer: Any) -> bool:
        key = id(optimizer)
        if not self._wanted:
            if key not in self._seen and len(self._seen) < RING:
                mark = (0, self.sequence.read(), time.time_ns())
                self._seen[key] = (_num_elements(optimizer), mark)
                return False
            self._wanted = max(self._seen, key=lambda seen: self._seen[seen][0])
            self._patience = 2 * len(self._seen) + _STALLED
        self._patience -= 1
        if key != self._wanted and self._patience > 0:
            return False
        earlier = self._seen.get(key)
        self._seen.clear()
        self._watch_round = False
        self._choose(optimizer)
        if earlier is not None:
            # Its step in the round that was watched is a boundary too: one step won.
            self.step += 1
            self.ring.append((self.step, *earlier[1][1:]))
        return True


def _num_elements(optimizer: Any) -> int:
    try:
        return sum(
            parameter.numel() for group in optimizer.param_groups for parameter in group["params"]
        )
    except Exception:
        return 0
