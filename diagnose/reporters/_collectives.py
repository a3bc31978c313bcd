"""The sheet of the collectives: by kind, size and group, with the spread over the GPUs."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from diagnose.findings import Diagnosis
from diagnose.reporters._places import Places
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.schema import NULL
from diagnose.trace import Table
from diagnose.wording.numbers import ABSENT, Scale, rate, size
from diagnose.wording.plain import plain

MOST_KINDS = 8
_NAME_WIDTH = 24
_RATES = ("median_algbw_gb_per_s", "best_algbw_gb_per_s", "best_busbw_gb_per_s")
_REFERENCE = "reference_busbw_gb_per_s"


def sizes(diagnosis: Diagnosis, scale: Scale, places: Places, *, unicode: bool) -> Sheet:
    """The kinds of collectives that took most time: over the GPUs, and where one went fastest."""
    table = diagnosis.tables["collectives"]
    kinds = _kinds(table)
    shown = kinds[:MOST_KINDS]
    fastest = [kind.fastest for kind in shown]
    labels = _labels(set(table["bytes"][fastest].tolist()))
    with_reference = bool(table.known(_REFERENCE)[fastest].any())
    headings = [
        Heading("collective", left=True),
        Heading("size"),
        Heading("group", left=True),
        Heading("ranks", spare=1),
        Heading("count", "a GPU"),
        Heading("time*", f"{scale.unit} a GPU"),
        Heading("algbw >=", "median GB/s", spare=2),
        Heading("algbw >=", "best GB/s", spare=3),
        Heading("busbw >=", "best GB/s"),
    ]
    if with_reference:
        headings.append(Heading("nccl-tests", "busbw GB/s"))
    headings += [Heading("best on", h.label) for h in places.headings[:1]]
    title = "Collectives"
    if len(kinds) > len(shown):
        title += f": the {len(shown)} of {len(kinds)} kinds and sizes that took most time"
    return Sheet(
        title,
        tuple(headings),
        tuple(
            _cells(diagnosis, kind, labels, scale, with_reference, unicode=unicode)
            for kind in shown
        ),
        footnotes=_footnotes(table, fastest, with_reference=with_reference),
    )


def _footnotes(table: Table, shown: list[int], *, with_reference: bool) -> tuple[str, ...]:
    notes = [
        "* count and time: least to most over the GPUs; a kernel's time includes waiting for late "
        "ranks. >=: bandwidths are lower bounds for the same reason, and from the GPU that saw the "
        "best one. algbw, busbw and size as in nccl-tests; GB = 10^9 bytes."
    ]
    if not table.known("bytes")[shown].all():
        notes.append(
            "-: not in the trace, as for collectives launched before the recording began or "
            "inside a CUDA graph."
        )
    if with_reference:
        notes.append("nccl-tests: interpolated between the sizes that were measured.")
    return tuple(notes)


class _Kind(NamedTuple):
    """One kind, size and group of collectives: its rows (one a GPU), and the fastest of them."""

    rows: list[int]
    fastest: int


def _kinds(table: Table) -> list[_Kind]:
    """By the most time that one GPU spent in it, most first."""
    keys = zip(
        *(table[name].tolist() for name in ("collective", "bytes", "group", "group_size")),
        strict=True,
    )
    speed = np.nan_to_num(table["best_algbw_gb_per_s"], nan=-1.0).tolist()
    total = table["total_ns"].tolist()
    rows_of: dict[tuple[int, ...], list[int]] = {}
    for row, key in enumerate(keys):
        rows_of.setdefault(key, []).append(row)
    kinds = [_Kind(rows, max(rows, key=lambda row: speed[row])) for rows in rows_of.values()]
    return sorted(kinds, key=lambda kind: (-max(total[row] for row in kind.rows), kind.rows[0]))


def _labels(amounts: set[int]) -> dict[int, str]:
    """Each size as it is shown: with more digits, or in bytes, where two would read the same."""
    labels: dict[int, str] = {}
    for write in (size, lambda amount: size(amount, 3), "{} B".format):
        texts = {amount: write(amount) for amount in amounts - labels.keys()}
        shared = Counter(texts.values())
        labels |= {amount: text for amount, text in texts.items() if shared[text] == 1}
    return labels


def _spread(shown: list[str]) -> str:
    """``least-most``, or the one value where they read the same."""
    return shown[0] if shown[0] == shown[-1] else f"{shown[0]}-{shown[-1]}"


def _cells(
    diagnosis: Diagnosis,
    kind: _Kind,
    labels: dict[int, str],
    scale: Scale,
    with_reference: bool,
    *,
    unicode: bool,
) -> tuple[str, ...]:
    table, trace, row = diagnosis.tables["collectives"], diagnosis.trace, kind.fastest
    counts, times = (sorted(table[name][kind.rows].tolist()) for name in ("count", "total_ns"))

    def text(name: str) -> str:
        code = int(table[name][row])
        return ABSENT if code < 0 else plain(trace.strings[code], _NAME_WIDTH, unicode=unicode)

    num_bytes, ranks = int(table["bytes"][row]), int(table["group_size"][row])
    rank = trace.sources[int(table["source"][row])].rank
    return (
        text("collective"),
        labels[num_bytes],
        text("group"),
        ABSENT if ranks == NULL else f"{ranks:,}",
        _spread([f"{count:,}" for count in counts]),
        _spread([scale.show(time) for time in times]),
        *(rate(float(table[name][row])) for name in _RATES),
        *([rate(float(table[_REFERENCE][row]))] if with_reference else []),
        ABSENT if rank is None else str(rank),
    )
