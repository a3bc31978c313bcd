"""Execution traces to columns; all values worked out by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from diagnose.readers import execution_trace
from diagnose.readers.execution_trace.tensors import span
from diagnose.readers.raw import ACCESSES, EXECUTION_NODES, ExecutionTrace
from tests.execution_traces import document, node, tensor

# tensor, storage, begin, end, dense, what: r(ead) w(ritten) n(ew)
Row = tuple[int, int, int, int, bool, str]


def read(path: Path) -> ExecutionTrace:
    found, notes = execution_trace.read(str(path))
    assert found is not None
    assert notes == []
    return found


def rows(found: ExecutionTrace) -> list[Row]:
    columns = {name: column.tolist() for name, column in found.accesses.items()}
    said = [
        "r" * reads + "w" * writes + "n" * new
        for reads, writes, new in zip(
            columns["reads"], columns["writes"], columns["new"], strict=True
        )
    ]
    named = ("tensor", "storage", "begin", "end", "dense")
    return list(zip(*(columns[name] for name in named), said, strict=True))


def of(
    folder: Path, schema: str, inputs: list[Any], outputs: list[Any], name: str = ""
) -> list[Row]:
    path = folder / "x.execution_trace.json"
    path.write_text(document(node(1, name or schema.partition("(")[0], schema, inputs, outputs)))
    return rows(read(path))


A = tensor(10, 11, [4, 8], [8, 1])  # 32 floats: 128 bytes
B = tensor(20, 21, [4, 8], [8, 1])
OUT = tensor(30, 31, [4, 8], [8, 1])
READ_A, READ_B = (10, 11, 0, 128, True, "r"), (20, 21, 0, 128, True, "r")


def test_inputs_are_read_and_outputs_made(tmp_path: Path) -> None:
    schema = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
    assert of(tmp_path, schema, [A, B, 1], [OUT]) == [
        READ_A,
        READ_B,
        (30, 31, 0, 128, True, "wn"),
    ]


def test_in_place_reads_and_writes_but_out_only_writes(tmp_path: Path) -> None:
    schema = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
    assert of(tmp_path, schema, [A, B, 1], [A]) == [(10, 11, 0, 128, True, "rw"), READ_B]
    schema = "aten::mul.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)"
    assert of(tmp_path, schema, [A, B, OUT], [OUT]) == [
        READ_A,
        READ_B,
        (30, 31, 0, 128, True, "w"),
    ]
    assert of(tmp_path, schema, [A, B, A], [A]) == [(10, 11, 0, 128, True, "rw"), READ_B]


@pytest.mark.parametrize(
    ("schema", "inputs"),
    [
        ("aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)", [A, 1.5]),
        ("aten::zero_(Tensor(a!) self) -> Tensor(a!)", [A]),
        ("aten::_foreach_zero_(Tensor(a!)[] self) -> ()", [[A]]),
    ],
)
def test_overwriting_is_not_reading(tmp_path: Path, schema: str, inputs: list[Any]) -> None:
    assert of(tmp_path, schema, inputs, []) == [(10, 11, 0, 128, True, "w")]


def test_a_copy_reads_its_source(tmp_path: Path) -> None:
    schema = "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)"
    host = tensor(20, 21, [4, 8], [8, 1], device="cpu")
    path = tmp_path / "x"
    path.write_text(document(node(1, "aten::copy_", schema, [A, host, False], [A])))
    found = read(path)
    assert rows(found) == [(10, 11, 0, 128, True, "w"), READ_B]
    assert [found.strings[code] for code in found.accesses["device"]] == ["cuda:0", "cpu"]


@pytest.mark.parametrize(
    "schema",
    [
        "aten::t(Tensor(a) self) -> Tensor(a)",
        "aten::split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]",
        "aten::expand_as(Tensor(a) self, Tensor other) -> Tensor(a)",
        "aten::record_stream(Tensor(a!) self, Stream s) -> ()",
        "aten::detach_(Tensor(a!) self) -> Tensor(a!)",
        "aten::broadcast_tensors(Tensor[] tensors) -> Tensor[]",
        "aten::is_pinned(Tensor self, Device? device=None) -> bool",
    ],
)
def test_views_touch_nothing(tmp_path: Path, schema: str) -> None:
    view = tensor(12, 11, [8, 4], [1, 8])
    inputs: list[Any] = [[A]] if "[] tensors" in schema else [A, B][: schema.count(",") + 1]
    outputs: list[Any] = [[view]] if "[]" in schema.partition("->")[2] else [view]
    expected = [READ_A] if "[] tensors" in schema else []  # it does not say that it makes views
    assert of(tmp_path, schema, inputs, outputs) == expected


def test_empty_is_new_and_untouched(tmp_path: Path) -> None:
    schema = (
        "aten::empty_like(Tensor self, *, ScalarType? dtype=None, MemoryFormat? "
        "memory_format=None) -> Tensor"
    )
    assert of(tmp_path, schema, [A, None, None], [OUT]) == [(30, 31, 0, 128, True, "n")]
    schema = "aten::zeros(SymInt[] size, *, ScalarType? dtype=None) -> Tensor"
    assert of(tmp_path, schema, [[4, 8], None], [OUT]) == [(30, 31, 0, 128, True, "wn")]


def test_lists_optional_tensors_and_several_results(tmp_path: Path) -> None:
    schema = (
        "aten::_foreach_addcmul_.Scalar(Tensor(a!)[] self, Tensor[] tensor1, Tensor[] tensor2, "
        'Scalar value=1, str how="a, (b!)") -> ()'
    )
    c = tensor(40, 41, [2], [1], item=8)
    assert of(tmp_path, schema, [[A, c], [B, c], [B, B], 1, "x"], []) == [
        (10, 11, 0, 128, True, "rw"),
        (40, 41, 0, 16, True, "rw"),
        READ_B,
    ]
    schema = (
        "aten::native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, "
        "Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)"
    )
    mean, deviation = tensor(50, 51, [4, 1], [1, 1]), tensor(60, 61, [4, 1], [1, 1])
    assert of(tmp_path, schema, [A, [8], None, B, 1e-5], [OUT, mean, deviation]) == [
        READ_A,
        READ_B,
        (30, 31, 0, 128, True, "wn"),
        (50, 51, 0, 16, True, "wn"),
        (60, 61, 0, 16, True, "wn"),
    ]


def test_offsets_and_strides_in_bytes(tmp_path: Path) -> None:
    schema = "aten::sum(Tensor self) -> Scalar"
    # Rows 2 and 3 of 4 x 8 floats; columns 1 and 2 of it; one element; nothing at all.
    half = tensor(1, 2, [2, 8], [8, 1], offset=16)
    columns = tensor(3, 2, [4, 2], [8, 1], offset=1)
    single = tensor(4, 2, [], [], offset=5, item=2)
    nothing = tensor(5, 2, [0, 8], [8, 1])
    assert of(tmp_path, schema, [half], []) == [(1, 2, 64, 128, True, "r")]
    assert of(tmp_path, schema, [columns], []) == [(3, 2, 4, 4 + 4 * 26, False, "r")]
    assert of(tmp_path, schema, [single], []) == [(4, 2, 10, 12, True, "r")]
    assert of(tmp_path, schema, [nothing], []) == []


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        *(((4, 8), (8, 1)), ((8, 4), (1, 8)), ((4, 8), (9, 1)), ((3,), (2,)), ((5,), (0,))),
        *(((), ()), ((1, 7), (99, 1)), ((3, 3), (1, 1)), ((3, 3), (2, 2)), ((2, 2), (1, 3))),
        *(((2, 3, 4), (12, 4, 1)), ((2, 3, 4), (1, 8, 2)), ((4, 3), (2, 3)), ((2, 2), (2, 3))),
    ],
)
def test_span_against_all_elements(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    places = {0}
    for size, stride in zip(shape, strides, strict=True):
        places = {place + i * stride for place in places for i in range(size)}
    assert span(shape, strides) == (max(places) + 1, len(places) == max(places) + 1)


def test_collectives_write_what_they_return(tmp_path: Path) -> None:
    path = tmp_path / "x"
    gathered = tensor(70, 71, [8, 8], [8, 1])
    path.write_text(
        document(
            node(1, "record_param_comms", "", [[A], [8, False], "allreduce"], [[A]]),
            node(2, "record_param_comms", "", [A, [9, False]], [gathered]),
            node(3, "record_param_comms", "", [None, [9, False]], []),
            node(4, "nccl:_all_gather_base", "", [B], [], scope=7),
        )
    )
    found = read(path)
    assert rows(found) == [
        (10, 11, 0, 128, True, "rw"),
        READ_A,
        (70, 71, 0, 256, True, "w"),
        READ_B,
    ]
    assert found.accesses["node"].tolist() == [0, 1, 1, 3]
    assert not found.nodes["unexplained"].any()


def test_operators_without_schema(tmp_path: Path) -> None:
    """What runs within one explains it; so do names that are known, and tensors of the host."""
    host = tensor(80, 81, [2], [1], device="cpu")
    add = "aten::add_.Scalar(Tensor(a!) self, Scalar other) -> Tensor(a!)"
    path = tmp_path / "x"
    path.write_text(
        document(
            node(1, "mine::kernel", "", [A], [OUT, A], identity=100),
            node(2, "wrapper", "", [A], [], identity=200),
            node(3, "aten::add_", add, [A, 1], [A], identity=201, parent=200),
            node(4, "AddmmBackward0", "", [A], [], identity=300, scope=1),
            node(5, "detach", "", [A], [], identity=400),
            node(6, "of_the_host", "", [host], [], identity=500),
            node(7, "damaged schema", "aten::x(Tensor(a!", [A], [OUT], identity=600),
        )
    )
    found = read(path)
    assert found.nodes["unexplained"].tolist() == [True, *[False] * 5, True]
    assert rows(found)[:2] == [(10, 11, 0, 128, True, "rw"), (30, 31, 0, 128, True, "wn")]
    assert rows(found)[-2:] == [READ_A, (30, 31, 0, 128, True, "wn")]


def test_columns_have_the_documented_types(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for nodes in ([], [node(5, "detach", "", [A], [])]):
        path.write_text(document(*nodes))
        found = read(path)
        for columns, documented in ((found.accesses, ACCESSES), (found.nodes, EXECUTION_NODES)):
            assert {name: str(column.dtype) for name, column in columns.items()} == documented
    assert found.process == "4000"


def test_older_versions(tmp_path: Path) -> None:
    """1.0.1: flat, no strides: the extent is the least, and not known to be without gaps."""
    old = {
        "name": "aten::t",
        "id": 5,
        "rf_id": 7,
        "parent": 2,
        "scope": 0,
        "op_schema": "aten::relu(Tensor self) -> Tensor",
        "inputs": [A[0], tensor(1, 2, [], [])[0]],
        "input_shapes": [[4, 8], []],
        "outputs": [OUT[0]],
        "output_shapes": [[4, 8]],
    }
    path = tmp_path / "x"
    path.write_text(json.dumps({"schema": "1.0.1", "pid": 1, "nodes": [old]}))
    found = read(path)
    assert found.nodes["function_id"].tolist() == [7]
    assert rows(found) == [
        (10, 11, 0, 128, False, "r"),
        (1, 2, 0, 4, True, "r"),
        (30, 31, 0, 128, False, "wn"),
    ]


def test_numbers_that_json_has_no_word_for(tmp_path: Path) -> None:
    path = tmp_path / "x"
    text = document(node(1, "aten::mul", "aten::mul(Tensor self, float x) -> ()", [A, 0.25], []))
    path.write_text(text.replace("0.25", "-inf"))
    assert rows(read(path)) == [READ_A]


def test_gzip_is_told_by_content(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(gzip.compress(document(node(1, "detach", "", [A], [])).encode()))
    assert rows(read(path)) == [READ_A]


def test_damaged_operators_are_counted(tmp_path: Path) -> None:
    bad = [
        *([10, 11, -1, 32, 4, "cuda:0"], [10, 11, 2**62, 32, 4, "cuda:0"]),
        *([10, 11, 0, 32, 0, "cuda:0"], [2**70, 11, 0, 32, 4, "cuda:0"]),
    ]
    nodes = [node(1, "detach", "", [A], []), {"id": 3}, "text", {"name": 5}]
    nodes += [node(2, "detach", "", [(one, [4, 8], [8, 1])], []) for one in bad]
    nodes += [node(3, "detach", "", [(A[0], [4, -8], [8, "x"])], [])]
    path = tmp_path / "x"
    path.write_text(document(*nodes))  # type: ignore[arg-type]
    found, [note] = execution_trace.read(str(path))
    assert (note.code, note.severity, note.count) == ("execution-trace-damaged", "info", 7)
    assert found is not None
    assert rows(found) == [READ_A, (10, 11, 0, 128, False, "r")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b'{"traceEvents": []}', "not an execution trace"),
        (b"[]", "not an execution trace"),
        (b'{"nodes": 5}', "not an execution trace"),
        (document(node(1, "detach", "", [A], [])).encode()[:-9], "damaged"),
        (gzip.compress(document().encode())[:-12], "damaged"),
        (b'{"nodes": ' + b"[" * 100_000, "damaged"),
        (b'{"nodes": [' + b"9" * 10_000, "damaged"),
        (b'{"nodes": ["\xff\xfe', "damaged"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 50, "zstd"),
    ],
)
def test_what_cannot_be_read_is_a_note(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.execution_trace.json"
    path.write_bytes(content)
    found, [note] = execution_trace.read(str(path))
    assert found is None
    assert (note.code, note.severity) == ("execution-trace-unreadable", "info")
    assert said in note.sentence
    assert note.sentence.startswith(f"{path}: ")


def test_a_file_that_is_gone_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, [note] = execution_trace.read(str(tmp_path / "gone"))
    assert (found, note.code) == (None, "execution-trace-unreadable")
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(document().encode() + b" " * (2 << 20)))
    monkeypatch.setattr(execution_trace, "MAX_BYTES", 1 << 20)
    found, [note] = execution_trace.read(str(path))
    assert found is None
    assert "larger than 1 MiB" in note.sentence


def test_deep_nesting_is_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "x"
    deep: Any = A[0]
    for _ in range(200):
        deep = [deep]
    path.write_text(document(node(1, "detach", "", [(deep, [], [])], [])))
    assert rows(read(path)) == []
