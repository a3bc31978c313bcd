"""The sheet of the collectives: by kind, size and group, from the rank that waited least."""

from __future__ import annotations

import numpy as np

from diagnose.findings import Diagnosis
from diagnose.reporters._format import ABSENT, Scale, rate
from diagnose.reporters._places import Places
from diagnose.reporters._plain import plain
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.schema import NULL
from diagnose.trace import Table

MOST_KINDS = 8
_NAME_WIDTH = 24
_RATES = ("median_algbw_gb_per_s", "best_algbw_gb_per_s", "best_busbw_gb_per_s")
_REFERENCE = "reference_busbw_gb_per_s"


def sizes(diagnosis: Diagnosis, scale: Scale, places: Places, *, unicode: bool) -> Sheet:
    """The kinds of collectives that took most time, each on the GPU that saw it go fastest."""
    table = diagnosis.tables["collectives"]
    rows = _fastest(table)
    shown = rows[:MOST_KINDS]
    with_reference = bool(table.known(_REFERENCE)[shown].any())
    headings = [
        Heading("collective", left=True),
        Heading("size", "bytes"),
        Heading("group", left=True),
        Heading("ranks", spare=1),
        Heading("count"),
        Heading("time*", scale.unit),
        Heading("algbw >=", "median GB/s"),
        Heading("algbw >=", "best GB/s", spare=3),
        Heading("busbw >=", "best GB/s"),
    ]
    if with_reference:
        headings.append(Heading("nccl-tests", "busbw GB/s"))
    headings += [Heading("seen on", h.label) for h in places.headings[:1]]
    title = "Collectives"
    if len(rows) > len(shown):
        title += f": the {len(shown)} of {len(rows)} kinds and sizes that took most time"
    return Sheet(
        title,
        tuple(headings),
        tuple(_cells(diagnosis, row, scale, with_reference, unicode=unicode) for row in shown),
        footnotes=_footnotes(table, shown),
    )


def _footnotes(table: Table, shown: list[int]) -> tuple[str, ...]:
    notes = [
        "* and >=: a kernel's time includes waiting for late ranks, so bandwidths are lower "
        "bounds; from the GPU that saw the best one. algbw, busbw and bytes as in nccl-tests; "
        "GB = 10^9 bytes."
    ]
    if not table.known("bytes")[shown].all():
        notes.append("-: not in the trace, as for collectives launched before the recording began.")
    return tuple(notes)


def _fastest(table: Table) -> list[int]:
    """One row for each kind, size and group: the GPU with the best bandwidth; most time first."""
    keys = zip(
        *(table[name].tolist() for name in ("collective", "bytes", "group", "group_size")),
        strict=True,
    )
    speed = np.nan_to_num(table["best_algbw_gb_per_s"], nan=-1.0).tolist()
    best: dict[tuple[int, ...], int] = {}
    for row, key in enumerate(keys):
        if key not in best or speed[row] > speed[best[key]]:
            best[key] = row
    return sorted(best.values(), key=lambda row: (-int(table["total_ns"][row]), row))


def _cells(
    diagnosis: Diagnosis, row: int, scale: Scale, with_reference: bool, *, unicode: bool
) -> tuple[str, ...]:
    table, trace = diagnosis.tables["collectives"], diagnosis.trace

    def text(name: str) -> str:
        code = int(table[name][row])
        return ABSENT if code < 0 else plain(trace.strings[code], _NAME_WIDTH, unicode=unicode)

    num_bytes, ranks = int(table["bytes"][row]), int(table["group_size"][row])
    rank = trace.sources[int(table["source"][row])].rank
    return (
        text("collective"),
        ABSENT if num_bytes == NULL else f"{num_bytes:,}",
        text("group"),
        ABSENT if ranks == NULL else f"{ranks:,}",
        f"{int(table['count'][row]):,}",
        scale.show(int(table["total_ns"][row])),
        *(rate(float(table[name][row])) for name in _RATES),
        *([rate(float(table[_REFERENCE][row]))] if with_reference else []),
        ABSENT if rank is None else str(rank),
    )
