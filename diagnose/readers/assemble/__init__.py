"""From the columns of files to a ``Trace``: nothing here knows a format.

``assemble_file`` interprets one file (in any process: its result is arrays),
``join`` makes the trace of all.
"""

from __future__ import annotations

import numpy as np

from diagnose.names import Classifier
from diagnose.readers.assemble import (
    accesses,
    classes,
    collectives,
    duplicates,
    gpu,
    incomplete,
    launchers,
    operators,
    processes,
    quality,
    ranks,
    steps,
)
from diagnose.readers.assemble.join import join
from diagnose.readers.assemble.part import Origin, Part, reorder, sorted_rows
from diagnose.readers.raw import Columns, RawFile
from diagnose.schema import TABLES, Detail, TableSchema
from diagnose.trace import Source

__all__ = ["Origin", "Part", "assemble_file", "join"]

_SCHEMAS = {schema.name: schema for schema in TABLES}


def assemble_file(
    raw: RawFile, origin: Origin, classifier: Classifier, detail: Detail
) -> list[Part]:
    """The processes of one file: mostly one; several if a tool merged ranks into the file.

    Consumes ``raw``: columns are taken, not copied, where that is possible.
    """
    split = processes.split(raw)
    num_orders = 1 + max(
        (int(column.max()) for g in ("gpu", "host", "calls", "syncs")
         if len(column := getattr(raw, g)["order"])),
        default=-1,
    )  # fmt: skip
    parts = [_assemble(process, origin, classifier, detail, num_orders) for process in split]
    if origin.samples is not None and parts:
        parts[0].tables["samples"] = origin.samples
    return parts


def _assemble(
    process: processes.Process,
    origin: Origin,
    classifier: Classifier,
    detail: Detail,
    num_orders: int,
) -> Part:
    raw, strings = process.raw, process.raw.strings
    notes = duplicates.drop(raw)
    ordered = incomplete.in_order_of_time(raw)
    found = _rank(process, origin)
    host = _host_ops(raw.host)
    marks = steps.find(host, strings)
    calls = gpu.launches(raw.calls, strings, classifier)
    ops = raw.gpu
    ops["op_id"] = ops["order"]
    notes += gpu.place(ops, strings, raw.path)
    gpu.link(ops, calls, marks)
    ops["shapes"] = operators.shapes(ops["external_id"], host, raw.operators)
    parents = launchers.find(host, raw.collectives, strings, classifier)
    classes.assign(ops, calls, parents, raw.collectives, strings, classifier)
    described = collectives.table(
        ops, calls, parents, raw.collectives, strings, classifier, found.rank
    )
    notes += collectives.notes(described, raw.path)
    judged = quality.Tables(raw.path, ops, calls, host, marks, strings, detail, origin.environment)
    if len(ops["op_id"]) or not process.homeless:
        notes += quality.judge(judged)
    notes += incomplete.notes(judged, raw, ordered=ordered)
    touched, said = accesses.table(
        origin.execution_trace, host, raw.functions, strings, shared=process.shared
    )
    tables = {
        "gpu_ops": ops,
        "host_ops": host,
        "launches": calls,
        "syncs": _syncs(raw.syncs),
        "collectives": described,
        "accesses": touched,
        "steps": marks,
    }
    return Part(
        source=_source(process, found, origin, operators.count(raw, detail)),
        strings=strings,
        tables={name: _only(_SCHEMAS[name], columns) for name, columns in tables.items()},
        num_orders=num_orders,
        notes=[*origin.notes, *raw.notes, *found.notes, *notes, *said],
    )


def _rank(process: processes.Process, origin: Origin) -> ranks.RankFound:
    raw = process.raw
    if process.shared:
        # The file's own rank and name cannot be right for all of its processes.
        if process.labelled is not None:
            return ranks.RankFound(process.labelled, "process name")
        return ranks.RankFound(None, None, (ranks.unknown(raw.path),))
    return ranks.find(
        raw.path,
        raw.metadata,
        manifest=origin.manifest_rank,
        labelled=process.labelled,
        user=origin.user_rank,
    )


def _source(
    process: processes.Process, found: ranks.RankFound, origin: Origin, num_ops: int | None
) -> Source:
    raw = process.raw
    host = raw.metadata.get("host_name")
    world_size = ranks.world_size(raw.metadata)
    return Source(
        path=raw.path,
        rank=found.rank,
        rank_origin=found.origin,
        host=host if isinstance(host, str) and host else None,
        world_size=origin.world_size if world_size is None else world_size,
        process=process.pids if process.shared else None,
        base_ns=raw.base_ns,
        num_bytes=raw.num_bytes,
        num_events=raw.num_events,
        num_ops=num_ops,
        complete=raw.complete,
        environment=origin.environment,
        metadata=raw.metadata,
        # Of one process; a file of several does not say whose they are.
        host_intervals=None if process.shared else origin.host_intervals,
        manifest_gpu_uuid=None if process.shared else origin.gpu_uuid,
    )


def _host_ops(host: Columns) -> Columns:
    host["op_id"] = host.pop("order")
    reorder(host, sorted_rows(host["thread"], host["start_ns"], host["op_id"]))
    return host


def _syncs(syncs: Columns) -> Columns:
    syncs["op_id"] = syncs.pop("order")
    device = syncs["device"]
    syncs["device"] = np.where((device >= 0) & (device < 2**31), device, 0).astype(np.int32)
    reorder(syncs, sorted_rows(syncs["start_ns"], syncs["op_id"]))
    return syncs


def _only(schema: TableSchema, columns: Columns) -> Columns:
    return {c.name: columns[c.name] for c in schema.columns if c.name != "source"}
