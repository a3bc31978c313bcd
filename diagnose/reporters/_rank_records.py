"""The ranks as machines read them: lateness, verdicts, clocks, matching, bandwidth."""

from __future__ import annotations

from typing import Any

from diagnose.analyzers._lanes import Unmatched
from diagnose.analyzers.clocks import Alignment
from diagnose.analyzers.stragglers import Pattern
from diagnose.findings import Diagnosis
from diagnose.reporters._records import Record, paths, records
from diagnose.reporters._verdict import row_sentences
from diagnose.trace import Table

SCHEMA_VERSION = 1
RANK_KEYS = {
    "rank": "rank",
    "device": "device",
    "num_collectives": "num_collectives",
    "num_incomplete": "num_incomplete",
    "num_last": "num_last",
    "num_steps": "num_steps",
    "late_ns": "late_us",
    "inherited_ns": "inherited_us",
    "cost_ns": "cost_us",
    "cost_per_step_ns": "cost_per_step_us",
    "cost_pct": "cost_pct",
    "behind_per_step_ns": "behind_per_step_us",
    "wait_ns": "wait_us",
    "exposed_wait_ns": "exposed_wait_us",
    "transfer_ns": "transfer_us",
    "pair_wait_ns": "pair_wait_us",
    "compute_ns": "compute_us",
    "compute_ratio": "compute_ratio",
    "step_ns": "step_us",
}
STRAGGLER_KEYS = {
    "rank": "rank",
    "device": "device",
    "num_late": "num_late",
    "num_steps": "num_steps",
    "late_steps": "late_steps",
    "lost_per_step_ns": "lost_per_step_us",
    "lost_pct": "lost_pct",
    "behind_per_step_ns": "behind_per_step_us",
    "last_pct": "last_pct",
    "owner_pct": "owner_pct",
    "compute_ratio": "compute_ratio",
    "certain": "certain",
}
_CLOCK_KEYS = {
    "rank": "rank",
    "clock": "clock",
    "offset_ns": "offset_us",
    "drift": "drift",
    "num_collectives": "num_collectives",
    "residual_mad_ns": "residual_mad_us",
    "residual_p95_ns": "residual_p95_us",
}
_UNMATCHED_KEYS = {
    "rank": "rank",
    "device": "device",
    "num_ops": "num_ops",
    "kernel_time_ns": "kernel_time_us",
}
_TRANSFER_KEYS = {
    "collective": "collective",
    "bytes": "bytes",
    "group": "group",
    "group_size": "group_size",
    "num_collectives": "num_collectives",
    "num_incomplete": "num_incomplete",
    "median_transfer_ns": "median_transfer_us",
    "best_busbw_gb_per_s": "best_busbw_gb_per_s",
    "median_busbw_gb_per_s": "median_busbw_gb_per_s",
    "of_best_pct": "of_best_pct",
    "of_run_best_pct": "of_run_best_pct",
    "of_link_pct": "of_link_pct",
}


def rank_rows(diagnosis: Diagnosis) -> list[Record]:
    """A record a GPU; none where nothing was matched across ranks."""
    table = diagnosis.tables.get("ranks")
    if table is None:
        return []
    rows = zip(paths(diagnosis.trace, table), records(table, RANK_KEYS), strict=True)
    return [
        {"rank": row.pop("rank"), "device": row.pop("device"), "source": path, **row}
        for path, row in rows
    ]


def straggler_rows(diagnosis: Diagnosis) -> list[Record]:
    """A record for each reason why ranks wait, with its sentence."""
    table = diagnosis.tables.get("stragglers")
    if table is None or not len(table):
        return []
    patterns = [Pattern(code).name.lower() for code in table["pattern"].tolist()]
    sentences = row_sentences(diagnosis.trace, table)
    rows = zip(
        patterns,
        sentences,
        paths(diagnosis.trace, table),
        records(table, STRAGGLER_KEYS),
        strict=True,
    )
    return [
        {"pattern": pattern, "sentence": sentence, "source": path, **row}
        for pattern, sentence, path, row in rows
    ]


def unavailable(diagnosis: Diagnosis) -> list[Record]:
    """What could not be determined, why, and how to record it."""
    return [
        {"table": name, "because": reason.because, "remedy": reason.remedy}
        for name, reason in diagnosis.unavailable.items()
    ]


def rank_document(diagnosis: Diagnosis) -> Record:
    """Everything that ``diagnose ranks`` says."""
    tables, trace = diagnosis.tables, diagnosis.trace
    clocks, unmatched = tables.get("clocks"), tables.get("unmatched")
    bandwidth = tables.get("transfer_bandwidth")
    return {
        "schema_version": SCHEMA_VERSION,
        "ranks": rank_rows(diagnosis),
        "stragglers": straggler_rows(diagnosis),
        "clocks": []
        if clocks is None
        else _labelled(
            clocks, "alignment", Alignment, paths(trace, clocks), records(clocks, _CLOCK_KEYS)
        ),
        "unmatched": []
        if unmatched is None
        else _labelled(
            unmatched,
            "reason",
            Unmatched,
            paths(trace, unmatched),
            records(unmatched, _UNMATCHED_KEYS),
        ),
        "transfer_bandwidth": [] if bandwidth is None else records(bandwidth, _TRANSFER_KEYS),
        "unavailable": unavailable(diagnosis),
    }


def _labelled(
    table: Table, column: str, choices: Any, sources: list[str], rows: list[Record]
) -> list[Record]:
    labels = [choices(code).name.lower() for code in table[column].tolist()]
    return [
        {"source": source, column: label, **row}
        for source, label, row in zip(sources, labels, rows, strict=True)
    ]
