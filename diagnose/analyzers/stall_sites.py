"""Where stalls come from: the same cause in the same operator or call, summed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Analyzer, Unavailable
from diagnose.analyzers._idle_causes.causes import Cause, Confidence
from diagnose.analyzers._lanes import packed
from diagnose.analyzers.stalls import NOTABLE_NS, stalls
from diagnose.grouped_intervals import sum_by
from diagnose.schema import NO_ROW, Column, Detail, TableSchema
from diagnose.trace import Table, Trace

STALL_SITES = TableSchema(
    "stall_sites",
    "the stalls of one GPU with one cause and the same host activity, longest first",
    (
        Column("source", "int32", "index into `Trace.sources`"),
        Column("device", "int32", "device number within its process"),
        Column("cause", "int8", "why the GPU stood still", choices=Cause),
        Column("host_op", "int32", "operator or span the host was in", nullable=True, text=True),
        Column("call", "int32", "runtime call the host was in", nullable=True, text=True),
        Column("operation", "int32", "copy or fill that ran alone", nullable=True, text=True),
        Column("num_intervals", "int64", "intervals"),
        Column("length_ns", "int64", "their length together", "ns"),
        Column("longest_ns", "int64", "the longest of them", "ns"),
        Column("notable_ns", "int64", "length of those over 20 us", "ns"),
        Column("confidence", "int8", "the least sure of them", choices=Confidence),
    ),
    order=("source", "device"),
)


def stall_sites(trace: Trace) -> Table | Unavailable:
    """The stalls of each GPU summed by cause and by what the host did, longest first."""
    table = stalls(trace)
    return table if isinstance(table, Unavailable) else sites_of(trace, table)


def _names(table: Table, row: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    # One entry more: "unknown" (-1) must index something.
    names: npt.NDArray[np.int32] = np.append(table["name"], np.int32(NO_ROW))[row]
    return names


def sites_of(trace: Trace, table: Table) -> Table:
    """``stall_sites`` from a ``stalls`` table."""
    columns = {
        "source": table["source"],
        "device": table["device"],
        "cause": table["cause"],
        "host_op": _names(trace.host_ops, table["host_op_row"]),
        "call": _names(trace.launches, table["call_row"]),
        "operation": _names(trace.gpu_ops, table["memory_row"]),
    }
    key = packed(*(column.astype(np.int64) for column in columns.values()))
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    which, num = which.reshape(-1), first.size
    length = table["length_ns"]
    total, longest = sum_by(which, length, num), np.zeros(num, np.int64)
    np.maximum.at(longest, which, length)
    least = np.full(num, Confidence.HIGH, np.int8)
    np.minimum.at(least, which, table["confidence"])
    found = {name: column[first] for name, column in columns.items()} | {
        "num_intervals": np.bincount(which, minlength=num).astype(np.int64),
        "length_ns": total,
        "longest_ns": longest,
        "notable_ns": sum_by(which, np.where(length > NOTABLE_NS, length, 0), num),
        "confidence": least,
    }
    order = np.lexsort((np.arange(num), -total, found["device"], found["source"]))
    return Table(
        STALL_SITES, {name: column[order] for name, column in found.items()}, trace.strings
    )


ANALYZERS = (Analyzer("stall_sites", Detail.ALL, STALL_SITES, stall_sites),)
