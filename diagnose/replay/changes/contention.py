"""What compute and communication would take if neither slowed the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.replay.change import Assume, Change
from diagnose.replay.changes._slowdown import beside_ns, of_operations, slowdowns
from diagnose.replay.changes._which import NO_COMMUNICATION, is_communication
from diagnose.replay.model import Model


@dataclass(frozen=True, kw_only=True)
class NoContention(Change):
    """Compute and communication run beside each other as fast as alone.

    The part of each kernel that ran beside communication is divided by the slowdown that
    ``diagnose contention`` measured for its family (else for all), that of each transfer
    beside compute by the slowdown of its kind of collective. The ends are those of the
    measured intervals. What moves elsewhere when the step gets shorter is not slowed again.
    """

    id = "no-contention"
    title = "no slowdown by overlap"
    searched = False

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        if not is_communication(model).any():
            return NO_COMMUNICATION
        known = slowdowns(model.trace)
        if not known.by_family and known.overall is None and not known.by_collective:
            return Unavailable(f"contention could not be measured: {known.because}")
        duration = model.operations.duration_ns
        # No more than what it still takes: an earlier change may have shortened it.
        beside = np.minimum(beside_ns(model), duration)
        factor = of_operations(model, assume)
        saved = beside * (1 - 1 / factor)
        return model.with_operations(duration_ns=duration - np.rint(saved).astype(np.int64))


CHANGES = (NoContention,)
