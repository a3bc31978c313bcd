"""Which bytes, whose life, which operations: what two accesses have in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.analyzers.hazards import hazards
from diagnose.trace import Table
from tests.execution_traces import Tensor, tensor
from tests.unit.analyzers.hazards.programs import Program, X, Y, found, memory

RACE = ("write", "read", "READ_AFTER_WRITE", "WAIT_STREAM", True)


def rows_of(offset: int, stride: int = 16, item: int = 4) -> Tensor:
    """8 rows of 4 floats each, ``stride`` floats apart."""
    return tensor(7, 7, [8, 4], [stride, 1], offset=offset, item=item)


@pytest.mark.parametrize(
    ("written", "read", "expected"),
    [
        (memory(7, 0, 64), memory(7, 32, 96), True),
        (memory(7, 0, 64), memory(7, 63, 64), True),
        (memory(7, 0, 64), memory(7, 64, 128), None),
        (memory(7, 0, 64), memory(8, 0, 64), None),
        # Columns of one matrix: apart, but neither hull tells.
        (rows_of(0), rows_of(4), False),
        (rows_of(0), tensor(7, 7, [3], [50], offset=20), False),
        # The same columns; ones that share the first or the last element.
        (rows_of(4), rows_of(4), True),
        (rows_of(0), tensor(7, 7, [3], [100]), True),
        (rows_of(0), tensor(7, 7, [2], [114], offset=1), True),
        # The whole matrix, its first row, and a gap between two rows.
        (memory(7, 0, 512), rows_of(4), True),
        (rows_of(0), memory(7, 0, 4), True),
        (memory(7, 16, 64), rows_of(0), False),
        (memory(7, 448, 449), rows_of(0), False),
        (memory(7, 463, 470), rows_of(0), True),
        (memory(7, 464, 470), rows_of(0), None),
    ],
)
def test_shared_bytes(tmp_path: Path, written: Tensor, read: Tensor, expected: bool | None) -> None:
    """8 rows of 4 floats, 16 apart, span 4 * (7 * 16 + 4) = 464 bytes."""
    for first, second in ((written, read), (read, written)):
        program = Program()
        program.op("write", writes=[first], stream=20)
        program.op("read", reads=[second])
        race = [] if expected is None else [(*RACE[:4], expected)]
        assert found(program, tmp_path) == race


def test_the_bytes_that_are_told(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[memory(7, 16, 64)], stream=20, ends=95)
    program.op("read", reads=[memory(7, 40, 90)], at=80, starts=90)
    table = hazards(program.trace(tmp_path))
    assert isinstance(table, Table)
    told = {name: table[name].tolist() for name in ("begin", "end", "gap_ns", "first_stream")}
    assert told == {"begin": [40], "end": [64], "gap_ns": [-5000], "first_stream": [20]}
    assert table["second_stream"].tolist() == [7]


def test_a_conflict_that_is_certain_goes_before_a_later_one_that_is_not(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[memory(7, 16, 32)], stream=20)
    program.op("columns", writes=[rows_of(0)], stream=20)
    program.op("read", reads=[memory(7, 16, 32)])
    assert found(program, tmp_path) == [RACE]


def test_an_operator_with_several_kernels_is_over_with_its_last(tmp_path: Path) -> None:
    """The record is between its kernels: which of them writes is not known."""
    program = Program()
    program.op("write", writes=[X], stream=20, kernels=3, at=100, lasts=40)
    program.record("e", 20, at=103.5)
    program.wait("e", 7, at=150)
    program.op("read", reads=[X], at=170)
    program.tell_apart(20)
    assert found(program, tmp_path) == [(*RACE[:4], False)]


def test_an_operator_on_two_streams(tmp_path: Path) -> None:
    """It forks and joins again: ordered as a whole. Without the join one of them is not."""
    for joined in (True, False):
        program = Program()
        external = program.host_op("fork", writes=[X], at=100, lasts=80)
        program.launch("fork", 102, external=external)
        program.record("a", 7, at=110)
        program.wait("a", 20, at=120)
        program.launch("fork", 130, external=external, stream=20)
        program.record("b", 20, at=140)
        if joined:
            program.wait("b", 7, at=150)
        program.op("read", reads=[X], at=200)
        program.tell_apart(7, 20)
        race = ("fork", "read", "READ_AFTER_WRITE", "WAIT_STREAM", False)
        assert found(program, tmp_path) == ([] if joined else [race])


def test_operators_of_two_threads_on_one_stream(tmp_path: Path) -> None:
    """The last kernel of ``slow`` is launched behind the record, those of ``quick`` before."""
    program = Program()
    slow = program.host_op("slow", writes=[X], at=100, lasts=80)
    program.launch("slow", 102, external=slow, stream=20)
    program.op("quick", writes=[X], stream=20, at=110, thread=99)
    program.record("e", 20, at=130, thread=99)
    program.launch("slow", 150, external=slow, stream=20)
    program.wait("e", 7, at=200)
    program.op("read", reads=[X], at=220)
    program.tell_apart(20)
    assert found(program, tmp_path) == [("slow", *RACE[1:4], False)]


def test_an_operator_around_a_part_of_another(tmp_path: Path) -> None:
    """``a`` waits for the first kernel of ``b``, and nothing for its second: one of them writes."""
    program = Program()
    external = program.host_op("b", writes=[X], at=100, lasts=80)
    program.launch("b", 102, external=external)
    program.record("e", 7, at=110)
    program.wait("e", 20, at=120, thread=99)
    program.op("a", reads=[X], stream=20, at=130, thread=99)
    program.launch("b", 150, external=external)
    program.tell_apart(7)
    race = ("a", "b", "WRITE_AFTER_READ", "WAIT_STREAM", False)
    assert found(program, tmp_path) == [race]


def test_an_operator_has_no_hazard_with_itself(tmp_path: Path) -> None:
    program = Program()
    external = program.host_op("fork", writes=[X], at=100, lasts=80)
    program.launch("fork", 102, external=external)
    program.op("between", reads=[X], stream=24, at=110, thread=99)
    program.launch("fork", 130, external=external, stream=20)
    pairs = [(one, two) for one, two, *_ in found(program, tmp_path)]
    assert pairs == [("between", "fork"), ("fork", "between")]


def test_parents_do_not_race_with_their_children(tmp_path: Path) -> None:
    program = Program()
    program.op("outer", writes=[X], at=100, lasts=80)
    program.record("a", 7, at=110)
    program.wait("a", 20, at=120)
    program.op("inner", writes=[X], stream=20, at=130)
    program.record("b", 20, at=150)
    program.wait("b", 7, at=160)
    program.op("read", reads=[X], at=200)
    program.tell_apart(7, 20)
    assert found(program, tmp_path) == []


def test_memory_given_out_again_on_its_stream(tmp_path: Path) -> None:
    program = Program()
    program.op("make", news=[X])
    program.op("use", reads=[X])
    program.op("make again", news=[X])
    assert found(program, tmp_path) == []


def test_memory_given_out_again_while_another_stream_uses_it(tmp_path: Path) -> None:
    program = Program()
    program.op("make", news=[X])
    program.record("e", 7)
    program.wait("e", 20)
    program.op("use", reads=[X], stream=20)
    program.op("make again", news=[X])
    program.tell_apart(20)
    race = ("use", "make again", "REUSE", "RECORD_STREAM", True)
    assert found(program, tmp_path) == [race]


@pytest.mark.parametrize("thread", [4242, 77])
def test_memory_given_out_again_after_somebody_saw_that_it_is_free(
    tmp_path: Path, thread: int
) -> None:
    """The allocator, or NCCL's watchdog, asks; the use was over at 50 us."""
    program = Program()
    program.op("make", news=[X], at=10)
    program.record("e", 7, at=20)
    program.wait("e", 20, at=30)
    program.op("use", reads=[X], stream=20, at=40, ends=50)
    external = program.host_op("aten::empty", news=[X], at=60, lasts=10)
    parent = external if thread == 4242 else None
    program.host_call("cudaEventQuery", at=62, lasts=2, parent=parent, thread=thread)
    program.op("aten::fill_", writes=[X], at=80)
    program.tell_apart(20)
    assert found(program, tmp_path) == []


