"""Which operations and calls of a model a change is about: by class, name, collective, call."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Unavailable
from diagnose.names import Classifier
from diagnose.replay.model import Array, Kind, Mask, Model
from diagnose.schema import NO_ROW, NULL, Activity
from diagnose.schema import Kind as OpKind
from diagnose.trace import Table

NO_COMMUNICATION = Unavailable("the replayed steps contain no communication")
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")


def of_rows(table: Table, column: str, row: Array, unknown: int) -> npt.NDArray[Any]:
    """A column of a trace's table at the rows of a model; ``unknown`` where there is no row."""
    values = table[column]
    if not len(values):
        return np.full(row.size, unknown, values.dtype)
    return np.where(row >= 0, values[np.maximum(row, 0)], unknown)


def is_communication(model: Model) -> Mask:
    """Operations that are communication. Shape (ops,)."""
    found: Mask = model.operations.activity == Activity.COMMUNICATION
    return found


def is_compute(model: Model) -> Mask:
    """Operations that compute. Shape (ops,)."""
    found: Mask = model.operations.activity == Activity.COMPUTE
    return found


class Collectives(NamedTuple):
    """Of each operation, codes into the trace's strings; NO_ROW: unknown, or no communication."""

    kind: Array
    group: Array
    group_size: Array
    """NULL: unknown."""

    def is_kind(self, model: Model, *kinds: str) -> Mask:
        """Operations that are one of these collectives (``all_reduce``...)."""
        codes = [model.trace.strings.code(one) for one in kinds]
        return np.isin(self.kind, [code for code in codes if code >= 0])


def collectives_of(model: Model) -> Collectives:
    """What each operation of the model is as communication."""
    table, row = model.trace.collectives, model.operations.row
    place = np.full(len(model.trace.gpu_ops) + 1, NO_ROW, np.int64)
    place[table["gpu_op_row"]] = np.arange(len(table))
    at = place[row]

    def column(name: str, unknown: int) -> Array:
        return of_rows(table, name, at, unknown).astype(np.int64)

    return Collectives(
        column("collective", NO_ROW), column("group", NO_ROW), column("group_size", NULL)
    )


def name_codes(model: Model) -> Array:
    """The code of each operation's name; NO_ROW: unknown."""
    return of_rows(model.trace.gpu_ops, "name", model.operations.row, NO_ROW).astype(np.int64)


def named(model: Model, *parts: str) -> Mask:
    """Operations in whose name any of ``parts`` stands; case and blanks do not count."""
    wanted = [part.lower().replace(" ", "") for part in parts]
    hit = model.trace.strings.where(
        lambda text: any(part in text.lower().replace(" ", "") for part in wanted)
    )
    return np.append(hit, False)[name_codes(model)]


@cache
def _classifier() -> Classifier:
    return Classifier.load()


def is_family(model: Model, *families: str) -> Mask:
    """Compute operations of one of these families of ``diagnose.names``."""
    codes = name_codes(model)
    compute = is_compute(model)
    classifier, strings = _classifier(), model.trace.strings
    hit = np.zeros(len(strings) + 1, bool)
    for code in np.unique(codes[compute]).tolist():
        hit[code] = code >= 0 and classifier.family(strings[code]) in families
    return compute & hit[codes]


def known_families() -> tuple[str, ...]:
    """The families that a compute kernel can be of."""
    return tuple(sorted({one.family for one in _classifier().patterns.families if one.family}))


def is_copy(model: Model) -> Mask:
    """Operations that are copies (not fills). Shape (ops,)."""
    kind = of_rows(model.trace.gpu_ops, "kind", model.operations.row, NO_ROW)
    found: Mask = kind == OpKind.MEMCPY
    return found


def is_from_host(model: Model) -> Mask:
    """Copies from the host to the GPU."""
    return is_copy(model) & named(model, "htod", "hosttodevice")


def is_pageable(model: Model) -> Mask:
    """Copies between the GPU and pageable host memory, either way."""
    return is_copy(model) & named(model, "pageable")


def call_kinds(model: Model) -> npt.NDArray[Any]:
    """``schema.Call`` of each call; NO_ROW: unknown. Shape (calls,)."""
    return of_rows(model.trace.launches, "call", model.calls.row, NO_ROW)


def next_call(model: Model) -> Array:
    """For each call the next one on its thread; NO_ROW: none. Shape (calls,)."""
    calls = model.calls
    order = np.lexsort((calls.place, calls.thread))
    following = np.full(calls.row.size, NO_ROW, np.int64)
    same = calls.thread[order][1:] == calls.thread[order][:-1]
    following[order[:-1][same]] = order[1:][same]
    return following


def stream_order(model: Model) -> tuple[Array, Array]:
    """Operations by (stream, place); for each the one before it on its stream (NO_ROW: none)."""
    ops = model.operations
    order = np.lexsort((ops.place, ops.stream))
    before = np.full(order.size, NO_ROW, np.int64)
    same = ops.stream[order][1:] == ops.stream[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    return order, before


def next_where(model: Model, wanted: Mask) -> Array:
    """For each operation the next one of its stream that is ``wanted``; NO_ROW: none follows."""
    order, _ = stream_order(model)
    num = order.size
    at = np.append(np.where(wanted[order], np.arange(num), num), num)
    following = np.minimum.accumulate(at[::-1])[::-1][1:]
    return _on_stream(model, order, following)


def last_where(model: Model, wanted: Mask) -> Array:
    """For each operation the last one before it on its stream that is ``wanted``; NO_ROW: none."""
    order, _ = stream_order(model)
    at = np.where(wanted[order], np.arange(order.size), NO_ROW)
    before = np.append(NO_ROW, np.maximum.accumulate(at)[:-1]) if order.size else at
    return _on_stream(model, order, before)


def _on_stream(model: Model, order: Array, at: Array) -> Array:
    """Of each operation the one at a place of ``order``, if it is of its stream."""
    stream, num = model.operations.stream[order], order.size
    inside = (at >= 0) & (at < num)
    safe = np.where(inside, at, 0)
    found = np.full(num, NO_ROW, np.int64)
    if num:
        found[order] = np.where(inside & (stream[safe] == stream), order[safe], NO_ROW)
    return found


def launch_place(model: Model) -> npt.NDArray[np.float64]:
    """When each operation was launched, as the order of calls; its own place where unknown."""
    call = model.launch_call()
    places = np.append(model.calls.place, 0.0)
    return np.where(call >= 0, places[call], model.operations.place)


def handed_calls(model: Model) -> Array:
    """Calls that begin what another thread handed over, as the backward pass. Sorted, unique."""
    dependencies = model.dependencies
    return np.unique(dependencies.to_node[dependencies.kind == Kind.HANDOFF]) - model.num_ops
