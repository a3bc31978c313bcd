"""Late ranks brought to the median: as much work in a step as the others have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Unavailable
from diagnose.analyzers._lanes import packed
from diagnose.replay.change import Assume, Change
from diagnose.replay.changes._edit import scaled
from diagnose.replay.changes._which import (
    is_communication,
    launch_place,
    name_codes,
    of_rows,
)
from diagnose.replay.model import Array, Kind, Mask, Model
from diagnose.schema import NO_ROW


@dataclass(frozen=True, kw_only=True)
class NoStraggler(Change):
    """No rank has more work in a step than the median rank (of two: the faster one).

    First what a rank does more often in a step than the lower median rank is taken out: kernels
    and copies of the same name and launch shape, where it does more of them than the others
    between the same collectives, with their launches. Then, where a rank's compute of a step still
    takes longer than the lower median, all of it is shortened by the same factor; the same
    for copies, and for the host's work and calls (not for the least gain: the profiler may have
    slowed one host more than another). No rank gets slower. Assumes ranks that should do the
    same: with pipeline stages it levels the stages too.
    """

    id = "no-straggler"
    title = "late ranks brought to the median"
    effort = 3

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        if len(np.unique(model.operations.gpu)) < 2:
            return Unavailable("one GPU alone has no rank to compare with")
        if not (model.operations.match >= 0).any():
            return Unavailable("no collective is matched across ranks, so none waits for another")
        levelled = _gpus_levelled(_without_extra(model))
        return levelled if assume == Assume.LEAST else _hosts_levelled(levelled)


def _without_extra(model: Model) -> Model:
    """Without operations that a GPU does more often in a step than the lower median of the GPUs.

    How many is counted per step; which, by where it does more than the others: between which
    collectives. An operation that ranks do at different places is none too many.
    """
    ops, table = model.operations, model.trace.gpu_ops
    own = ~is_communication(model)
    place = launch_place(model)
    shape = of_rows(table, "launch_shape", ops.row, NO_ROW).astype(np.int64)
    step, activity = ops.step.astype(np.int64), ops.activity.astype(np.int64)
    _, gpu = np.unique(ops.gpu, return_inverse=True)
    gpu = gpu.reshape(-1).astype(np.int64)
    kernel = packed(step, name_codes(model), shape, activity)
    there = packed(kernel, _segments(model, place))
    _, label = np.unique(kernel, return_inverse=True)
    surplus = _surplus(label.reshape(-1), gpu, own)
    _, spot = np.unique(there, return_inverse=True)
    spot = spot.reshape(-1)
    here = _surplus(spot, gpu, own)
    candidate = own & (_number(packed(spot, gpu), place, own) < here[spot, gpu])
    last = _number(packed(label.reshape(-1), gpu), place, candidate)
    return _taken_out(model, candidate & (last < surplus[label.reshape(-1), gpu]))


def _surplus(label: Array, gpu: Array, chosen: Mask) -> Array:
    """How many more of each label a GPU has than the lower median GPU. Shape (labels, gpus)."""
    count = np.zeros((int(label.max(initial=-1)) + 1, int(gpu.max(initial=-1)) + 1), np.int64)
    np.add.at(count, (label[chosen], gpu[chosen]), 1)
    usual = np.sort(count, axis=1)[:, (count.shape[1] - 1) // 2]
    more: Array = np.maximum(count - usual[:, None], 0)
    return more


def _number(group: Array, place: npt.NDArray[np.float64], chosen: Mask) -> Array:
    """Counts the chosen of each group from the last one (0) backwards; others: beyond all."""
    number = np.full(group.size, np.iinfo(np.int64).max)
    rows = np.flatnonzero(chosen)
    order = rows[np.lexsort((-place[rows], group[rows]))]
    head = np.ones(order.size, bool)
    head[1:] = group[order][1:] != group[order][:-1]
    since = np.arange(order.size)
    number[order] = since - np.maximum.accumulate(np.where(head, since, 0))
    return number


def _segments(model: Model, place: npt.NDArray[np.float64]) -> Array:
    """How many matched collectives of its GPU and step were launched before each operation."""
    ops = model.operations
    matched = ops.match >= 0
    order = np.lexsort((place, ops.step, ops.gpu))
    head = np.ones(order.size, bool)
    head[1:] = (ops.step[order][1:] != ops.step[order][:-1]) | (
        ops.gpu[order][1:] != ops.gpu[order][:-1]
    )
    before: Array = np.cumsum(matched[order]) - matched[order]
    first = np.maximum.accumulate(np.where(head, np.arange(order.size), 0))
    found = np.empty(order.size, np.int64)
    found[order] = before - before[first]
    return found


def _taken_out(model: Model, extra: Mask) -> Model:
    """Without the time of ``extra`` and of their launches; what they tie together stays."""
    ops, calls = model.operations, model.calls
    call = model.launch_call()
    gone, used = np.zeros((2, calls.row.size), bool)
    gone[call[extra & (call >= 0)]] = True
    used[call[~extra & (call >= 0)]] = True
    gone &= ~used
    return model.with_operations(
        duration_ns=np.where(extra, 0, ops.duration_ns),
        pause_ns=np.where(extra, np.minimum(ops.pause_ns, 0), ops.pause_ns),
    ).with_calls(
        work_ns=np.where(gone, np.minimum(calls.work_ns, 0), calls.work_ns),
        call_ns=np.where(gone, 0, calls.call_ns),
    )


def _gpus_levelled(model: Model) -> Model:
    """With the compute, and the copies, of each GPU in a step at most the lower median."""
    ops = model.operations
    own, duration = ~is_communication(model), model.operations.duration_ns
    for activity in np.unique(ops.activity[own]).tolist():
        mine = own & (ops.activity == activity)
        factor = _factors(ops.gpu, ops.step, np.where(mine, duration, 0), np.unique(ops.gpu))
        duration = np.where(mine, scaled(duration, factor), duration)
    return model.with_operations(duration_ns=duration)


def _hosts_levelled(model: Model) -> Model:
    """With the work and calls of each process in a step at most the lower median."""
    calls, dependencies = model.calls, model.dependencies
    sources = np.array([gpu.source for gpu in model.trace.gpus], np.int64)
    handed = np.flatnonzero(dependencies.kind == Kind.HANDOFF)
    to = dependencies.to_node[handed] - model.num_ops
    host = np.maximum(calls.work_ns, 0) + calls.call_ns
    np.add.at(host, to, np.maximum(dependencies.lag_ns[handed], 0))
    owners = np.unique(sources[model.operations.gpu])
    factor = _factors(calls.source, calls.step, host, owners)
    lag = dependencies.lag_ns.copy()
    lag[handed] = np.where(lag[handed] > 0, scaled(lag[handed], factor[to]), lag[handed])
    work = np.where(calls.work_ns > 0, scaled(calls.work_ns, factor), calls.work_ns)
    return model.with_calls(work_ns=work, call_ns=scaled(calls.call_ns, factor)).with_dependencies(
        dependencies._replace(lag_ns=lag)
    )


def _factors(
    owner: npt.NDArray[np.int32], step: npt.NDArray[np.int32], value: Array, owners: Array
) -> npt.NDArray[np.float64]:
    """What brings each owner's sum of a step down to the lower median of ``owners``; at most 1."""
    if not value.size:
        return np.ones(0)
    total = np.zeros((int(step.max()) + 1, int(max(owner.max(), owners.max())) + 1))
    np.add.at(total, (step, owner), value)
    usual = np.sort(total[:, owners], axis=1)[:, (owners.size - 1) // 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(total > 0, np.minimum(usual[:, None] / total, 1.0), 1.0)
    return factor[step, owner]


CHANGES = (NoStraggler,)