def test_nobody_asked_before_memory_was_given_out_again(tmp_path: Path) -> None:
    program = Program()
    program.host_call("cudaEventQuery", at=20, lasts=2)
    program.op("use", reads=[X], stream=20, at=40, ends=50)
    program.op("make again", news=[X], at=80)
    program.host_call("cudaEventQuery", at=120, lasts=2)
    assert [kind for _, _, kind, _, _ in found(program, tmp_path)] == ["REUSE"]


def test_pools_of_the_driver_order_reuse_themselves(tmp_path: Path) -> None:
    program = Program()
    program.op("use", reads=[X], stream=20)
    program.host_call("cudaFreeAsync")
    program.host_call("cudaMallocAsync")
    program.op("make again", news=[X])
    assert found(program, tmp_path) == []


def test_an_operator_that_allocates_within_has_one_result(tmp_path: Path) -> None:
    """``native_layer_norm`` and its ``empty`` both return the memory: it is one life."""
    program = Program()
    external = program.host_op("norm", news=[X], at=100, lasts=40)
    program.host_op("aten::empty", news=[X], at=110, lasts=5, schema="aten::empty() -> Tensor")
    program.launch("norm", 120, external=external, stream=20)
    program.op("read", reads=[X], at=200)
    assert found(program, tmp_path) == [("norm", *RACE[1:])]


