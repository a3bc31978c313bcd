"""Input shapes of the operators that launched GPU work, and how many operators there are."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from diagnose import readers
from diagnose.schema import Detail
from diagnose.trace import Table, Trace
from tests.builder import TraceBuilder
from tests.unit.readers.kineto_texts import as_kineto, kernel, operator

WITH_SHAPES = (Detail.SHAPES, Detail.ALL)


def written(folder: Path, events: list[dict[str, Any]]) -> Path:
    path = folder / "rank0.json"
    path.write_bytes(as_kineto(events))
    return path


def shapes(trace: Trace) -> dict[str, str | None]:
    """Kernel -> input shapes."""
    ops = trace.gpu_ops
    names = [str(name) for name in ops.texts("name")]
    return dict(zip(names, ops.texts("shapes"), strict=True))


def shaped(number: int, dims: Any, **args: Any) -> dict[str, Any]:
    """Operator ``number``: kernel ``number`` carries its External id."""
    event = operator(number)
    event["args"] = {"External id": 10 + number, "Input Dims": dims} | args
    return event


@pytest.mark.parametrize("detail", Detail)
def test_a_kernel_has_the_input_shapes_of_the_operator_around_its_launch(
    tmp_path: Path, detail: Detail
) -> None:
    without_dims = operator(3)
    del without_dims["args"]["Input Dims"]
    events = [
        kernel(1),  # before its operator in the file
        shaped(1, [[4, 8], []]),
        shaped(2, [[16]]),
        without_dims,
        kernel(2),
        kernel(3),
        kernel(4),  # nothing with its id was recorded
        shaped(5, [[1]]),  # launched nothing
    ]
    expected = {"kernel_1": "[[4, 8], []]", "kernel_2": "[[16]]", "kernel_3": "", "kernel_4": ""}
    found = shapes(readers.read(written(tmp_path, events), detail=detail))
    if detail not in WITH_SHAPES:
        expected = dict.fromkeys(expected, "")
    assert {name: text or "" for name, text in found.items()} == expected


@pytest.mark.parametrize("detail", WITH_SHAPES)
def test_of_an_id_that_is_written_twice_the_first_operator_counts(
    tmp_path: Path, detail: Detail
) -> None:
    events = [shaped(1, [[2]]), shaped(1, [[3]]), kernel(1)]
    assert shapes(readers.read(written(tmp_path, events), detail=detail)) == {"kernel_1": "[[2]]"}


@pytest.mark.parametrize("detail", WITH_SHAPES)
def test_no_id_is_no_operator(tmp_path: Path, detail: Detail) -> None:
    """Writers put 0 where there is none."""
    nobody = kernel(1)
    nobody["args"]["External id"] = 0
    event = shaped(1, [[2]])
    event["args"]["External id"] = 0
    found = shapes(readers.read(written(tmp_path, [event, nobody]), detail=detail))
    assert found["kernel_1"] in (None, "")


@pytest.mark.parametrize("detail", WITH_SHAPES)
def test_operators_as_begin_and_end(tmp_path: Path, detail: Detail) -> None:
    begin = shaped(1, [[7]]) | {"ph": "B"}
    del begin["dur"]
    end = {"ph": "E", "name": begin["name"], "pid": 42, "tid": 43, "ts": begin["ts"]}
    found = readers.read(written(tmp_path, [begin, end, kernel(1)]), detail=detail)
    assert shapes(found) == {"kernel_1": "[[7]]"}
    assert [note.code for note in found.notes if "pair" in note.code] == []


def test_an_operator_that_tells_of_a_collective_is_kept_whole(tmp_path: Path) -> None:
    """Whatever its name: what it tells decides what the kernel is."""
    meta = {"Collective name": "allreduce", "In msg nelems": 64, "dtype": "Float", "Group size": 2}
    event = shaped(1, [[64]], **meta) | {"name": "vendor::reduce"}
    events = [event, kernel(1), shaped(2, [[1]])]
    events[1]["name"] = "ncclDevKernel_AllReduce_Sum_f32_RING_LL()"
    path = written(tmp_path, events)
    some, everything = (readers.read(path, detail=detail) for detail in WITH_SHAPES)
    assert some.collectives["bytes"].tolist() == [256] == everything.collectives["bytes"].tolist()
    assert some.host_ops.texts("name") == ["vendor::reduce"]


def test_processes_of_one_file_do_not_share_ids(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for number, pid in enumerate((100, 200)):
        builder.process(pid, f"rank {number}")
        builder.pid = pid
        args = {"External id": 5, "Input Dims": [[number]]}
        builder.event("cpu_op", "aten::mm", 10, 5, args=args)
        builder.call("cudaLaunchKernel", 12, correlation=1)
        builder.kernel(
            f"kernel {number}", 20 + 3 * number, 2, correlation=1, parent=5, pid=7000 * number
        )
    path = builder.write(tmp_path)
    for detail in WITH_SHAPES:
        trace = readers.read(path, detail=detail)
        assert shapes(trace) == {"kernel 0": "[[0]]", "kernel 1": "[[1]]"}, detail
        assert [source.num_ops for source in trace.sources] == [1, 1]


def test_operators_are_counted_where_they_were_read(tmp_path: Path) -> None:
    events = [
        *[shaped(number, [[1]]) for number in range(5)],
        operator(9, "ProfilerStep#1", "user_annotation"),
        operator(9, "run.py(3): step", "python_function"),
        kernel(1),
    ]
    path = written(tmp_path, events)
    found = {detail: readers.read(path, detail=detail).sources[0].num_ops for detail in Detail}
    assert found == {Detail.GPU: None, Detail.LAUNCHES: None, Detail.SHAPES: 5, Detail.ALL: 5}


@pytest.mark.parametrize("name", ["healthy", "straggler"])
def test_a_recording_says_the_same_without_its_host_operators(recordings: Path, name: str) -> None:
    """All but ``host_ops`` itself is the same at both levels."""
    path = recordings / name
    some, everything = (readers.read(str(path), detail=detail) for detail in WITH_SHAPES)
    for table in ("gpu_ops", "launches", "syncs", "collectives", "steps"):
        _same(getattr(some, table), getattr(everything, table))
    assert [s.num_ops for s in some.sources] == [s.num_ops for s in everything.sources]
    assert some.notes == everything.notes
    text = (path / "rank00000.trace.json.gz").read_bytes()

    events = json.loads(gzip.decompress(text))["traceEvents"]
    assert some.sources[0].num_ops == sum(event.get("cat") == "cpu_op" for event in events)
    assert len(some.host_ops) < len(everything.host_ops) / 5


def _same(one: Table, other: Table) -> None:
    for column in one.schema.columns:
        if column.text:
            assert one.texts(column.name) == other.texts(column.name), column.name
        elif not column.name.endswith("op_id"):
            assert one[column.name].tolist() == other[column.name].tolist(), column.name
