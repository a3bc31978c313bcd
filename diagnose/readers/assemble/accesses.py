"""The memory that operators touch, tied to the operators of the profile.

A node of an execution trace and an event of the profile are the same call if they have the same
Record function id and name, in the same process.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.readers.assemble import inside
from diagnose.readers.assemble.part import Rows, reorder, sorted_rows
from diagnose.readers.raw import Columns, ExecutionTrace
from diagnose.schema import ACCESSES, NO_ROW
from diagnose.trace import Note

_CATEGORY = "cpu_op"


def table(
    execution: ExecutionTrace | None,
    host: Columns,
    functions: Columns,
    strings: list[str],
    *,
    shared: bool = False,
) -> tuple[Columns, list[Note]]:
    """The table without ``source``, and what has to be said of it.

    ``host`` are the rows of ``host_ops`` in their final order. ``shared``: the file holds other
    processes, to which the execution trace may belong. Names of devices are added to ``strings``.
    """
    columns = {c.name: np.empty(0, c.dtype) for c in ACCESSES.columns if c.name != "source"}
    if execution is None:
        return columns, []
    row_of, identity = _function_ids(execution, host, functions, strings)
    if shared and not len(row_of):
        return columns, []
    found = _join(execution, host["name"][row_of], identity, strings)
    host_row = np.append(row_of, NO_ROW)[found]
    notes = _notes(execution, host, row_of, found, strings)
    touched = execution.accesses
    at = host_row[touched["node"]]
    kept = np.flatnonzero(at >= 0)
    columns = {name: column[kept] for name, column in touched.items() if name != "node"}
    columns["host_op_row"] = at[kept]
    columns["external_id"] = host["external_id"][at[kept]]
    columns["device"] = _device_codes(execution, columns["device"], strings)
    reorder(columns, sorted_rows(columns["host_op_row"]))
    return columns, notes


def _function_ids(
    execution: ExecutionTrace, host: Columns, functions: Columns, strings: list[str]
) -> tuple[Rows, Rows]:
    """Rows of host events that may be nodes, in order of the file, and their ids."""
    row = inside.first_with(host["op_id"], functions["order"])
    own = row >= 0
    if execution.process is not None:
        of_process = [text.partition("/")[0] == execution.process for text in strings]
        own &= np.array([*of_process, False], bool)[host["thread"][row]]
    return row[own], functions["function_id"][own]


def _join(
    execution: ExecutionTrace, names: npt.NDArray[np.int32], identity: Rows, strings: list[str]
) -> Rows:
    """For each node the place of its event among ``identity``, else ``NO_ROW``."""
    nodes = execution.nodes
    code_of = _codes(strings)
    codes = np.array([code_of.get(text, NO_ROW) for text in execution.strings] + [NO_ROW], np.int64)
    name = codes[nodes["name"]]
    # Ids are dense or not: as their place among all ids they leave room for the name.
    distinct = np.unique(identity)
    place = inside.first_with(distinct, nodes["function_id"])
    keys = np.searchsorted(distinct, identity) * len(strings) + names
    wanted = np.where((place >= 0) & (name >= 0), place * len(strings) + name, -1)
    return inside.first_with(keys, wanted)


def _device_codes(
    execution: ExecutionTrace, device: npt.NDArray[np.int32], strings: list[str]
) -> npt.NDArray[np.int32]:
    codes = np.full(len(execution.strings) + 1, NO_ROW, np.int32)
    code_of = _codes(strings)
    for code in np.unique(device).tolist():
        text = execution.strings[code]
        codes[code] = code_of.setdefault(text, len(strings))
        if codes[code] == len(strings):
            strings.append(text)
    return codes[device]


def _codes(strings: list[str]) -> dict[str, int]:
    """Of a text that stands there twice the first, which is the one that events have."""
    return {text: code for code, text in reversed(list(enumerate(strings)))}


def _notes(
    execution: ExecutionTrace, host: Columns, row_of: Rows, found: Rows, strings: list[str]
) -> list[Note]:
    nodes = execution.nodes
    touching = np.zeros(len(nodes["name"]), bool)
    touching[execution.accesses["node"]] = True
    total, joined = int(touching.sum()), int((touching & (found >= 0)).sum())
    if not joined:
        return [_apart(execution, total, len(row_of))]
    is_operator = np.array([text == _CATEGORY for text in strings] + [False])
    operators = is_operator[host["category"][row_of]]
    described = np.zeros(len(row_of), bool)
    described[found[found >= 0]] = True
    num_operators, num_described = int(operators.sum()), int((operators & described).sum())
    notes = []
    if joined < total or num_described < num_operators:
        sentence = (
            f"{execution.path}: of {total} operators with tensors {joined} are in the profile, and "
            f"of {num_operators} operators of the profile it knows {num_described}; what the "
            "others read and write is unknown, so synchronisation that is missing around them is "
            "not seen"
        )
        count = total - joined + num_operators - num_described
        notes.append(Note("execution-trace-partial", "info", sentence, count))
    return notes + _without_schema(execution, nodes["unexplained"] & (found >= 0))


def _apart(execution: ExecutionTrace, total: int, candidates: int) -> Note:
    if not total:
        why = "holds no operator with tensors"
    elif not candidates:
        why = "no operator of the profile carries a Record function id of its process"
    else:
        why = (
            f"recorded in a window of its own: none of its {total} operators with tensors is in "
            "the profile"
        )
    sentence = (
        f"{execution.path}: {why}; it says nothing about the order in which the profile's "
        "operators use memory"
    )
    return Note("execution-trace-apart", "info", sentence, max(total, 1))


def _without_schema(execution: ExecutionTrace, unexplained: npt.NDArray[np.bool_]) -> list[Note]:
    count = int(unexplained.sum())
    if not count:
        return []
    codes, counts = np.unique(execution.nodes["name"][unexplained], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    shown = ", ".join(execution.strings[int(codes[i])][:60] for i in order[:4].tolist())
    sentence = (
        f"{execution.path}: operators that do not say which tensors they write: {count} ({shown}"
        f"{', ...' if len(codes) > 4 else ''}); it is taken that they read what they are given "
        "and write what they return, so synchronisation missing around them may not be seen"
    )
    return [Note("operators-without-schema", "info", sentence, count)]
