"""Compute, communication or memory: by name, corrected by the operator that launched it.

A name settles most operations. The launching operator settles copies: one between
two GPUs is communication; one that stays on its device is memory, unless a
collective launched nothing but such copies (collectives run by copy engines on
memory that peers have mapped), which is communication, not certainly. A kernel
with an unknown name that is alone in what a collective launched is taken for the
collective, not certainly. Kernels beside communication of the same operator (the
GEMMs of a fused all-gather and GEMM) stay what their names say.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from diagnose.names import Classifier
from diagnose.readers.assemble.launchers import Launchers
from diagnose.readers.assemble.part import Rows
from diagnose.readers.raw import NO_NAME, Columns
from diagnose.schema import NO_ROW, NULL, Activity, Kind

# Kineto and roctracer. Copies from or to the host never cross to another GPU.
_BETWEEN_GPU_MEMORY = re.compile(r"DtoD|PtoP|DeviceToDevice|Device -> Device")


def assign(
    gpu: Columns,
    calls: Columns,
    launchers: Launchers,
    metadata: Columns,
    strings: list[str],
    classifier: Classifier,
) -> None:
    """Add ``activity`` and ``certain`` to the operations of one process."""
    activity, certain, on_gpus = _by_name(gpu, strings, classifier)
    between = (
        (gpu["kind"] == Kind.MEMCPY)
        & (gpu["from_device"] >= 0)
        & (gpu["to_device"] >= 0)
        & (gpu["from_device"] != gpu["to_device"])
    )
    activity[between], certain[between] = Activity.COMMUNICATION, True
    if len(launchers):
        parent = launchers.by_id(gpu["external_id"])
        _by_launcher(gpu, parent, launchers, metadata, activity, certain, on_gpus)
        orphan = gpu["external_id"] <= 0
        enclosing = launchers.by_time(gpu, calls)
        enclosing[parent >= 0] = NO_ROW
        known = np.where(orphan, enclosing, NO_ROW)
        _by_launcher(gpu, known, launchers, metadata, activity, certain, on_gpus)
        _doubt(enclosing, ~orphan & on_gpus, launchers, metadata, activity, certain)
    gpu |= {"activity": activity, "certain": certain}


def _by_name(
    gpu: Columns, strings: list[str], classifier: Classifier
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Class, certainty, and whether it is a copy within GPU memory; each name is asked once."""
    pairs = (gpu["name"].astype(np.int64) + 1) * len(Kind) + gpu["kind"]
    distinct, which = np.unique(pairs, return_inverse=True)
    activity = np.empty(len(distinct), np.int8)
    certain = np.empty(len(distinct), bool)
    on_gpus = np.zeros(len(distinct), bool)
    for row, pair in enumerate(distinct.tolist()):
        code, kind = pair // len(Kind) - 1, Kind(pair % len(Kind))
        name = strings[code] if code >= 0 else ""
        activity[row], certain[row] = classifier.activity(name, kind)
        on_gpus[row] = kind == Kind.MEMCPY and bool(_BETWEEN_GPU_MEMORY.search(name))
        if name in ("", NO_NAME) and kind == Kind.KERNEL:
            certain[row] = False
    return activity[which], certain[which], on_gpus[which]


def _by_launcher(
    gpu: Columns,
    parent: Rows,
    launchers: Launchers,
    metadata: Columns,
    activity: npt.NDArray[np.int8],
    certain: npt.NDArray[np.bool_],
    on_gpus: npt.NDArray[np.bool_],
) -> None:
    """Correct what collectives launched that communicates nothing by its names."""
    rows = np.flatnonzero(parent >= 0)
    if not len(rows):
        return
    alone = _several_ranks(launchers, metadata)
    alone[parent[rows[activity[rows] == Activity.COMMUNICATION]]] = False
    kernels = np.bincount(parent[rows[gpu["kind"][rows] == Kind.KERNEL]], minlength=len(launchers))
    copies = rows[on_gpus[rows]]
    copies = copies[alone[parent[copies]] & (kernels[parent[copies]] == 0)]
    activity[copies], certain[copies] = Activity.COMMUNICATION, False
    # record_param_comms wraps NCCL, whose kernels have known names; what else it launches is local.
    single = alone & (kernels == 1) & (launchers.metadata < 0)
    unknown = rows[(gpu["kind"][rows] == Kind.KERNEL) & single[parent[rows]]]
    activity[unknown], certain[unknown] = Activity.COMMUNICATION, False


def _doubt(
    enclosing: Rows,
    copies: npt.NDArray[np.bool_],
    launchers: Launchers,
    metadata: Columns,
    activity: npt.NDArray[np.int8],
    certain: npt.NDArray[np.bool_],
) -> None:
    """A copy by another operator within a collective may belong to it: memory, not certainly.

    Within ``record_param_comms`` it is certain: such operators only pack and unpack.
    """
    doubtful = copies & (enclosing >= 0) & (activity == Activity.MEMORY)
    rows = np.flatnonzero(doubtful)
    several = _several_ranks(launchers, metadata) & (launchers.metadata < 0)
    certain[rows[several[enclosing[rows]]]] = False


def _several_ranks(launchers: Launchers, metadata: Columns) -> npt.NDArray[np.bool_]:
    """All but collectives known to be of one rank: these move nothing to another GPU."""
    sizes = np.where(
        launchers.metadata >= 0,
        np.append(metadata["group_size"], NULL)[launchers.metadata],
        NULL,
    )
    several: npt.NDArray[np.bool_] = sizes != 1
    return several
