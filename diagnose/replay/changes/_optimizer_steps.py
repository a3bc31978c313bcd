"""Which operations the optimizer launched: by PyTorch's marks ``Optimizer.step#AdamW.step``."""

from __future__ import annotations

import numpy as np

from diagnose.replay.changes._once import once_per_trace
from diagnose.replay.model import Array, Mask, Model
from diagnose.trace import Trace

_MARK = "Optimizer.step#"


@once_per_trace
def _marks(trace: Trace) -> dict[int, tuple[Array, Array]]:
    """Begin and end of each optimizer step, by source; sorted."""
    ops = trace.host_ops
    hit = trace.strings.where(lambda text: text.startswith(_MARK))
    rows = np.flatnonzero(hit[ops["name"]]) if len(ops) else np.zeros(0, np.int64)
    found = {}
    for source in np.unique(ops["source"][rows]).tolist() if rows.size else []:
        own = rows[ops["source"][rows] == source]
        own = own[np.argsort(ops["start_ns"][own], kind="stable")]
        found[source] = ops["start_ns"][own], ops["end_ns"][own]
    return found


def calls_in_optimizer(model: Model) -> Mask:
    """Calls made within an optimizer step of their process. Shape (calls,)."""
    calls, launches = model.calls, model.trace.launches
    found = np.zeros(calls.row.size, bool)
    for source, (begin, end) in _marks(model.trace).items():
        mine = np.flatnonzero((calls.source == source) & (calls.row >= 0))
        start = launches["start_ns"][calls.row[mine]]
        at = np.searchsorted(begin, start, side="right") - 1
        found[mine] = (at >= 0) & (start < np.maximum.accumulate(end)[np.maximum(at, 0)])
    return found


def in_optimizer(model: Model) -> Mask:
    """Operations launched within an optimizer step. Shape (ops,)."""
    call = model.launch_call()
    found: Mask = np.append(calls_in_optimizer(model), False)[call]
    return found
