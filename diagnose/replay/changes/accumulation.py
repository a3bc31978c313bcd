"""Gradients accumulated over micro-batches, and reduced once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.replay.change import Assume, Change
from diagnose.replay.changes._edit import removed
from diagnose.replay.changes._gradients import NO_GRADIENTS, gradient_reductions
from diagnose.replay.changes._which import collectives_of, handed_calls, launch_place
from diagnose.replay.model import Array, Mask, Model


@dataclass(frozen=True, kw_only=True)
class AccumulateWithoutSync(Change):
    """Gradients are reduced once a step, not after every micro-batch (no_sync()).

    Where a step holds several backward passes (a thread was handed work several times) that
    each reduce the same bytes in the same order, only the reductions of the last one stay.
    With sharded gradients that needs memory for whole ones.
    """

    id = "accumulate-without-sync"
    title = "gradients reduced once a step"
    searched = False

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        reductions = gradient_reductions(model)
        if not reductions.any():
            return NO_GRADIENTS
        gone = _repeated(model, reductions, _backward_pass(model))
        if not gone.any():
            return Unavailable(
                "no step reduces the same gradients several times",
                "backward passes are told apart by the threads that they run on",
            )
        return removed(model, gone)


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
