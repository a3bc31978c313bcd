"""Changes of how long collectives take, without moving them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.analyzers.collectives import bus_factor
from diagnose.replay.change import Assume, Change
from diagnose.replay.changes._collective_cost import NOT_FITTED, latencies
from diagnose.replay.changes._edit import scaled
from diagnose.replay.changes._gradients import NO_GRADIENTS, element_bytes, gradient_reductions
from diagnose.replay.changes._which import NO_COMMUNICATION, collectives_of, is_communication
from diagnose.replay.model import Mask, Model
from diagnose.schema import NULL


def chosen_collectives(model: Model, kind: str | None, group: str | None) -> Mask | Unavailable:
    """Communication of one kind (``all_reduce``) and process group; None: of any."""
    found = is_communication(model)
    if not found.any():
        return NO_COMMUNICATION
    said, strings = collectives_of(model), model.trace.strings
    if kind is not None:
        found = found & said.is_kind(model, kind)
    if group is not None:
        code = strings.code(group)
        found = found & (said.group == code) & (code >= 0)
    if found.any():
        return found
    present = is_communication(model)
    kinds = sorted({strings[code] for code in np.unique(said.kind[present]).tolist() if code >= 0})
    groups = sorted(
        {strings[code] for code in np.unique(said.group[present]).tolist() if code >= 0}
    )
    return Unavailable(
        f"no communication is of kind {kind or 'any'} and group {group or 'any'}",
        f"recorded are the kinds {', '.join(kinds) or 'unknown'}; the groups "
        f"{', '.join(groups) or 'unknown'}",
    )


@dataclass(frozen=True, kw_only=True)
class FasterCollectives(Change):
    """Collectives are ``factor`` times as fast, or reach a bus bandwidth of ``bus_gb_per_s``.

    Only the transfer is shortened; waiting for late ranks stays. With ``bus_gb_per_s``
    (10^9 bytes/s as nccl-tests count it) a transfer takes latency + bytes x bus factor /
    bandwidth; the latency is fitted to the recording. ``kind`` (all_reduce...) and ``group``
    (name of the process group) choose which; contention is taken to stay as it is.
    """

    id = "faster-collectives"
    title = "collectives faster"
    searched = False
    factor: float = 2.0
    bus_gb_per_s: float | None = None
    kind: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        if self.factor <= 0 or (self.bus_gb_per_s is not None and self.bus_gb_per_s <= 0):
            raise ValueError("factor and bus_gb_per_s have to be above 0")
        if self.bus_gb_per_s is not None and self.factor != type(self).factor:
            raise ValueError("give factor or bus_gb_per_s, not both")

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        chosen = chosen_collectives(model, self.kind, self.group)
        if isinstance(chosen, Unavailable):
            return chosen
        duration = model.operations.duration_ns
        if self.bus_gb_per_s is None:
            faster = scaled(duration, 1 / self.factor)
            return model.with_operations(duration_ns=np.where(chosen, faster, duration))
        return self._at_bandwidth(model, assume, chosen, self.bus_gb_per_s)

    def _at_bandwidth(
        self, model: Model, assume: Assume, chosen: Mask, bus_gb_per_s: float
    ) -> Model | Unavailable:
        ops, said = model.operations, collectives_of(model)
        strings = model.trace.strings
        pairs = np.stack([said.kind[chosen], said.group_size[chosen]], 1)
        distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
        factors = np.full(model.num_ops, np.nan)
        factors[chosen] = np.array(
            [
                bus_factor(
                    strings[kind] if kind >= 0 else None, None if size == NULL else int(size)
                )
                for kind, size in distinct.tolist()
            ]
        )[inverse.reshape(-1)]
        known = chosen & (ops.bytes != NULL) & (ops.bytes >= 0) & np.isfinite(factors)
        if not known.any():
            return Unavailable(
                "the size or kind of these collectives is not known, so no bandwidth can be set",
                "record with record_shapes=True and PyTorch 2.1 or newer, or give factor=",
            )
        latency = latencies(model)
        moved = np.where(known, ops.bytes, 0) * np.nan_to_num(factors) / bus_gb_per_s
        new = np.rint(latency.where_many_cost(assume) + moved).astype(np.int64)
        changed = model.with_operations(duration_ns=np.where(known, new, ops.duration_ns))
        if not latency.fitted:
            changed = changed.remarked(NOT_FITTED)
        unknown = int((chosen & ~known).sum())
        if unknown:
            changed = changed.remarked(
                f"{unknown} of {int(chosen.sum())} collectives have no known size or kind: they "
                "keep their duration."
            )
        return changed


@dataclass(frozen=True, kw_only=True)
class NarrowGradients(Change):
    """Gradients are reduced in half the bytes: bfloat16 instead of float32.

    The part of each gradient reduction that grows with bytes is halved, its latency stays.
    Gradient reductions are all_reduce and reduce_scatter launched from the backward pass on.
    Assumes that the training allows it; converting costs nothing here.
    """

    id = "narrow-gradients"
    title = "gradients reduced in half the bytes"
    effort = 1
    searched = False

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        chosen = gradient_reductions(model)
        if not chosen.any():
            return NO_GRADIENTS
        width = element_bytes(model)
        if (width[chosen] <= 2).all() and (width[chosen] > 0).all():
            return Unavailable("gradients are reduced in elements of 2 bytes or less already")
        chosen &= (width > 2) | (width <= 0)
        ops, latency = model.operations, latencies(model)
        fixed = np.minimum(latency.where_many_cost(assume), ops.duration_ns)
        new = np.rint(fixed + (ops.duration_ns - fixed) / 2).astype(np.int64)
        halved = np.where(chosen & (ops.bytes != NULL), ops.bytes // 2, ops.bytes)
        changed = model.with_operations(
            duration_ns=np.where(chosen, new, ops.duration_ns), bytes=halved
        )
        return changed if latency.fitted else changed.remarked(NOT_FITTED)


@dataclass(frozen=True, kw_only=True)
class DelayCollective(Change):
    """Collectives of a ``kind`` and ``group`` begin ``us`` microseconds later.

    Shows how much room they have: as long as the step stays the same, nothing waits for
    them. What each waits for, and the pause before it on its stream, grow by that time.
    """

    id = "delay-collective"
    title = "collectives begin later"
    searched = False
    us: float = 100.0
    kind: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        if self.us < 0:
            raise ValueError("us has to be 0 or more")

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        chosen = chosen_collectives(model, self.kind, self.group)
        if isinstance(chosen, Unavailable):
            return chosen
        late = round(1000 * self.us)
        dependencies, pause = model.dependencies, model.operations.pause_ns
        into = np.append(chosen, np.zeros(model.calls.row.size, bool))[dependencies.to_node]
        lag = np.where(into, dependencies.lag_ns + late, dependencies.lag_ns)
        return model.with_operations(
            pause_ns=np.where(chosen, pause + late, pause)
        ).with_dependencies(dependencies._replace(lag_ns=lag))


CHANGES = (FasterCollectives, NarrowGradients, DelayCollective)
