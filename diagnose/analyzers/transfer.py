"""What the links reached once waiting for late ranks is taken out, by message size.

A bandwidth from a kernel's whole duration falls with every late rank. Here the
time is the transfer: the shortest duration of the same collective over ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diagnose.analysis import Analyzer, Unavailable
from diagnose.analyzers._waits import analyse
from diagnose.analyzers.ranks import nothing_matched, waits_table
from diagnose.errors import UsageError
from diagnose.schema import NULL, Column, Detail, TableSchema
from diagnose.trace import Table, Trace

TRANSFER_BANDWIDTH = TableSchema(
    "transfer_bandwidth",
    "the collectives of one group, kind and size, by their transfer part",
    (
        Column("group", "int32", "process group name", nullable=True, text=True),
        Column("group_size", "int64", "ranks in the group", nullable=True),
        Column("collective", "int32", "the collective, as `all_reduce`", nullable=True, text=True),
        Column("bytes", "int64", "message size as nccl-tests counts it", "bytes"),
        Column("num_collectives", "int64", "collectives, each counted once for all ranks"),
        Column("num_incomplete", "int64", "of these, with ranks missing: transfer an upper bound"),
        Column("median_transfer_ns", "float64", "median transfer", "ns"),
        Column("best_busbw_gb_per_s", "float64", "fastest bus bandwidth", "GB/s", nullable=True),
        Column("median_busbw_gb_per_s", "float64", "median bus bandwidth", "GB/s", nullable=True),
        Column(
            "of_best_pct",
            "float64",
            "median over the group's best for this size",
            "%",
            nullable=True,
        ),
        Column(
            "of_run_best_pct",
            "float64",
            "median over the best of any group of the run for this collective and size",
            "%",
            nullable=True,
        ),
        Column(
            "of_link_pct", "float64", "median over the nominal link rate given", "%", nullable=True
        ),
    ),
    order=("collective", "bytes", "group", "group_size"),
)


def transfer_bandwidth(trace: Trace, *, link_gb_per_s: float | None = None) -> Table | Unavailable:
    """Bus bandwidth of the transfer part against message size.

    ``link_gb_per_s``: nominal rate of the link, 10^9 bytes/s in one direction; if not
    given, the least that an environment file of the recording names under this key.
    Unavailable where no collective with a known size was matched across GPUs.
    """
    if link_gb_per_s is not None and not link_gb_per_s > 0:
        raise UsageError(
            f"link_gb_per_s={link_gb_per_s!r} is no rate", hint="give 10^9 bytes/s, as 450"
        )
    analysed = analyse(trace)
    if not analysed.matches.num_matches:
        return nothing_matched(trace)
    table = waits_table(trace, analysed)
    _, first = np.unique(table["match"], return_index=True)
    once = table.take(first)
    once = once.take(once.known("bytes") & (once["transfer_ns"] > 0))
    if not len(once):
        return Unavailable(
            "no matched collective says its size",
            "record with record_shapes=True and PyTorch 2.1 or newer",
        )
    return _by_size(trace, once, link_gb_per_s or _link_of_environment(trace))


def _link_of_environment(trace: Trace) -> float | None:
    """The least ``link_gb_per_s`` that an environment file names: the slowest link decides."""
    named = [source.environment.get("link_gb_per_s") for source in trace.sources]
    rates = [float(rate) for rate in named if isinstance(rate, (int, float)) and rate > 0]
    return min(rates, default=None)


def _by_size(trace: Trace, once: Table, link: float | None) -> Table:
    names = ("collective", "bytes", "group", "group_size")
    key = np.stack([once[name].astype(np.int64) for name in names], 1)
    distinct, inverse = np.unique(key, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    order = np.argsort(inverse, kind="stable")
    pieces = np.split(order, np.cumsum(np.bincount(inverse))[:-1])
    busbw = once["busbw_gb_per_s"]
    best = np.array([busbw[rows].max() for rows in pieces])
    median = np.array([np.median(busbw[rows]) for rows in pieces])
    _, size = np.unique(distinct[:, :2], axis=0, return_inverse=True)
    run_best = np.full(int(size.max()) + 1, np.nan)
    np.fmax.at(run_best, size.reshape(-1), best)
    positive = np.where(best > 0, best, np.nan)
    run = run_best[size.reshape(-1)]
    columns: dict[str, Any] = {name: distinct[:, i] for i, name in enumerate(names)}
    columns |= {
        "num_collectives": np.array([len(rows) for rows in pieces]),
        "num_incomplete": np.array([np.count_nonzero(~once["complete"][rows]) for rows in pieces]),
        "median_transfer_ns": np.array([np.median(once["transfer_ns"][rows]) for rows in pieces]),
        "best_busbw_gb_per_s": best,
        "median_busbw_gb_per_s": median,
        "of_best_pct": 100 * median / positive,
        "of_run_best_pct": 100 * median / np.where(run > 0, run, np.nan),
        "of_link_pct": 100 * median / (np.nan if link is None else link),
    }
    columns["group_size"] = np.where(distinct[:, 3] == NULL, NULL, distinct[:, 3])
    typed = {c.name: columns[c.name].astype(c.dtype) for c in TRANSFER_BANDWIDTH.columns}
    return Table(TRANSFER_BANDWIDTH, typed, trace.strings)


ANALYZERS = (Analyzer("transfer_bandwidth", Detail.GPU, TRANSFER_BANDWIDTH, transfer_bandwidth),)
