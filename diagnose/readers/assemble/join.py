"""All processes as one trace: one string dictionary, row references over all, sources by rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.readers.assemble.disagreements import disagreements
from diagnose.readers.assemble.part import Part, Rows, reorder, sorted_rows
from diagnose.readers.raw import Columns
from diagnose.schema import NO_ROW, TABLES, Detail, TableSchema
from diagnose.trace import ON_CPU, Note, Strings, Table, Trace

_TAKEN = np.empty(0, np.int8)
_REFERENCES = {
    "gpu_op_row": "gpu_ops",
    "host_op_row": "host_ops",
    "launch_row": "launches",
    "step_row": "steps",
}


Moved = dict[str, Rows]
"""Table -> where each row of it went, for those that were sorted; the last entry is ``NO_ROW``."""


def join(parts: list[Part], *, notes: Iterable[Note] = (), detail: Detail = Detail.ALL) -> Trace:
    """Join processes into a trace. Empties ``parts``: their columns become the trace's.

    Sources are sorted by rank (unknown last), then in the order given.
    """
    parts.sort(key=lambda part: (part.source.rank is None, part.source.rank or 0))
    on_gpus = any(len(part.tables["gpu_ops"]["op_id"]) for part in parts)
    strings, remaps = _merge_strings(parts)
    offsets = _offsets(parts)
    differing = disagreements(parts)
    moved: Moved = {}
    tables: dict[str, Any] = {
        schema.name: _table(schema, parts, remaps, offsets, strings, moved) for schema in TABLES
    }
    sources = tuple(part.source for part in parts)
    said = [
        replace(_graver(note) if on_gpus else note, source=number)
        for number, part in enumerate(parts)
        for note in part.notes
    ]
    said = [*notes, *said, *_duplicates(parts), *differing]
    parts.clear()
    return Trace(sources, strings, **tables, notes=tuple(said), detail=detail)


def _graver(note: Note) -> Note:
    """A rank on the CPU among others on GPUs is hardly meant so."""
    return replace(note, severity="warning") if note.code == ON_CPU else note


def _merge_strings(parts: list[Part]) -> tuple[Strings, list[npt.NDArray[np.int32] | None]]:
    """The common dictionary, and per part the new code of each old one (None: the same).

    The last entry is for absent text, so that code -1 stays -1.
    """
    codes: dict[str, int] = {}
    remaps = []
    for part in parts:
        remap = [codes.setdefault(text, len(codes)) for text in part.strings]
        same = remap == list(range(len(remap)))
        remaps.append(None if same else np.array([*remap, NO_ROW], np.int32))
    return Strings(codes), remaps


def _offsets(parts: list[Part]) -> dict[str, list[int]]:
    """Per table the number of rows before each part; under "order" the events before it."""
    of_file: dict[str, int] = {}
    total = 0
    for part in parts:
        if part.source.path not in of_file:
            of_file[part.source.path] = total
            total += part.num_orders
    offsets = {"order": [of_file[part.source.path] for part in parts]}
    for schema in TABLES:
        counts = [_num_rows(schema, part) for part in parts]
        offsets[schema.name] = np.concatenate([[0], np.cumsum(counts)]).astype(int).tolist()
    return offsets


def _num_rows(schema: TableSchema, part: Part) -> int:
    columns = part.tables.get(schema.name)
    return len(next(iter(columns.values()))) if columns else 0


def _table(
    schema: TableSchema,
    parts: list[Part],
    remaps: list[npt.NDArray[np.int32] | None],
    offsets: dict[str, list[int]],
    strings: Strings,
    moved: Moved,
) -> Table:
    """One table of all parts. ``moved`` learns where its rows went, and corrects references."""
    present = [(n, part, rows) for n, part in enumerate(parts) if (rows := _num_rows(schema, part))]
    result: Columns = {}
    for column in schema.columns:
        pieces: list[npt.NDArray[Any]] = []
        for number, part, rows in present:
            columns = part.tables[schema.name]
            if column.name == "source":
                pieces.append(np.full(rows, number, np.int32))
                continue
            piece = columns[column.name]
            remap = remaps[number]
            if column.text:
                piece = piece if remap is None else remap[piece]
            elif column.name in _REFERENCES:
                offset = offsets[_REFERENCES[column.name]][number]
                piece = np.where(piece >= 0, piece + offset, NO_ROW) if offset else piece
            elif column.name == "op_id" and offsets["order"][number]:
                piece = piece + offsets["order"][number]
            pieces.append(piece.astype(column.dtype, copy=False))
            columns[column.name] = _TAKEN
        result[column.name] = _concatenated(pieces, column.dtype)
    for part in parts:
        part.tables.pop(schema.name, None)
    referring = [name for name in result if _REFERENCES.get(name) in moved]
    for name in referring:
        result[name] = moved[_REFERENCES[name]][result[name]]
    if "thread" in schema.order or referring:
        # Within a part rows are sorted by the part's own codes of threads.
        order = sorted_rows(*(result[name] for name in schema.order))
        reorder(result, order)
        if order is not None:
            moved[schema.name] = np.append(_inverse(order), NO_ROW)
    return Table(schema, result, strings)


def _inverse(order: Rows) -> Rows:
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


def _concatenated(pieces: list[npt.NDArray[Any]], dtype: str) -> npt.NDArray[Any]:
    if not pieces:
        return np.empty(0, dtype)
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _duplicates(parts: list[Part]) -> list[Note]:
    """Several files of one rank: all are kept, side by side."""
    by_rank: dict[int, list[str]] = {}
    for part in parts:
        if part.source.rank is not None:
            by_rank.setdefault(part.source.rank, []).append(part.source.path)
    notes = []
    for rank, paths in by_rank.items():
        if len(paths) > 1:
            shown = ", ".join(paths[:4]) + (", ..." if len(paths) > 4 else "")
            sentence = (
                f"rank {rank} was written by {len(paths)} files ({shown}); all are kept side by "
                "side, and anything summed over ranks counts this rank more than once: give the "
                "files of one run and one window only"
            )
            notes.append(Note("duplicate-rank", "warning", sentence, len(paths)))
    return notes
