"""What was kept to one file's columns: sort, pair, doubt times that cannot be."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.readers.kineto.columns import ColumnBuilder
from diagnose.readers.kineto.notes import category_notes, pair_notes, time_notes
from diagnose.readers.raw import GROUPS, Columns, RawFile
from diagnose.schema import NULL

_MINUTE = 60 * 10**9
_LARGEST_DEVICE = 1023
_DEVICE = re.compile(r"[0-9]{1,4}")
_GPU_LABEL = re.compile(r"\bGPU (\d{1,4})\b")


def finish(builder: ColumnBuilder, path: str) -> RawFile:
    """The file with its columns and the notes on times and pairs."""
    raw = RawFile(path)
    columns = {group: _in_order(builder.groups[group].take()) for group in GROUPS}
    if builder.pairs:
        raw.notes += _set_ends(builder, path, columns)
    raw.strings = list(builder.strings)
    raw.process_names = {
        pid: " | ".join(names[key] for key in ("process_name", "process_labels") if key in names)
        for pid, names in builder.process_names.items()
    }
    _set_devices(columns["gpu"], raw)
    zero = _without_time(columns)
    num_zero = int(zero.sum())
    if num_zero:
        lost = columns["gpu"]["order"][zero]
        columns["gpu"] = _keep(columns["gpu"], ~zero)
        _drop_collectives(columns, lost)
    raw.notes += category_notes(path, builder.uncounted)
    raw.notes += time_notes(path, builder.invalid_times, num_zero)
    raw.gpu, raw.host, raw.calls = columns["gpu"], columns["host"], columns["calls"]
    raw.syncs, raw.collectives = columns["syncs"], columns["collectives"]
    raw.operators, raw.functions = columns["operators"], columns["functions"]
    return raw


def _in_order(columns: Columns) -> Columns:
    """By place in the file; columns give up their rows as it goes, to save memory."""
    order = columns["order"]
    if len(order) > 1 and (order[1:] < order[:-1]).any():
        by_place = np.argsort(order, kind="stable")
        for name in columns:
            columns[name] = columns[name][by_place]
    return columns


def _keep(columns: Columns, rows: npt.NDArray[Any]) -> Columns:
    return {name: column[rows] for name, column in columns.items()}


def _drop_collectives(columns: dict[str, Columns], orders: npt.NDArray[Any]) -> None:
    gone = np.isin(columns["collectives"]["order"], orders)
    columns["collectives"] = _keep(columns["collectives"], ~gone)


def _set_ends(builder: ColumnBuilder, path: str, columns: dict[str, Columns]) -> list[Any]:
    match = builder.pairs.match()
    for group, ends in match.ends.items():
        rows = np.searchsorted(columns[group]["order"], np.fromiter(ends, np.int64, len(ends)))
        columns[group]["end_ns"][rows] = np.fromiter(ends.values(), np.int64, len(ends))
    for group, orders in match.open_rows.items():
        lost = np.array(orders, np.int64)
        columns[group] = _keep(columns[group], ~np.isin(columns[group]["order"], lost))
        _drop_collectives(columns, lost)
    return pair_notes(path, match)


def _set_devices(gpu: Columns, raw: RawFile) -> None:
    """Where an event does not name its device: what the track (``pid``) it is drawn on says."""
    absent = gpu["device"] == NULL
    for code in np.unique(gpu["process"][absent]).tolist():
        pid = raw.strings[code]
        label = _GPU_LABEL.search(raw.process_names.get(pid, ""))
        number = label[1] if label else pid
        if _DEVICE.fullmatch(number) and int(number) <= _LARGEST_DEVICE:
            gpu["device"][absent & (gpu["process"] == code)] = int(number)


def _without_time(columns: dict[str, Columns]) -> npt.NDArray[np.bool_]:
    """GPU events whose time was never set: 0 and no duration, or a minute before all else."""
    gpu = columns["gpu"]
    start = gpu["start_ns"]
    never: npt.NDArray[np.bool_] = start <= 0
    if not never.any():
        return never
    others = [columns[group]["start_ns"] for group in ("gpu", "host", "calls", "syncs")]
    later = [int(times[times > 0].min()) for times in others if (times > 0).any()]
    far = bool(later) and min(later) > _MINUTE
    return never if far else (start == 0) & (gpu["end_ns"] == 0)
