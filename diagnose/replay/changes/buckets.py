"""Gradients reduced in messages of another size: merged and split in the order of launches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.replay.change import Assume, Change
from diagnose.replay.changes._collective_cost import NOT_FITTED, latencies
from diagnose.replay.changes._gradients import NO_GRADIENTS, gradient_reductions
from diagnose.replay.changes._host_spans import without_messages_of
from diagnose.replay.changes._message_parts import split
from diagnose.replay.changes._which import collectives_of, of_rows
from diagnose.replay.model import Array, Kind, Mask, Model
from diagnose.schema import NO_ROW, NULL

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class BucketSize(Change):
    """Gradients are reduced in buckets of ``mb`` MiB (bucket_cap_mb of DistributedDataParallel).

    In the order of their launches, messages are merged until a bucket holds ``mb`` or more (as
    DistributedDataParallel does), and a message of k x ``mb`` (rounded) is split in k. A
    merged one begins when the last member's gradients are ready; its consumers wait for all
    of it. A part begins when its share of the gradients is ready, by the order in which their
    kernels were launched (least gain: not before all are). Time of a message: latency, fitted to
    the sizes in the recording, plus what is left of the recorded time, in proportion to
    bytes. A message less costs the host no launch and none of the time in its operators (c10d::,
    record_param_comms; least gain: as far as the work around it holds that), a message more
    a launch.
    """

    id = "bucket-size"
    title = "gradient buckets of another size"
    effort = 1
    mb: float = 25.0

    def __post_init__(self) -> None:
        if self.mb <= 0:
            raise ValueError("mb has to be above 0")

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        reductions = gradient_reductions(model)
        if not reductions.any():
            return NO_GRADIENTS
        sized = reductions & (model.operations.bytes != NULL) & (model.operations.bytes > 0)
        if not sized.any():
            return Unavailable(
                "the sizes of the gradient reductions are not known",
                "record with record_shapes=True and PyTorch 2.1 or newer",
            )
        cap = self.mb * MIB
        merges: list[Array] = []
        parts = np.ones(model.num_ops, np.int64)
        for rows in _sequences(model, sized):
            count = np.maximum(np.rint(model.operations.bytes[rows] / cap), 1).astype(np.int64)
            parts[rows] = count
            merges += _merged(rows, model.operations.bytes[rows], count, cap)
        if not merges and (parts == 1).all():
            return Unavailable(f"gradients are reduced in buckets of about {self.mb:g} MiB already")
        latency = latencies(model)
        changed = _with_merged(model, merges, latency.where_few_gain(assume), assume)
        if (parts > 1).any():
            fixed = latency.where_many_cost(assume)
            changed = split(changed, parts, fixed, sized, early=assume != Assume.LEAST)
        return changed if latency.fitted else changed.remarked(NOT_FITTED)


def _sequences(model: Model, chosen: Mask) -> list[Array]:
    """Reductions that may share a message, in the order of their stream.

    Of one stream, step, kind, group and element type.
    """
    ops, said = model.operations, collectives_of(model)
    table = model.trace.collectives
    place = np.full(len(model.trace.gpu_ops) + 1, NO_ROW, np.int64)
    place[table["gpu_op_row"]] = np.arange(len(table))
    dtype = of_rows(table, "dtype", place[ops.row], NO_ROW)
    rows = np.flatnonzero(chosen)
    columns = (dtype, said.group, said.kind, ops.step, ops.stream)
    key = np.stack([column[rows].astype(np.int64) for column in columns], 1)
    _, label = np.unique(key, axis=0, return_inverse=True)
    label = label.reshape(-1)
    order = np.lexsort((ops.place[rows], label))
    return [rows[one] for one in np.split(order, np.flatnonzero(np.diff(label[order])) + 1)]


def _merged(rows: Array, size: Array, parts: Array, cap: float) -> list[Array]:
    """Which of a sequence become one message: full as soon as it holds ``cap`` bytes."""
    found: list[Array] = []
    current: list[int] = []
    held = 0
    for row, one, count in zip(rows.tolist(), size.tolist(), parts.tolist(), strict=True):
        if count > 1:
            found.append(np.array(current, np.int64))
            current, held = [], 0
            continue
        current.append(row)
        held += one
        if held >= cap:
            found.append(np.array(current, np.int64))
            current, held = [], 0
    found.append(np.array(current, np.int64))
    return [one for one in found if one.size > 1]


def _with_merged(model: Model, merges: list[Array], latency: np.ndarray, assume: Assume) -> Model:
    """The last member of each becomes the message; the others are left as marks of their inputs."""
    if not merges:
        return model
    ops, dependencies = model.operations, model.dependencies
    duration, size, match = ops.duration_ns.copy(), ops.bytes.copy(), ops.match.copy()
    pause, call_ns = ops.pause_ns.copy(), model.calls.call_ns.copy()
    call = model.launch_call()
    stands_for = np.arange(model.num_ops + model.calls.row.size)
    for members in merges:
        last, others = members[-1], members[:-1]
        fixed = np.minimum(latency[members], duration[members])
        duration[last] = round(float(fixed[-1] + (duration[members] - fixed).sum()))
        size[last] = size[members].sum()
        duration[others], size[others], match[others] = 0, 0, NO_ROW
        pause[others] = np.minimum(pause[others], 0)
        call_ns[call[others][call[others] >= 0]] = 0
        stands_for[others] = last
    # Members still mark when their gradients are ready: the message follows on their stream.
    from_node = stands_for[dependencies.from_node]
    # Who only happened to begin after a member (not by a recorded wait) need not wait for all.
    moved = from_node != dependencies.from_node
    loose = moved & np.isin(dependencies.kind, (Kind.ROOM, Kind.OBSERVED_ORDER))
    to = dependencies.to_node
    place = np.append(ops.place, np.full(model.calls.row.size, np.inf))
    loose &= (dependencies.kind == Kind.ROOM) | (place[to] < place[from_node])
    return (
        without_messages_of(model, np.concatenate([members[:-1] for members in merges]), assume)
        .with_operations(duration_ns=duration, bytes=size, match=match, pause_ns=pause)
        .with_calls(call_ns=call_ns)
        .with_dependencies(dependencies._replace(from_node=from_node).take(~loose))
    )


CHANGES = (BucketSize,)
