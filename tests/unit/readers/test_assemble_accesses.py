"""Which operator of the profile a node of the execution trace is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diagnose.readers import read
from diagnose.trace import Note, Trace
from tests.builder import HOST_PID, TraceBuilder
from tests.execution_traces import node, tensor, write

A = tensor(10, 11, [4, 8], [8, 1])
HOST = tensor(20, 21, [2], [1], device="cpu")
RELU = "aten::relu(Tensor self) -> ()"


def profile(*operators: tuple[str, int | None], **rest: Any) -> TraceBuilder:
    builder = TraceBuilder(rank=0, **rest)
    for place, (name, function) in enumerate(operators):
        args = {} if function is None else {"Record function id": function}
        builder.operator(name, 10 * place, 5, **args)
    builder.kernel("k", 500, 10, launch=490)
    return builder


def joined(
    folder: Path, builder: TraceBuilder, *nodes: dict[str, Any], pid: int = HOST_PID
) -> Trace:
    path = write(folder, *nodes, pid=pid)
    path.rename(folder / "rank00000.execution_trace.json")
    return read(builder.write(folder))


def notes(trace: Trace) -> list[Note]:
    return [note for note in trace.notes if "execution-trace" in note.code or "schema" in note.code]


def found(trace: Trace) -> list[tuple[str | None, str | None, int]]:
    """(operator, device, first byte) of each access."""
    table, names = trace.accesses, trace.host_ops.texts("name")
    rows = zip(
        table["host_op_row"].tolist(), table.texts("device"), table["begin"].tolist(), strict=True
    )
    return [(names[row], device, begin) for row, device, begin in rows]


def test_by_id_and_name(tmp_path: Path) -> None:
    """Ids may be reused by what is no operator; the name tells. In order of the profile."""
    builder = profile(("aten::relu", 7), ("aten::mul", 3), ("aten::relu", 9))
    later = tensor(30, 31, [2], [1], offset=4)
    trace = joined(
        tmp_path,
        builder,
        node(9, "aten::relu", RELU, [later]),
        node(7, "aten::relu", RELU, [A, HOST]),
        node(3, "aten::add", RELU, [A]),
    )
    expected = [("aten::relu", "cuda:0", 0), ("aten::relu", "cpu", 0), ("aten::relu", "cuda:0", 16)]
    assert found(trace) == expected
    ids = trace.host_ops["external_id"][trace.accesses["host_op_row"]]
    assert trace.accesses["external_id"].tolist() == ids.tolist()
    [note] = notes(trace)
    # Of three nodes one is not in the profile, of its three operators one is not known.
    assert (note.code, note.count) == ("execution-trace-partial", 2)


def test_all_joined_says_nothing(tmp_path: Path) -> None:
    trace = joined(tmp_path, profile(("aten::relu", 7)), node(7, "aten::relu", RELU, [A]))
    assert found(trace) == [("aten::relu", "cuda:0", 0)]
    assert notes(trace) == []


@pytest.mark.parametrize(
    ("operators", "nodes", "pid", "said"),
    [
        ([("aten::relu", 7)], [node(8, "aten::relu", RELU, [A])], HOST_PID, "a window of its own"),
        ([("aten::relu", 7)], [node(7, "aten::relu", RELU, [A])], 1, "no operator of the profile"),
        ([("aten::relu", None)], [node(7, "aten::relu", RELU, [A])], HOST_PID, "no operator of"),
        ([("aten::relu", 7)], [node(7, "aten::relu", RELU, [])], HOST_PID, "holds no operator"),
        ([("aten::relu", 7)], [], HOST_PID, "holds no operator"),
    ],
)
def test_nothing_in_common(tmp_path: Path, operators: Any, nodes: Any, pid: int, said: str) -> None:
    trace = joined(tmp_path, profile(*operators), *nodes, pid=pid)
    assert found(trace) == []
    [note] = notes(trace)
    assert note.code == "execution-trace-apart"
    assert said in note.sentence


def test_operators_without_schema_are_named(tmp_path: Path) -> None:
    trace = joined(
        tmp_path,
        profile(("mine::one", 7), ("mine::one", 8), ("mine::two", 9)),
        *(node(7 + i, f"mine::{name}", "", [A]) for i, name in enumerate(["one", "one", "two"])),
    )
    [note] = notes(trace)
    assert (note.code, note.count, note.source) == ("operators-without-schema", 3, 0)
    assert "3 (mine::one, mine::two)" in note.sentence


def test_an_access_of_no_operator_with_that_id_anywhere_else(tmp_path: Path) -> None:
    """Ids of the largest size and of none do no harm."""
    largest = (1 << 63) - 1
    trace = joined(
        tmp_path,
        profile(("aten::relu", largest), ("aten::mul", 0)),
        node(largest, "aten::relu", RELU, [A]),
        node(0, "aten::mul", RELU, [A]),
        node(largest, "aten::mul", RELU, [A]),
    )
    assert ("aten::relu", "cuda:0", 0) in found(trace)
    assert len(found(trace)) <= 2