def test_what_a_collective_lacks_depends_on_whose_stream_it_runs_on(tmp_path: Path) -> None:
    """PyTorch lets a stream of its own wait first, within the call: its work is waited for."""
    program = Program()
    program.op("record_param_comms", reads=[X], news=[X], schema="", stream=20)
    program.op("read", reads=[X])
    race = ("record_param_comms", "read", "READ_AFTER_WRITE", "WAIT_STREAM", True)
    assert found(program, tmp_path) == [race]


def test_collectives_lack_a_wait_of_their_work(tmp_path: Path) -> None:
    program = Program()
    program.op("record_param_comms", reads=[X], news=[X], schema="", stream=20, at=100, lasts=30)
    program.record("a", 7, at=110)
    program.wait("a", 20, at=116)
    program.now = 130
    program.op("read", reads=[X])
    race = ("record_param_comms", "read", "READ_AFTER_WRITE", "WORK_WAIT", True)
    assert found(program, tmp_path) == [race]


def test_a_collective_is_ordered_by_the_wait_of_its_work(tmp_path: Path) -> None:
    """NCCL's own waits for its inner streams have no annotation, and take nothing away."""
    program = Program()
    program.op("make", writes=[X, Y])
    program.record("a", 7)
    program.wait("a", 20)
    program.record("b", 40, annotated=False)
    program.wait("b", 20, annotated=False)
    program.op("record_param_comms", reads=[X], news=[X], schema="", stream=20)
    program.record("c", 20)
    program.op("too early", reads=[X])
    program.wait("c", 7)
    program.op("read", reads=[X])
    program.tell_apart(7, 20)
    race = ("record_param_comms", "too early", "READ_AFTER_WRITE", "WAIT_STREAM", True)
    assert found(program, tmp_path) == [race]


def test_kernels_without_an_operator_are_between_but_touch_nothing(tmp_path: Path) -> None:
    program = Program()
    program.launch("triton", 5, stream=20)
    program.op("write", writes=[X], stream=20)
    program.launch("triton", 25, stream=20)
    program.launch("triton", 26)
    program.op("read", reads=[X])
    assert found(program, tmp_path) == [RACE]


def test_an_id_of_several_operators_or_of_none_ties_nothing(tmp_path: Path) -> None:
    program = Program()
    program.host_op("write", writes=[X])
    program.builder.events[-1]["args"]["External id"] = 0
    program.launch("without operator", 15, stream=20, external=0)
    program.op("read", reads=[X])
    assert found(program, tmp_path) == []
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.op("read", reads=[X])
    for event in program.builder.events:
        event["args"]["External id"] = 5
    assert found(program, tmp_path) == []
