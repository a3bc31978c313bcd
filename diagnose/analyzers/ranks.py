"""Waiting and moving bytes, told apart; and what each rank cost the others.

A collective's kernel starts when its own rank arrives and spins until the last
one is there. For every matched collective, on one clock:

- arrival: the kernel's start; arrival skew: last arrival less first;
- transfer: the shortest duration over ranks; wait: own duration less transfer;
- the straggler is the last to arrive, and has the shortest kernel;
- lead: how far the last is behind the next slowest: what the others lost to it
  alone. Part of it may be inherited: time that this rank itself spent waiting
  in another group since their last meeting.

What a late arrival costs at most is the part of the others' wait beside which
they computed nothing. On one stream the waits of successive collectives never
overlap, so summing them counts no nanosecond twice.

Where ranks are missing, a transfer is an upper bound, and waits, skews and leads
are lower bounds: ``complete`` says which.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diagnose.analysis import Analyzer, Unavailable
from diagnose.analyzers._lanes import packed
from diagnose.analyzers._late import Lateness, lateness
from diagnose.analyzers._waits import Analysed, Waits, analyse, compute_of
from diagnose.analyzers.collectives import bus_factor
from diagnose.analyzers.matching import matched_table
from diagnose.intervals import Array, union_length
from diagnose.schema import NO_ROW, NULL, Column, Detail, TableSchema
from diagnose.trace import Table, Trace

_GPU = (
    Column("source", "int32", "index into `Trace.sources`"),
    Column("device", "int32", "device number within its process"),
    Column("rank", "int64", "rank of the source", nullable=True),
)
RANK_WAITS = TableSchema(
    "rank_waits",
    "one GPU's part in one collective that was matched across ranks",
    (
        Column("match", "int64", "number of the collective; the same on all its GPUs"),
        Column("gpu_op_row", "int64", "row of `gpu_ops`"),
        *_GPU,
        Column("step_number", "int64", "number of the step", nullable=True),
        Column("collective", "int32", "the collective, as `all_reduce`", nullable=True, text=True),
        Column("group", "int32", "process group name", nullable=True, text=True),
        Column("bytes", "int64", "message size as nccl-tests counts it", "bytes", nullable=True),
        Column("group_size", "int64", "ranks in the group", nullable=True),
        Column("num_matched", "int64", "GPUs in this match"),
        Column("complete", "bool", "whether all ranks of the group are in the match"),
        Column("arrival_ns", "int64", "start, on the reference's clock", "ns", nullable=True),
        Column("arrival_skew_ns", "int64", "last arrival less first", "ns", nullable=True),
        Column("late_ns", "int64", "own arrival less the first", "ns", nullable=True),
        Column("duration_ns", "int64", "own duration", "ns"),
        Column("transfer_ns", "int64", "shortest duration over ranks", "ns"),
        Column("wait_ns", "int64", "own duration less transfer", "ns"),
        Column("exposed_wait_ns", "int64", "wait with no compute beside it on this GPU", "ns"),
        Column(
            "blocked_ns",
            "int64",
            "exposed wait that the last rank's own lateness caused, at most",
            "ns",
        ),
        Column("is_last", "bool", "last to arrive, by more than the clocks are uncertain"),
        Column("lead_ns", "int64", "if last: how far behind the next slowest", "ns", nullable=True),
        Column(
            "inherited_ns",
            "int64",
            "if last: the part of that spent waiting in other groups",
            "ns",
            nullable=True,
        ),
        Column("uncertainty_ns", "float64", "how well arrivals of this match compare", "ns"),
        Column(
            "algbw_gb_per_s", "float64", "bytes over transfer; 10^9 bytes/s", "GB/s", nullable=True
        ),
        Column(
            "busbw_gb_per_s", "float64", "the same times nccl-tests' factor", "GB/s", nullable=True
        ),
    ),
    order=("match", "source", "device"),
)
RANKS = TableSchema(
    "ranks",
    "one GPU, compared with the others of its groups",
    (
        *_GPU,
        Column("num_collectives", "int64", "collectives of groups matched (no sends, receives)"),
        Column("num_incomplete", "int64", "of these, with ranks missing in the trace"),
        Column("num_last", "int64", "in which it came last, beyond the clocks' uncertainty"),
        Column("num_steps", "int64", "steps that these collectives belong to"),
        Column("late_ns", "int64", "sum of its own leads over the next slowest", "ns"),
        Column("inherited_ns", "int64", "sum of leads that it had itself waited elsewhere", "ns"),
        Column("cost_ns", "int64", "exposed wait it caused to another GPU, at most", "ns"),
        Column("cost_per_step_ns", "float64", "the same per step", "ns", nullable=True),
        Column("cost_pct", "float64", "the same per step time", "%", nullable=True),
        Column(
            "behind_per_step_ns",
            "float64",
            "its own exposed lateness against the middle rank, per step",
            "ns",
            nullable=True,
        ),
        Column("wait_ns", "int64", "its own wait for others", "ns"),
        Column("exposed_wait_ns", "int64", "of that, with no compute beside it", "ns"),
        Column("transfer_ns", "int64", "transfer part of its collectives", "ns"),
        Column("pair_wait_ns", "int64", "exposed wait in its sends and receives", "ns"),
        Column("compute_ns", "int64", "union of its compute", "ns"),
        Column("busy_ns", "int64", "union of all its GPU work", "ns"),
        Column("compute_ratio", "float64", "its compute over the median rank's", nullable=True),
        Column("step_ns", "float64", "median step time over all GPUs", "ns", nullable=True),
    ),
    order=("rank", "source", "device"),
)


def rank_waits(trace: Trace) -> Table | Unavailable:
    """Arrival, wait and transfer of every collective on every rank.

    Bandwidths come from the transfer part alone: algbw = bytes / transfer,
    busbw = algbw times nccl-tests' factor of the collective and group size.
    Unavailable where no collective was matched across GPUs.
    """
    analysed = analyse(trace)
    if not analysed.matches.num_matches:
        return nothing_matched(trace)
    return waits_table(trace, analysed)


def nothing_matched(trace: Trace) -> Unavailable:
    """Why there is nothing across ranks."""
    if not trace.gpus:
        return Unavailable("no GPU work was recorded", "record with ProfilerActivity.CUDA")
    if len(trace.gpus) < 2:
        return Unavailable("there is one GPU only", "give the traces of all ranks together")
    return Unavailable(
        "no collective of one GPU was matched with another's",
        "`unmatched_collectives` says why; record the same steps on all ranks",
    )


def waits_table(trace: Trace, analysed: Analysed) -> Table:
    """The table of ``rank_waits``."""
    matched, waits = matched_table(trace, analysed.matches).take(analysed.waits.row), analysed.waits
    match, entries = waits.match, np.arange(len(waits.match))
    is_last = (entries == waits.last[match]) & waits.told_apart[match]
    comparable = waits.comparable[match]
    group_size = matched["group_size"]
    algbw, busbw = _bandwidth(trace, matched, waits)

    def where(mask: Any, values: Array) -> Array:
        return np.where(mask, values, NULL)

    columns: dict[str, Any] = {
        name: matched[name]
        for name in (
            *("gpu_op_row", "source", "device", "rank", "step_number", "collective"),
            *("group", "bytes", "group_size", "num_matched"),
        )
    }
    columns |= {
        "match": match,
        "complete": (group_size != NULL) & (waits.num_matched[match] >= group_size),
        "arrival_ns": where(comparable, waits.arrival),
        "arrival_skew_ns": where(comparable, (waits.last_arrival - waits.first_arrival)[match]),
        "late_ns": where(comparable, waits.arrival - waits.first_arrival[match]),
        "duration_ns": waits.duration,
        "transfer_ns": waits.transfer,
        "wait_ns": waits.wait,
        "exposed_wait_ns": waits.exposed,
        "blocked_ns": waits.blocked,
        "is_last": is_last,
        "lead_ns": where(is_last, waits.lead[match]),
        "inherited_ns": where(is_last, waits.inherited[match]),
        "uncertainty_ns": waits.uncertainty[match],
        "algbw_gb_per_s": algbw,
        "busbw_gb_per_s": busbw,
    }
    order = np.lexsort((columns["device"], columns["source"], match))
    typed = {c.name: columns[c.name].astype(c.dtype)[order] for c in RANK_WAITS.columns}
    return Table(RANK_WAITS, typed, trace.strings)


def _bandwidth(trace: Trace, matched: Table, waits: Waits) -> tuple[Any, Any]:
    known = matched.known("bytes") & (waits.transfer > 0)
    algbw = np.full(len(matched), np.nan)
    algbw[known] = matched["bytes"][known] / waits.transfer[known]
    kind = [matched["collective"].astype(np.int64), matched["group_size"]]
    _, first, inverse = np.unique(packed(*kind), return_index=True, return_inverse=True)
    distinct = np.stack(kind, 1)[first]
    factor = [
        bus_factor(
            None if code == NO_ROW else trace.strings[code], None if size == NULL else int(size)
        )
        for code, size in distinct.tolist()
    ]
    return algbw, algbw * np.array(factor, np.float64)[inverse]


def ranks(trace: Trace) -> Table | Unavailable:
    """Each GPU against the others: how often last, what that cost, what it waited itself.

    ``late_ns`` is lateness at arrival; ``cost_ns`` what of it any other GPU waited
    without computing: an upper bound of the loss. Unavailable where no collective
    was matched across GPUs.
    """
    analysed = analyse(trace)
    if not analysed.matches.num_matches:
        return nothing_matched(trace)
    return ranks_table(trace, analysed, lateness(trace, analysed))


def ranks_table(trace: Trace, analysed: Analysed, late: Lateness) -> Table:
    """The table of ``ranks``."""
    waits, num = analysed.waits, len(trace.gpus)
    of_group = late.of_group[waits.match]
    size = np.append(analysed.matches.lanes.group_size, NULL)[
        analysed.matches.lanes.lane[waits.row]
    ]
    incomplete = (size == NULL) | (waits.num_matched[waits.match] < size)
    last_gpu, counted = waits.gpu[waits.last], late.of_group & waits.told_apart

    def total(values: Array, mask: Any) -> Array:
        out = np.zeros(num, np.int64)
        np.add.at(out, waits.gpu[mask], values[mask])
        return out

    def over_matches(values: Array) -> Array:
        out = np.zeros(num, np.int64)
        np.add.at(out, last_gpu[counted], values[counted])
        return out

    compute = np.array([_length(compute_of(trace, number)) for number in range(num)], np.int64)
    middle = float(np.median(compute))
    gpus = trace.gpus
    columns: dict[str, Any] = {
        "source": np.array([gpu.source for gpu in gpus]),
        "device": np.array([gpu.device for gpu in gpus]),
        "rank": np.array([NULL if gpu.rank is None else gpu.rank for gpu in gpus], np.int64),
        "num_collectives": np.bincount(waits.gpu[of_group], minlength=num),
        "num_incomplete": np.bincount(waits.gpu[of_group & incomplete], minlength=num),
        "num_last": np.bincount(last_gpu[counted], minlength=num),
        "num_steps": np.full(num, late.num_steps),
        "late_ns": over_matches(waits.own_lead),
        "inherited_ns": over_matches(waits.inherited),
        "cost_ns": late.cost_total,
        "cost_per_step_ns": late.cost_per_step,
        "cost_pct": 100.0 * late.cost_share,
        "behind_per_step_ns": late.behind_per_step,
        "wait_ns": total(waits.wait, of_group),
        "exposed_wait_ns": total(waits.exposed, of_group),
        "transfer_ns": total(waits.transfer, of_group),
        "pair_wait_ns": total(waits.exposed, late.is_pair[waits.match]),
        "compute_ns": compute,
        "busy_ns": np.array([_busy(trace, number) for number in range(num)], np.int64),
        "compute_ratio": compute / middle if middle else np.full(num, np.nan),
        "step_ns": np.full(num, late.step_ns),
    }
    typed = {c.name: columns[c.name].astype(c.dtype) for c in RANKS.columns}
    return Table(RANKS, typed, trace.strings)


def _length(intervals: Any) -> int:
    return int((intervals.end - intervals.start).sum())


def _busy(trace: Trace, number: int) -> int:
    rows = trace.on(trace.gpus[number])
    return union_length(trace.gpu_ops["start_ns"][rows], trace.gpu_ops["end_ns"][rows])


ANALYZERS = (
    Analyzer("rank_waits", Detail.GPU, RANK_WAITS, rank_waits),
    Analyzer("ranks", Detail.GPU, RANKS, ranks),
)
