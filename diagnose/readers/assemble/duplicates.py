"""Events written more than once.

Two GPU operations with all of device, stream, start, end, name and correlation id in
common cannot both have run: work on one stream is serial. Of each such set the first in
the file is kept, and of calls into the GPU runtime likewise.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.readers.raw import Columns, RawFile
from diagnose.schema import NULL
from diagnose.trace import Note

_GPU = (
    "start_ns",
    "end_ns",
    "correlation",
    "stream",
    "device",
    "process",
    "name",
    "kind",
    "graph_node",
)
_CALLS = ("start_ns", "end_ns", "correlation", "thread", "name")


def drop(raw: RawFile) -> list[Note]:
    """Leave out repetitions in the columns of a process, in place."""
    gpu, calls = raw.gpu, raw.calls
    timed = (gpu["end_ns"] > gpu["start_ns"]) | (gpu["correlation"] > 0)
    again = _repeated(gpu, _GPU, (gpu["stream"] != NULL) & timed)
    again_calls = _repeated(calls, _CALLS, calls["correlation"] > 0)
    count, num_calls = int(again.sum()), int(again_calls.sum())
    if not count and not num_calls:
        return []
    raw.gpu, raw.calls = _keep(gpu, ~again), _keep(calls, ~again_calls)
    sentence = (
        f"{raw.path}: GPU operations that repeat another one in all of stream, times, name and "
        f"correlation id: {count} (and {num_calls} such calls); they were left out, so no figure "
        "counts them twice, but whatever wrote the file may have altered more"
    )
    return [Note("duplicate-events", "warning", sentence, count or num_calls)]


def _repeated(
    columns: Columns, keys: tuple[str, ...], asked: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Rows equal in all keys to a row before them. Only rows that share a start are compared."""
    again = np.zeros(len(asked), bool)
    start = columns["start_ns"]
    order = np.argsort(start, kind="stable")
    tied = start[order[1:]] == start[order[:-1]]
    if not tied.any():
        return again
    some = np.concatenate([tied, [False]]) | np.concatenate([[False], tied])
    rows = np.sort(order[some])
    rows = rows[asked[rows]]
    rows = rows[np.lexsort([columns[key][rows] for key in reversed(keys)])]
    same = np.ones(max(len(rows) - 1, 0), bool)
    for key in keys:
        same &= columns[key][rows[1:]] == columns[key][rows[:-1]]
    again[rows[1:][same]] = True
    return again


def _keep(columns: Columns, rows: npt.NDArray[np.bool_]) -> Columns:
    return {name: column[rows] for name, column in columns.items()}
