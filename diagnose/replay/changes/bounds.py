"""What could be gained at most, out of reach of any one change: no communication, no host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.replay.change import Assume, Change
from diagnose.replay.changes._edit import removed
from diagnose.replay.changes._which import NO_COMMUNICATION, is_communication
from diagnose.replay.model import Model


@dataclass(frozen=True, kw_only=True)
class HideCommunication(Change):
    """All communication costs nothing: it takes no time, and nothing waits for it.

    A bound. Ranks no longer wait for each other either. Launching the collectives still
    takes the host's time, and kernels that were slowed beside them stay slow (no-contention).
    """

    id = "hide-communication"
    title = "all communication hidden"
    is_bound = True

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        communication = is_communication(model)
        if not communication.any():
            return NO_COMMUNICATION
        freed = removed(model, communication)
        return freed.with_calls(call_ns=model.calls.call_ns)


@dataclass(frozen=True, kw_only=True)
class NoHostLimit(Change):
    """The GPU never waits for the host: launching, waiting and loading data cost nothing.

    A bound. All dependencies from and to the host are dropped; what is left is what the GPUs
    have to do, in the order of their streams.
    """

    id = "no-host-limit"
    title = "host never in the way"
    is_bound = True

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        calls, dependencies = model.calls, model.dependencies
        if not calls.row.size:
            return Unavailable("the replayed steps contain no host calls")
        on_gpu = (dependencies.from_node < model.num_ops) & (dependencies.to_node < model.num_ops)
        nothing = np.zeros(calls.row.size, np.int64)
        return model.with_calls(
            work_ns=nothing, call_ns=nothing, waits=np.zeros(calls.row.size, bool)
        ).with_dependencies(dependencies.take(on_gpu))


CHANGES = (HideCommunication, NoHostLimit)
