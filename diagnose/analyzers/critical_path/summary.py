"""What the critical path consists of: by class and step, and by operation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.analyzers._lanes import packed
from diagnose.analyzers.critical_path.search import PathClass
from diagnose.grouped_intervals import sum_by
from diagnose.schema import Column, TableSchema
from diagnose.trace import Table, Trace

Array = npt.NDArray[np.int64]

_GPU = (
    Column("source", "int32", "index into `Trace.sources`: whose path it is"),
    Column("device", "int32", "device number within its process"),
)
_CLASS = Column("path_class", "int8", "what the stretches are", choices=PathClass)
_ELSEWHERE = Column("elsewhere_ns", "int64", "of it on other ranks", "ns")

PATH_CLASSES = TableSchema(
    "critical_path_classes",
    "one class of the critical path of one step of one GPU",
    (
        *_GPU,
        Column("step_row", "int64", "row of `steps`; unknown: the whole window", nullable=True),
        _CLASS,
        Column("num_stretches", "int64", "stretches of this class"),
        Column("length_ns", "int64", "their length; the classes sum to the step time", "ns"),
        _ELSEWHERE,
        Column("of_step_pct", "float64", "length over the step time", "%"),
    ),
    order=("source", "device", "step_row", "path_class"),
)

PATH_OPS = TableSchema(
    "critical_path_ops",
    "one operation name on the critical paths of one GPU, all steps together, longest first",
    (
        *_GPU,
        Column("name", "int32", "name of the GPU operation", text=True),
        _CLASS,
        Column("num_ops", "int64", "operations of that name on the paths"),
        Column("length_ns", "int64", "time that they are the path", "ns"),
        _ELSEWHERE,
        Column("of_path_pct", "float64", "length over that of the paths", "%"),
    ),
    order=("source", "device"),
)
_WORK = (PathClass.COMPUTE, PathClass.COMMUNICATION, PathClass.PEER_WAIT, PathClass.MEMORY)


def _grouped(*columns: Array) -> tuple[Array, Array, int]:
    """First row of each distinct combination, in order; which one each row has; how many."""
    key = packed(*(column.astype(np.int64) for column in columns))
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return first, which.reshape(-1), first.size


def classes_of(path: Table) -> Table:
    """``critical_path_classes`` from a ``critical_path`` table."""
    names = ("source", "device", "step_row", "path_class")
    first, which, num = _grouped(*(path[name] for name in names))
    _, of_step, num_steps = _grouped(*(path[name] for name in names[:3]))
    length = path["length_ns"]
    total = sum_by(of_step, length, num_steps)[of_step[first]]
    mine = sum_by(which, length, num)
    return Table(
        PATH_CLASSES,
        {
            **{name: path[name][first] for name in names},
            "num_stretches": np.bincount(which, minlength=num).astype(np.int64),
            "length_ns": mine,
            "elsewhere_ns": sum_by(which, _elsewhere(path), num),
            "of_step_pct": 100 * mine / np.maximum(total, 1),
        },
        path.strings,
    )


def ops_of(trace: Trace, path: Table) -> Table:
    """``critical_path_ops`` from a ``critical_path`` table."""
    _, of_gpu, num_gpus = _grouped(path["source"], path["device"])
    total = sum_by(of_gpu, path["length_ns"], num_gpus)
    chosen = np.flatnonzero(np.isin(path["path_class"], _WORK) & (path["gpu_op_row"] >= 0))
    work, of_gpu = path.take(chosen), of_gpu[chosen]
    name = trace.gpu_ops["name"][work["gpu_op_row"]]
    first, which, num = _grouped(work["source"], work["device"], work["path_class"], name)
    length = sum_by(which, work["length_ns"], num)
    order = np.lexsort((name[first], -length, of_gpu[first]))
    first_ordered = first[order]
    return Table(
        PATH_OPS,
        {
            "source": work["source"][first_ordered],
            "device": work["device"][first_ordered],
            "name": name[first_ordered],
            "path_class": work["path_class"][first_ordered],
            "num_ops": np.bincount(which, minlength=num).astype(np.int64)[order],
            "length_ns": length[order],
            "elsewhere_ns": sum_by(which, _elsewhere(work), num)[order],
            "of_path_pct": 100 * length[order] / np.maximum(total[of_gpu[first_ordered]], 1),
        },
        path.strings,
    )


def _elsewhere(path: Table) -> Array:
    elsewhere: Array = np.where(path["at_source"] != path["source"], path["length_ns"], 0)
    return elsewhere
