"""The report as a contract: ``report.schema.json`` describes every key and its unit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from diagnose import __version__
from diagnose.reporters import Page, Reporter
from diagnose.reporters._costs import cost_records
from diagnose.reporters._finding_records import checked_records, finding_rows
from diagnose.reporters._host_steps import host_step_rows
from diagnose.reporters._observer import observer_record
from diagnose.reporters._rank_records import rank_rows, straggler_rows
from diagnose.reporters._records import (
    MEASURES,
    Record,
    encode,
    paths,
    records,
    step_names,
)
from diagnose.reporters._replay_records import stair_rows

if TYPE_CHECKING:
    from diagnose.findings import Diagnosis
    from diagnose.trace import Note, Table, Trace

SCHEMA_VERSION = 1

_WHERE = {"rank": "rank", "device": "device"}
_GPU_ONLY = ("window_ns",)
_STEP_ONLY = ("num_ops", "step_ns")
_NEVER = ("kernel_time_ns",)
_OF_A_STEP = ("overlap_of_compute_pct", "uncertain_ns")
GPU_KEYS = {c: k for c, k in MEASURES.items() if c not in (*_STEP_ONLY, *_NEVER)}
STEP_KEYS = {c: k for c, k in MEASURES.items() if c not in (*_GPU_ONLY, *_NEVER, *_OF_A_STEP)}
WAITING_KEYS = {"exposed_transfer_ns": "exposed_transfer_us", "waiting_ns": "waiting_us"}
COLLECTIVE_KEYS = {
    "collective": "collective",
    "bytes": "bytes",
    "group": "group",
    "group_size": "group_size",
    "count": "count",
    "total_ns": "total_us",
    "median_algbw_gb_per_s": "median_algbw_gb_per_s",
    "best_algbw_gb_per_s": "best_algbw_gb_per_s",
    "median_busbw_gb_per_s": "median_busbw_gb_per_s",
    "best_busbw_gb_per_s": "best_busbw_gb_per_s",
    "reference_busbw_gb_per_s": "reference_busbw_gb_per_s",
}

Key = tuple[int, int]


def render(diagnosis: Diagnosis, out: TextIO, page: Page) -> None:  # noqa: ARG001
    """Write the report; the page means nothing here."""
    out.write(encode(report(diagnosis)))


def report(diagnosis: Diagnosis) -> Record:
    """The report as plain values. Times are exact decimals of the integer nanoseconds."""
    trace = diagnosis.trace
    return {
        "schema_version": SCHEMA_VERSION,
        "diagnose_version": __version__,
        "inputs": inputs(trace),
        "observer": observer_record(diagnosis),
        "missing_ranks": list(trace.missing_ranks),
        "quality": verdict(diagnosis),
        "notes": notes(trace),
        "gpus": _gpus(diagnosis),
        "collectives": _collectives(diagnosis),
        "ranks": rank_rows(diagnosis),
        "stragglers": straggler_rows(diagnosis),
        **cost_records(diagnosis),
        "host_steps": host_step_rows(diagnosis),
        "staircase": stair_rows(diagnosis.tables["staircase"])
        if "staircase" in diagnosis.tables
        else [],
        "unavailable": [
            {"table": name, "because": reason.because, "remedy": reason.remedy}
            for name, reason in diagnosis.unavailable.items()
        ],
        "findings": finding_rows(diagnosis),
        **checked_records(diagnosis),
    }


def inputs(trace: Trace) -> list[Record]:
    """What each source is and how far it could be read."""
    return [
        {
            "path": source.path,
            "rank": source.rank,
            "rank_origin": source.rank_origin,
            "world_size": source.world_size,
            "host": source.host,
            "bytes": source.num_bytes,
            "events": source.num_events,
            "complete": source.complete,
        }
        for source in trace.sources
    ]


def verdict(diagnosis: Diagnosis) -> Record:
    """The verdict and the codes of the notes that it rests on."""
    quality = diagnosis.quality
    return {"verdict": quality.verdict, "reasons": sorted({note.code for note in quality.reasons})}


def notes(trace: Trace) -> list[Record]:
    """Every note, in the trace's order."""
    return [_note(trace, note) for note in trace.notes]


def _note(trace: Trace, note: Note) -> Record:
    return {
        "code": note.code,
        "severity": note.severity,
        "count": note.count,
        "sentence": note.sentence,
        "source": None if note.source is None else trace.sources[note.source].path,
    }


def _gpus(diagnosis: Diagnosis) -> list[Record]:
    table = diagnosis.tables.get("gpus")
    if table is None:
        return []
    steps: dict[Key, list[Record]] = defaultdict(list)
    unassigned: dict[Key, Record] = {}
    by_step = diagnosis.tables.get("steps")
    if by_step is not None:
        names = step_names(diagnosis.trace, by_step)
        rows = _with_waiting(by_step, STEP_KEYS, diagnosis.tables.get("waiting_steps"))
        for gpu, in_step, name, row in zip(
            _keys(by_step), (by_step["step_row"] >= 0).tolist(), names, rows, strict=True
        ):
            if in_step:
                complete = diagnosis.trace.sources[gpu[0]].complete
                steps[gpu].append({"step": name, "complete": complete, **row})
            else:
                unassigned[gpu] = {k: v for k, v in row.items() if k not in ("step_us", "idle_us")}
    where, measures = (
        records(table, _WHERE),
        _with_waiting(table, GPU_KEYS, diagnosis.tables.get("waiting")),
    )
    described = zip(_keys(table), where, paths(diagnosis.trace, table), measures, strict=True)
    return [
        {
            **place,
            "source": path,
            "complete": diagnosis.trace.sources[gpu[0]].complete,
            **row,
            "num_steps": len(steps[gpu]) if by_step is not None else None,
            "per_step": steps[gpu] if by_step is not None else None,
            "unassigned": unassigned.get(gpu),
        }
        for gpu, place, path, row in described
    ]


def _with_waiting(table: Table, keys: Mapping[str, str], waiting: Table | None) -> list[Record]:
    """The records of a table, each with its exposed communication divided in two."""
    rows = records(table, keys)
    found: dict[tuple[int, ...], Record] = {}
    if waiting is not None:
        divided = records(waiting, WAITING_KEYS)
        found = dict(zip(_places(waiting), divided, strict=True))
    nothing = dict.fromkeys(WAITING_KEYS.values())
    return [
        {**row, **found.get(place, nothing)}
        for place, row in zip(_places(table), rows, strict=True)
    ]


def _places(table: Table) -> list[tuple[int, ...]]:
    columns = (table[name].tolist() for name in ("source", "device", "step_row"))
    return list(zip(*columns, strict=True))


def _keys(table: Table) -> list[Key]:
    return list(zip(table["source"].tolist(), table["device"].tolist(), strict=True))


def _collectives(diagnosis: Diagnosis) -> list[Record]:
    table = diagnosis.tables.get("collectives")
    if table is None:
        return []
    ranks = [diagnosis.trace.sources[source].rank for source in table["source"].tolist()]
    where = zip(
        ranks,
        table["device"].tolist(),
        paths(diagnosis.trace, table),
        records(table, COLLECTIVE_KEYS),
        strict=True,
    )
    return [
        {"rank": rank, "device": device, "source": path, **row} for rank, device, path, row in where
    ]


REPORTER = Reporter("json", (".json",), render)
