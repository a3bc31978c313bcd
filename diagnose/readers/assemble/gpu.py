"""The table ``gpu_ops`` of one process: which device, and which call launched what."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.names import Classifier
from diagnose.readers.assemble import overruns
from diagnose.readers.assemble import steps as step_marks
from diagnose.readers.assemble.part import Rows, reorder, sorted_rows
from diagnose.readers.raw import Columns
from diagnose.schema import NO_ROW, NULL, Call
from diagnose.trace import Note

_MAX_DEVICE = 4096
LAUNCHING = (Call.LAUNCH, Call.GRAPH_LAUNCH, Call.COPY, Call.FILL)


def launches(calls: Columns, strings: list[str], classifier: Classifier) -> Columns:
    """The table ``launches`` of one process, without ``source``; made in place of ``calls``."""
    calls["op_id"] = calls.pop("order")
    kinds = np.full(len(strings) + 1, Call.OTHER, np.int8)
    for code in np.unique(calls["name"]).tolist():
        if code >= 0:
            kinds[code] = classifier.call(strings[code])
    calls["call"] = kinds[calls["name"]]
    reorder(calls, sorted_rows(calls["start_ns"], calls["op_id"]))
    return calls


def place(gpu: Columns, strings: list[str], path: str) -> list[Note]:
    """Settle the device of every operation and sort into the schema's order, in place."""
    notes = _settle_device(gpu, strings, path)
    reorder(gpu, sorted_rows(gpu["device"], gpu["start_ns"], gpu["order"]))
    notes += _several_devices(gpu["device"], path)
    ends, overrun = overruns.cut(gpu)
    gpu["end_ns"] = ends
    return notes + overruns.notes(overrun, path)


def launch_rows(gpu: Columns, calls: Columns) -> Rows:
    """For each operation the row of the call with its correlation id, else ``NO_ROW``.

    Several operations may share one call (CUDA graphs). Where runtime and driver
    both wrote a call under one id, the launching one counts, then the earlier. An
    id that stands for several launches tells nothing.
    """
    correlation = gpu["correlation"]
    rows = np.full(len(correlation), NO_ROW, np.int64)
    candidates = np.flatnonzero(calls["correlation"] > 0)
    if not len(candidates) or not len(rows):
        return rows
    other = ~np.isin(calls["call"][candidates], LAUNCHING)
    candidates = candidates[np.lexsort((other, calls["correlation"][candidates]))]
    keys = calls["correlation"][candidates]
    at = np.minimum(np.searchsorted(keys, correlation), len(keys) - 1)
    found = keys[at] == correlation
    found &= ~np.isin(correlation, ambiguous_ids(calls))
    rows[found] = candidates[at[found]]
    return rows


def ambiguous_ids(calls: Columns) -> Rows:
    """Correlation ids of launches that are not one within the other: they name none of them."""
    launching = np.flatnonzero(np.isin(calls["call"], LAUNCHING) & (calls["correlation"] > 0))
    ids = calls["correlation"][launching]
    order = np.argsort(ids, kind="stable")  # calls are sorted by start, so within an id too
    rows, ids = launching[order], ids[order]
    same = np.flatnonzero(ids[1:] == ids[:-1])
    first, later = rows[same], rows[same + 1]
    apart = (calls["start_ns"][later] >= calls["end_ns"][first]) | (
        calls["thread"][later] != calls["thread"][first]
    )
    return np.unique(ids[same][apart])


def link(gpu: Columns, calls: Columns, steps: Columns) -> None:
    """Add ``launch_row`` and ``step_row``; an unknown External id is taken from the launch."""
    rows = launch_rows(gpu, calls)
    launched = rows >= 0
    step = np.full(len(rows), NO_ROW, np.int64)
    step[launched] = step_marks.of(steps, calls["start_ns"][rows[launched]])
    external = gpu["external_id"].copy()
    missing = launched & (external == NULL)
    external[missing] = calls["external_id"][rows[missing]]
    gpu |= {"launch_row": rows, "step_row": step, "external_id": external}


def _settle_device(gpu: Columns, strings: list[str], path: str) -> list[Note]:
    device: npt.NDArray[np.int64] = gpu["device"]
    unusable = (device != NULL) & ((device < 0) | (device > _MAX_DEVICE))
    missing = (device == NULL) | unusable
    if missing.any():
        device = device.copy()
        by_process = np.full(len(strings) + 1, NULL, np.int64)
        for code in np.unique(gpu["process"][missing]).tolist():
            text = strings[code] if code >= 0 else ""
            if text.isascii() and text.isdigit() and int(text[:9]) <= _MAX_DEVICE:
                by_process[code] = int(text[:9])
        device[missing] = by_process[gpu["process"][missing]]
    unknown = device == NULL
    gpu["device"] = np.where(unknown, 0, device).astype(np.int32)
    if not unknown.any():
        return []
    count = int(unknown.sum())
    sentence = (
        f"{path}: GPU operations of which neither they nor their process name the device: {count}; "
        "they are counted to device 0, so its figures may mix several GPUs"
    )
    return [Note("device-unknown", "warning", sentence, count)]


def _several_devices(device: npt.NDArray[np.int32], path: str) -> list[Note]:
    found = np.unique(device).tolist()
    if len(found) < 2:
        return []
    names = ", ".join(str(number) for number in found[:8]) + (", ..." if len(found) > 8 else "")
    sentence = (
        f"{path}: one process used {len(found)} GPUs (devices {names}); each is measured by itself"
    )
    return [Note("several-devices", "info", sentence, len(found))]
