"""Gradients accumulated over micro-batches, and reduced once."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.replay.change import Assume, Change
from diagnose.replay.changes._edit import removed
from diagnose.replay.changes._gradients import NO_GRADIENTS, gradient_reductions
from diagnose.replay.changes._host_spans import MESSAGE, spans_around, spans_of, without_spans
from diagnose.replay.changes._which import collectives_of, handed_calls, launch_place
from diagnose.replay.model import Array, Mask, Model

BUCKET_COPY = re.compile(r"torch::distributed::reducer::|torch\.distributed\.ddp\.reducer::")
"""Operators of PyTorch's reducer around copies between gradients and their bucket."""


@dataclass(frozen=True, kw_only=True)
class AccumulateWithoutSync(Change):
    """Gradients are reduced once a step, not after every micro-batch (no_sync()).

    Where a step holds several backward passes (a thread was handed work several times) that
    each reduce the same bytes in the same order, only the reductions of the last one stay.
    With sharded gradients that needs memory for whole ones. The host's time in the operators that
    send what is no longer sent goes too, and with DistributedDataParallel's copies into and
    out of the buckets (``reducer::``) also these.
    """

    id = "accumulate-without-sync"
    title = "gradients reduced once a step"
    searched = False

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        reductions = gradient_reductions(model)
        if not reductions.any():
            return NO_GRADIENTS
        backward = _backward_pass(model)
        gone = _repeated(model, reductions, backward)
        if not gone.any():
            return Unavailable(
                "no step reduces the same gradients several times",
                "backward passes are told apart by the threads that they run on",
            )
        early = _before_the_last(model, reductions & ~gone, backward)
        copies, spans = _bucket_copies(model, early)
        rows = np.concatenate([spans_of(model, MESSAGE, np.flatnonzero(gone)), spans])
        lighter = without_spans(model, rows, assume) if rows.size else model
        return removed(lighter, gone | copies)


def _before_the_last(model: Model, kept: Mask, backward: Array) -> Mask:
    """Operations of the backward passes before the one whose reductions are kept."""
    ops = model.operations
    group = ops.gpu.astype(np.int64) * (model.num_steps + 1) + ops.step + 1
    last = np.zeros(int(group.max(initial=0)) + 1, np.int64)
    np.maximum.at(last, group[kept], backward[kept])
    early: Mask = backward < last[group]
    return early


def _bucket_copies(model: Model, early: Mask) -> tuple[Mask, Array]:
    """Which of ``early`` copy gradients into and out of buckets, and the operators that do."""
    call = model.launch_call()
    wanted, unwanted = np.zeros((2, model.calls.row.size), bool)
    wanted[call[early & (call >= 0)]] = True
    unwanted[call[~early & (call >= 0)]] = True
    rows, inside = spans_around(model, BUCKET_COPY, wanted & ~unwanted, unwanted)
    return early & (call >= 0) & inside[np.maximum(call, 0)], rows


def _backward_pass(model: Model) -> Array:
    """How many handoffs came before each operation was launched, in its step and process."""
    ops, calls = model.operations, model.calls
    place, handed = launch_place(model), handed_calls(model)
    sources = np.array([gpu.source for gpu in model.trace.gpus], np.int64)[ops.gpu]
    number = np.zeros(model.num_ops, np.int64)
    for source in np.unique(sources).tolist():
        for step in range(model.num_steps):
            mine = np.flatnonzero((sources == source) & (ops.step == step))
            own = handed[(calls.source[handed] == source) & (calls.step[handed] == step)]
            number[mine] = np.searchsorted(np.sort(calls.place[own]), place[mine], side="right")
    return number


def _repeated(model: Model, reductions: Mask, backward: Array) -> Mask:
    """Reductions of all but the last backward pass, where each reduces the same."""
    ops, said = model.operations, collectives_of(model)
    place = launch_place(model)
    gone = np.zeros(model.num_ops, bool)
    rows = np.flatnonzero(reductions)
    for gpu in np.unique(ops.gpu[rows]).tolist():
        for step in range(model.num_steps):
            mine = rows[(ops.gpu[rows] == gpu) & (ops.step[rows] == step)]
            mine = mine[np.argsort(place[mine], kind="stable")]
            passes = [mine[backward[mine] == one] for one in np.unique(backward[mine]).tolist()]
            content = {
                np.stack([ops.bytes[one], said.kind[one], said.group[one]]).tobytes()
                for one in passes
            }
            if len(passes) > 1 and len(content) == 1:
                gone[np.concatenate(passes[:-1])] = True
    return gone


CHANGES = (AccumulateWithoutSync,)
