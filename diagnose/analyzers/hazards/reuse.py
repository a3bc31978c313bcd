"""Memory that the allocator gave out again: where its use may have been seen to be over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.hazards.annotations import CALLS, EventCall, named
from diagnose.analyzers.hazards.host_waits import ASKS, DEVICE, STREAM
from diagnose.analyzers.hazards.order import CLOCK_ERROR_NS
from diagnose.trace import Trace

_WAITS = f"{ASKS}|{STREAM}|{DEVICE}|{CALLS[EventCall.HOST_WAITS]}"
_POOL = r"(?:cuda|cu|hip)(?:MallocAsync|MallocFromPoolAsync|MemAllocAsync|MemAllocFromPoolAsync)"


@dataclass(frozen=True)
class Reuse:
    """What the process knew of the GPU, and when.

    Memory is given out again by whoever saw that its use is over, on whichever thread: PyTorch's
    allocator, or NCCL's watchdog, which holds the tensors of a collective. CUDA's own pools order
    the reuse where none can see it.
    """

    asked_at: npt.NDArray[np.int64]
    by_driver: bool

    @classmethod
    def of(cls, trace: Trace, source: int) -> Reuse:
        """Of one source."""
        launches = trace.launches
        own = launches["source"] == source
        asked = np.sort(launches["end_ns"][own & named(launches, "name", _WAITS)])
        return cls(asked, bool((own & named(launches, "name", _POOL)).any()))

    def may_be_known(self, over_ns: int, reused_ns: int) -> bool:
        """Whether anybody may have seen that a use is over, before the memory was used again."""
        if self.by_driver:
            return True
        at = int(np.searchsorted(self.asked_at, over_ns - CLOCK_ERROR_NS))
        return at < len(self.asked_at) and int(self.asked_at[at]) <= reused_ns
