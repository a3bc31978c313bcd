"""Changes of how input comes to the step: always there, or loaded while the step before runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.replay.change import Assume, Change
from diagnose.replay.changes._edit import with_calls_added, with_further
from diagnose.replay.changes._host_gaps import (
    HostSpan,
    absent,
    first_of_steps,
    taken_by,
    without_host_time,
)
from diagnose.replay.model import Array, Calls, Kind, Model
from diagnose.schema import NO_ROW

NO_LOADING = Unavailable(
    "no data loading was recorded, and no host thread was away for 1 ms or more before a step",
)
ABSENT = (
    "No data loader was recorded: the time for which the host ran nothing before a step is taken "
    "to be data loading."
)


def loading_ns(model: Model) -> tuple[Array, bool]:
    """Data loading before each call in ns, and whether it was recorded as such.

    Spans of a data loader between calls; without any, the time before the first call of a
    step for which its thread ran neither an operator nor a call, 1 ms or more at a time.
    """
    recorded = taken_by(model, HostSpan.DATA_LOADING)
    if recorded.any():
        return recorded, True
    return absent(model), False


@dataclass(frozen=True, kw_only=True)
class DataReady(Change):
    """Input is there when the step begins: the host never waits for data.

    Spans of a data loader are taken out of the host's work between calls. Where none was
    recorded, so is the time before the first call of a step for which the thread ran
    neither an operator nor a call (1 ms or more at a time); that it loaded data is an assumption.
    """

    id = "data-ready"
    title = "data loading removed"
    effort = 1
    searched = False

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        loading, recorded = loading_ns(model)
        if not loading.any():
            return NO_LOADING
        changed = without_host_time(model, loading)
        return changed if recorded else changed.remarked(ABSENT)


@dataclass(frozen=True, kw_only=True)
class PrefetchData(Change):
    """Input is loaded by ``workers`` processes while earlier steps run.

    The loading of a step (as for data-ready) moves to a thread of its own that is free to
    run ahead; a step begins when its input is there. ``workers`` load as many steps at a
    time: together they take loading / workers a step. Assumes processors for them, and no
    limit by the file system.
    """

    id = "prefetch-data"
    title = "data loading overlapped with the step"
    effort = 1
    workers: int = 4

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError("workers has to be 1 or more")

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        loading, recorded = loading_ns(model)
        if not loading.any():
            return NO_LOADING
        changed = without_host_time(model, loading)
        calls = model.calls
        first = np.flatnonzero(first_of_steps(model))
        of_step: Array = np.zeros(first.size, np.int64)
        key = calls.source.astype(np.int64) * model.num_steps + calls.step
        place = np.searchsorted(np.sort(key[first]), key)
        first = first[np.argsort(key[first])]
        np.add.at(of_step, np.minimum(place, first.size - 1), loading)
        _, thread = np.unique(calls.source[first], return_inverse=True)
        zeros = np.zeros(first.size, np.int64)
        loaders = Calls(
            row=np.full(first.size, NO_ROW, np.int64),
            source=calls.source[first],
            thread=(int(calls.thread.max()) + 1 + thread.reshape(-1)).astype(np.int32),
            place=calls.place[first],
            step=calls.step[first],
            work_ns=np.rint(of_step / self.workers).astype(np.int64),
            call_ns=zeros,
            waits=np.zeros(first.size, bool),
            num_events=zeros,
            profiler_ns=zeros,
        )
        base = model.num_ops + calls.row.size
        changed = with_calls_added(changed, loaders)
        of = base + np.arange(first.size)
        changed = with_further(changed, of, model.num_ops + first, 0, Kind.HANDOFF)
        return changed if recorded else changed.remarked(ABSENT)


CHANGES = (DataReady, PrefetchData)
