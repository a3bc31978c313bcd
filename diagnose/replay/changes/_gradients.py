"""Which communication reduces gradients: found by kind and by when it is launched.

Reductions (all_reduce, reduce_scatter, reduce) count. Those of tensor parallel layers look
the same but are launched in the forward pass too, so of a group whose kind is also
launched before the backward pass of a step begins nothing counts. Where no backward pass can
be told (``_backward``) all reductions count.
"""

from __future__ import annotations

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.names import Classifier
from diagnose.replay.changes._backward import is_before_backward
from diagnose.replay.changes._which import (
    REDUCTIONS,
    collectives_of,
    is_communication,
    of_rows,
)
from diagnose.replay.model import Array, Mask, Model
from diagnose.schema import NO_ROW, NULL

FORWARD_SHARE = 0.1
"""Of the bytes of a group's reductions, launched before the backward pass: above, they are not
those of gradients. A reduced loss or counter stays far below, activations are at a half."""
NO_GRADIENTS = Unavailable("the replayed steps contain no reduction of gradients")


def gradient_reductions(model: Model) -> Mask:
    """Operations that reduce gradients. Shape (ops,)."""
    said = collectives_of(model)
    found = is_communication(model) & said.is_kind(model, *REDUCTIONS)
    rows = np.flatnonzero(found)
    if not rows.size:
        return found
    forward = is_before_backward(model)[rows]
    size = model.operations.bytes[rows]
    weight = np.where(size == NULL, model.operations.duration_ns[rows], size).astype(np.float64)
    key = np.stack([model.operations.gpu[rows], said.kind[rows], said.group[rows]], 1)
    _, label = np.unique(key, axis=0, return_inverse=True)
    label = label.reshape(-1)
    ahead = np.bincount(label, weight * forward)
    share = ahead / np.maximum(np.bincount(label, weight), 1)
    found[rows[share[label] > FORWARD_SHARE]] = False
    return found


def element_bytes(model: Model) -> Array:
    """Bytes of one element of each communication; 0: unknown. Shape (ops,)."""
    table, row = model.trace.collectives, model.operations.row
    place = np.full(len(model.trace.gpu_ops) + 1, NO_ROW, np.int64)
    place[table["gpu_op_row"]] = np.arange(len(table))
    code = of_rows(table, "dtype", place[row], NO_ROW).astype(np.int64)
    classifier, width = Classifier.load(), np.zeros(model.num_ops, np.int64)
    for one in np.unique(code[code >= 0]).tolist():
        width[code == one] = classifier.element_bytes(model.trace.strings[one]) or 0
    return width
