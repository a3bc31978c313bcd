"""The optimizer's many small kernels as one pass over memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.replay.change import Assume, Change
from diagnose.replay.changes._edit import scaled
from diagnose.replay.changes._optimizer_steps import in_optimizer
from diagnose.replay.changes._which import is_compute, named, stream_order
from diagnose.replay.model import Kind, Model

TRAFFIC = (1.0, 0.45, 0.35)
"""Memory traffic after over before (least, likely, most gain), by counting passes over arrays as
large as the parameters in PyTorch's optimizers: Adam with ``foreach`` reads and writes about
20 of them, fused 7 (0.35); SGD with momentum 11, fused 5 (0.45). 1: as many as before."""


@dataclass(frozen=True, kw_only=True)
class FusedOptimizer(Change):
    """The optimizer step is one fused pass (fused=True) instead of many kernels.

    Kernels launched within ``Optimizer.step`` follow each other without pauses, launched
    by the first of their calls; their durations shrink with the memory traffic to 0.45 (least
    gain: not at all; most: 0.35): temporary arrays are no longer written and read. Of two or
    more kernels only; an optimizer that is fused already is left alone.
    """

    id = "fused-optimizer"
    title = "optimizer fused"
    effort = 1

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        inside = in_optimizer(model)
        if not inside.any():
            return Unavailable(
                "no optimizer step was recorded on the host",
                "record with CPU activities: PyTorch marks each `Optimizer.step`",
            )
        ops, calls = model.operations, model.calls
        chosen = inside & is_compute(model)
        if (chosen & named(model, "fused")).any() or chosen.sum() < 2 * model.num_steps:
            return Unavailable("the optimizer is fused already")
        _, before = stream_order(model)
        follows = chosen & (before >= 0) & np.append(chosen, False)[before]
        follows &= (before >= 0) & (ops.step == np.append(ops.step, -1)[before])
        call = model.launch_call()
        freed = np.zeros(calls.row.size, bool)
        freed[call[follows & (call >= 0)]] = True
        dependencies = model.dependencies
        launches = dependencies.kind == Kind.LAUNCH
        into = np.append(follows, np.zeros(calls.row.size, bool))[dependencies.to_node]
        kept = ~(launches & into)
        return (
            model.with_operations(
                duration_ns=np.where(
                    chosen, scaled(ops.duration_ns, TRAFFIC[assume]), ops.duration_ns
                ),
                pause_ns=np.where(follows, np.minimum(ops.pause_ns, 0), ops.pause_ns),
            )
            .with_calls(
                work_ns=np.where(freed, np.minimum(calls.work_ns, 0), calls.work_ns),
                call_ns=np.where(freed, 0, calls.call_ns),
            )
            .with_dependencies(dependencies.take(kept))
        )


CHANGES = (FusedOptimizer,)
