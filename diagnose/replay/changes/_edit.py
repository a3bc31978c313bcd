"""Edits that several changes make: dependencies left out or moved, operations and calls added."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.replay.model import Array, Calls, Dependencies, Kind, Mask, Model, no_entries

EVENT_WAIT_NS = 4_000
"""From the end of an operation to the begin of one that waits for its event, where the
recording shows none: 2.7 to 5.4 us on an H200 (``diagnose.replay._lags``)."""


def scaled(values: Array, factor: npt.ArrayLike) -> Array:
    """Times multiplied, to whole ns."""
    return np.rint(values * np.asarray(factor, np.float64)).astype(np.int64)


def without_dependencies(model: Model, dropped: Mask) -> Model:
    """The same without the dependencies that ``dropped`` marks."""
    return model.with_dependencies(model.dependencies.take(~dropped))


def with_further(
    model: Model, of: Array, to: Array, lag_ns: npt.ArrayLike, kind: Kind, passes: npt.ArrayLike = 0
) -> Model:
    """The same with further dependencies of one kind, between nodes ``of`` and ``to``."""
    size = of.size
    added = Dependencies(
        of.astype(np.int64),
        to.astype(np.int64),
        np.broadcast_to(np.asarray(lag_ns, np.int64), size).copy(),
        np.full(size, kind, np.int8),
        np.broadcast_to(np.asarray(passes, np.int8), size).copy(),
    )
    return model.with_dependencies(Dependencies.joined([model.dependencies, added]))


def removed(model: Model, gone: Mask) -> Model:
    """The same without the work of some operations: they take no time and nobody waits for them.

    They stay as marks in their streams. ``gone``: shape (ops,). What they waited for is
    dropped too, and the calls that launched nothing but them take no time.
    """
    ops, dependencies = model.operations, model.dependencies
    padded = np.append(gone, np.zeros(model.calls.row.size, bool))
    call = model.launch_call()
    used, freed = np.zeros((2, model.calls.row.size), bool)
    used[call[(call >= 0) & ~gone]] = True
    freed[call[(call >= 0) & gone]] = True
    touched = padded[dependencies.from_node] | padded[dependencies.to_node]
    bare = model.with_operations(
        duration_ns=np.where(gone, 0, ops.duration_ns),
        pause_ns=np.where(gone, np.minimum(ops.pause_ns, 0), ops.pause_ns),
        match=np.where(gone, -1, ops.match),
    ).with_calls(call_ns=np.where(freed & ~used, 0, model.calls.call_ns))
    return without_dependencies(bare, touched)


def removed_dependencies_of(model: Model, ops: Mask, kinds: tuple[Kind, ...]) -> Model:
    """The same without dependencies of these kinds into and out of some operations."""
    dependencies = model.dependencies
    padded = np.append(ops, np.zeros(model.calls.row.size, bool))
    touched = padded[dependencies.from_node] | padded[dependencies.to_node]
    return without_dependencies(model, touched & np.isin(dependencies.kind, kinds))


def usual_event_lag(model: Model) -> int:
    """How soon operations follow the event that they wait for, in this model, in ns."""
    lag = model.dependencies.lag_ns[model.dependencies.kind == Kind.EVENT_WAIT]
    return max(int(np.median(lag)), 0) if lag.size else EVENT_WAIT_NS


def with_operations_like(model: Model, like: Array, **columns: npt.NDArray[Any]) -> Model:
    """The same with further operations: copies of those at ``like``, but for ``columns``.

    They are numbered from ``num_ops`` on, so that calls move up; dependencies follow.
    """
    ops, old = model.operations, model.num_ops
    names = [field.name for field in fields(ops)]
    new = {name: columns.get(name, getattr(ops, name)[like]) for name in names}
    joined = {
        name: np.concatenate([getattr(ops, name), new[name].astype(getattr(ops, name).dtype)])
        for name in names
    }
    dependencies = model.dependencies

    def moved(node: Array) -> Array:
        return np.where(node >= old, node + like.size, node)

    return replace(
        model,
        operations=replace(ops, **joined),
        dependencies=dependencies._replace(
            from_node=moved(dependencies.from_node), to_node=moved(dependencies.to_node)
        ),
        entries=no_entries(),
    )


def with_calls_added(model: Model, calls: Calls) -> Model:
    """The same with further calls; their nodes follow the old ones."""
    joined = {}
    for field in fields(model.calls):
        old, new = getattr(model.calls, field.name), getattr(calls, field.name)
        if field.name == "profiler_ns" and not old.size:
            new = new[:0]
        joined[field.name] = np.concatenate([old, new.astype(old.dtype)])
    return replace(model, calls=replace(model.calls, **joined), entries=no_entries())
