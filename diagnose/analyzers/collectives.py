"""Bandwidth of collectives as one rank alone sees it: lower bounds.

``algbw`` = bytes / duration and ``busbw`` = ``algbw`` x factor, as nccl-tests
define them (its ``doc/PERFORMANCE.md``). The duration is that of the kernel on
this rank, which includes waiting for late ranks; so the network was at least
this fast. Only several ranks together tell waiting from transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Analyzer
from diagnose.readers.nccl_tests import ReferencePoint
from diagnose.schema import COLLECTIVES, GPU_OPS, NO_ROW, NULL, Column, Detail, TableSchema
from diagnose.trace import Table, Trace

_GB_PER_S = "10^9 bytes/s"
_LOWER_BOUND = "a lower bound: the duration includes waiting for late ranks"

_REFERENCE = Column(
    "reference_busbw_gb_per_s",
    "float64",
    "what nccl-tests reached for this collective, size and number of ranks",
    _GB_PER_S,
    nullable=True,
)

BANDWIDTH = TableSchema(
    "collectives_bandwidth",
    "one GPU operation that is communication, with its bandwidth as this rank saw it",
    (
        Column("gpu_op_row", "int64", "row of `gpu_ops`"),
        *(GPU_OPS.column(name) for name in ("source", "device", "stream", "start_ns")),
        Column("duration_ns", "int64", "how long it ran here, waiting for peers included", "ns"),
        *(COLLECTIVES.column(name) for name in ("name", "collective", "bytes")),
        *(COLLECTIVES.column(name) for name in ("group", "group_size", "sequence")),
        Column(
            "algbw_gb_per_s",
            "float64",
            f"bytes / duration; {_LOWER_BOUND}",
            _GB_PER_S,
            nullable=True,
        ),
        Column(
            "busbw_gb_per_s",
            "float64",
            f"algbw x nccl-tests' factor for the kind and group size; {_LOWER_BOUND}",
            _GB_PER_S,
            nullable=True,
        ),
        _REFERENCE,
    ),
    order=("gpu_op_row",),
)

SIZES = TableSchema(
    "collective_sizes",
    "the collectives of one kind, size and group on one GPU",
    (
        *(GPU_OPS.column(name) for name in ("source", "device")),
        *(COLLECTIVES.column(name) for name in ("collective", "bytes", "group", "group_size")),
        Column("count", "int64", "how many"),
        Column("total_ns", "int64", "sum of their durations, waiting for peers included", "ns"),
        *(
            Column(
                f"{which}_{kind}_gb_per_s",
                "float64",
                f"{which} {kind} of those known; {_LOWER_BOUND}",
                _GB_PER_S,
                nullable=True,
            )
            for kind in ("algbw", "busbw")
            for which in ("median", "best")
        ),
        _REFERENCE,
    ),
    order=("source", "device", "total_ns", "collective", "bytes", "group", "group_size"),
)

# Factor of busbw for n ranks, from nccl-tests: (a, b) stands for a x (n-1)/n + b.
_FACTORS = {
    "all_reduce": (2.0, 0.0),
    "all_gather": (1.0, 0.0),
    "reduce_scatter": (1.0, 0.0),
    "all_to_all": (1.0, 0.0),
    "gather": (1.0, 0.0),
    "scatter": (1.0, 0.0),
    "broadcast": (0.0, 1.0),
    "reduce": (0.0, 1.0),
    "send_recv": (0.0, 1.0),
}

Floats = npt.NDArray[np.float64]


def bus_factor(collective: str | None, group_size: int | None) -> float:
    """What nccl-tests multiply algbw with to get busbw.

    0 for a group of one, which moves nothing between GPUs. NaN for an unknown
    collective, or an unknown group size where the factor depends on it.
    """
    if collective not in _FACTORS:
        return float("nan")
    scale, fixed = _FACTORS[collective]
    if group_size is None or group_size < 1:
        return float("nan") if scale else fixed
    return 0.0 if group_size == 1 else scale * (group_size - 1) / group_size + fixed


def bandwidth(trace: Trace, *, reference: Sequence[ReferencePoint] = ()) -> Table:
    """One row per communication operation, in the order of ``gpu_ops``.

    ``reference`` (see ``readers.nccl_tests``) fills ``reference_busbw_gb_per_s``.
    Bandwidths are NaN where size or kind are unknown or the duration is 0.
    """
    known = trace.collectives
    rows = known["gpu_op_row"]
    ops = {name: trace.gpu_ops[name][rows] for name in ("source", "device", "stream", "start_ns")}
    duration = trace.gpu_ops["end_ns"][rows] - ops["start_ns"]
    kinds, sizes = known["collective"], known["group_size"]
    algbw = np.full(len(known), np.nan)
    # Bytes per nanosecond are 10^9 bytes per second.
    np.divide(known["bytes"], duration, out=algbw, where=known.known("bytes") & (duration > 0))
    pairs, place = np.unique(np.stack([kinds.astype(np.int64), sizes]), axis=1, return_inverse=True)
    factors = [
        bus_factor(None if kind < 0 else trace.strings[kind], None if size == NULL else size)
        for kind, size in pairs.T.tolist()
    ]
    busbw = algbw * np.array(factors, np.float64)[place.reshape(-1)]
    taken = ("name", "collective", "bytes", "group", "group_size", "sequence")
    columns: dict[str, npt.NDArray[Any]] = {
        "gpu_op_row": rows,
        **ops,
        "duration_ns": duration,
        **{name: known[name] for name in taken},
        "algbw_gb_per_s": algbw,
        "busbw_gb_per_s": busbw,
        "reference_busbw_gb_per_s": _referenced(trace, reference),
    }
    return Table(BANDWIDTH, columns, trace.strings)


def _referenced(trace: Trace, reference: Sequence[ReferencePoint]) -> Floats:
    """The reference for every collective: linear in log size between two points, else NaN.

    A curve holds for its number of ranks: 8 GPUs in a node say nothing of 64 on
    a network. A log that does not list its ranks is taken for any group.
    """
    known = trace.collectives
    found = np.full(len(known), np.nan)
    curves = dict.fromkeys((point.collective, point.num_ranks) for point in reference)
    for kind, ranks in sorted(curves, key=lambda curve: curve[1] is None):
        best: dict[int, float] = {}
        for point in reference:
            if (point.collective, point.num_ranks) == (kind, ranks):
                best[point.bytes] = max(point.busbw_gb_per_s, best.get(point.bytes, 0.0))
        sizes = np.array(sorted(best), np.float64)
        rates = np.array([best[int(size)] for size in sizes])
        # NO_ROW would match the collectives whose kind is unknown.
        code = trace.strings.code(kind)
        mine = (known["collective"] == code) & (code != NO_ROW) & (known["bytes"] > 0)
        mine &= np.isnan(found) if ranks is None else known["group_size"] == ranks
        asked = np.log(known["bytes"][mine].astype(np.float64))
        found[mine] = np.interp(asked, np.log(sizes), rates, left=np.nan, right=np.nan)
    return found


def sizes(trace: Trace, *, reference: Sequence[ReferencePoint] = ()) -> Table:
    """Count, time and bandwidth by GPU, kind, size and group; most time first on each GPU."""
    each = bandwidth(trace, reference=reference)
    names = ("source", "device", "collective", "bytes", "group", "group_size")
    keys = np.stack([each[name].astype(np.int64) for name in names])
    groups, place = np.unique(keys, axis=1, return_inverse=True)
    place = place.reshape(-1)
    count = np.bincount(place, minlength=groups.shape[1]).astype(np.int64)
    total = np.zeros(groups.shape[1], np.int64)
    np.add.at(total, place, each["duration_ns"])
    columns: dict[str, npt.NDArray[Any]] = {
        name: groups[at].astype(SIZES.column(name).dtype) for at, name in enumerate(names)
    }
    columns |= {"count": count, "total_ns": total}
    by_group = np.argsort(place, kind="stable")
    cuts = np.cumsum(count)[:-1]
    for kind in ("algbw", "busbw"):
        parts = np.split(each[f"{kind}_gb_per_s"][by_group], cuts) if len(count) else []
        parts = [part[~np.isnan(part)] for part in parts]
        for which, of in (("median", np.median), ("best", np.max)):
            values = [of(part) if part.size else np.nan for part in parts]
            columns[f"{which}_{kind}_gb_per_s"] = np.array(values, np.float64)
    first = by_group[np.concatenate([[0], cuts])] if len(count) else by_group
    columns[_REFERENCE.name] = each[_REFERENCE.name][first]
    last_first = [columns[name] for name in reversed(names[2:])]
    order = np.lexsort((*last_first, -total, columns["device"], columns["source"]))
    return Table(SIZES, columns, trace.strings).take(order)


ANALYZERS = (
    Analyzer("collectives", Detail.GPU, BANDWIDTH, bandwidth),
    Analyzer("collective_sizes", Detail.GPU, SIZES, sizes),
)
