"""What the host waits for, and what it does with memory that copies use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.analyzers.hazards.programs import PINNED, Program, X, Y, found, memory

RACE = ("write", "read", "READ_AFTER_WRITE", "WAIT_STREAM", True)
OTHER = ("other", "too", "READ_AFTER_WRITE", "WAIT_STREAM", True)
TO_HOST, TO_GPU = "Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"
COPY_BACK = "aten::copy_(Tensor src, Tensor(a!) self) -> ()"


def two_writes() -> Program:
    """X on stream 20, Y on stream 24; both last."""
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.op("other", writes=[Y], stream=24)
    return program


def both_read(program: Program, folder: Path) -> list[tuple[str, str, str, str, bool]]:
    program.op("read", reads=[X])
    program.op("too", reads=[Y])
    return found(program, folder)


def test_the_host_waits_for_a_stream(tmp_path: Path) -> None:
    program = two_writes()
    program.host_call("cudaStreamSynchronize", kind="Stream Sync", stream=20)
    assert both_read(program, tmp_path) == [OTHER]


def test_the_host_waits_for_an_event(tmp_path: Path) -> None:
    """That stream 24 has ended by then as well is chance."""
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.op("other", writes=[Y], stream=24, ends=25)
    program.record("e", 20)
    program.host_wait("e")
    program.tell_apart(20)
    assert both_read(program, tmp_path) == [OTHER]


@pytest.mark.parametrize("name", ["cudaDeviceSynchronize", "cudaFree", "cudaFreeHost"])
def test_the_host_waits_for_the_device(tmp_path: Path, name: str) -> None:
    program = two_writes()
    program.host_call(name, kind="Context Sync" if "Sync" in name else None)
    assert both_read(program, tmp_path) == []


@pytest.mark.parametrize("name", ["cudaFreeAsync", "cudaFreeArrayQuestion", "cudaMalloc"])
def test_calls_that_wait_for_nothing(tmp_path: Path, name: str) -> None:
    program = two_writes()
    program.host_call(name)
    assert both_read(program, tmp_path) == [RACE, OTHER]


def test_the_host_waits_for_one_of_two_devices(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[X], stream=20, device=0)
    program.op("other", writes=[Y], stream=24, device=1)
    program.host_call("cudaDeviceSynchronize", kind="Context Sync", device=0)
    assert both_read(program, tmp_path) == [OTHER]


def test_a_wait_covers_what_was_launched_when_it_began(tmp_path: Path) -> None:
    """Another thread launches while the first one waits."""
    program = Program()
    program.op("write", writes=[X], stream=20, at=100)
    program.host_call("cudaDeviceSynchronize", kind="Context Sync", at=120, lasts=60)
    program.op("other", writes=[Y], stream=24, at=140, thread=99)
    program.now = 200
    assert both_read(program, tmp_path) == [OTHER]


def test_a_question_tells_what_was_over_by_then(tmp_path: Path) -> None:
    """Stream 20 had ended at 30 us, stream 24 had not: the event asked for may have been 20's."""
    program = Program()
    program.op("write", writes=[X], stream=20, ends=30)
    program.op("other", writes=[Y], stream=24)
    program.host_call("cudaEventQuery", kind="Event Sync", at=40, lasts=2)
    assert both_read(program, tmp_path) == [OTHER]


def test_the_end_of_an_event_that_nothing_names(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[X], stream=20, ends=30)
    program.op("other", writes=[Y], stream=24)
    program.now = 40
    program.host_wait("e", annotated=False)
    assert both_read(program, tmp_path) == [OTHER]


@pytest.mark.parametrize(
    ("function", "races"),
    [
        ("train.py(5): step", True),
        ("<built-in method resize_ of torch.storage.UntypedStorage object at 0x7f>", False),
        (None, False),
    ],
)
def test_questions_of_the_allocator(tmp_path: Path, function: str | None, races: bool) -> None:
    """They are about memory that it gives out, which a resized storage gets without a trace."""
    program = Program()
    if function is not None:
        program.builder.event("python_function", function, 1, 500)
    program.op("write", writes=[X], stream=20, ends=30)
    external = program.host_op("aten::empty", news=[memory(50)], at=40)
    program.host_call("cudaEventQuery", kind="Event Sync", at=42, lasts=2, parent=external)
    program.op("read", reads=[X])
    assert found(program, tmp_path) == ([RACE] if races else [])


def test_questions_of_a_thread_that_only_asks_order_nothing(tmp_path: Path) -> None:
    """As NCCL's watchdog does."""
    program = Program()
    program.op("write", writes=[X], stream=20, ends=30)
    program.host_call("cudaEventQuery", kind="Event Sync", at=46, lasts=2, thread=77)
    program.op("read", reads=[X])
    assert found(program, tmp_path) == [RACE]


def test_a_thread_that_waits_for_others(tmp_path: Path) -> None:
    """It launches nothing, but somebody has it wait."""
    program = two_writes()
    program.host_call("cudaStreamSynchronize", kind="Stream Sync", stream=20, thread=77)
    assert both_read(program, tmp_path) == [OTHER]


@pytest.mark.parametrize(
    ("copy", "call", "waits"),
    [
        ("Memcpy DtoH (Device -> Pageable)", "cudaMemcpyAsync", True),
        ("Memcpy HtoD (Pageable -> Device)", "cudaMemcpyAsync", True),
        ("Memcpy DtoH (Device -> Pinned)", "cudaMemcpy", True),
        ("Memcpy DtoH (Device -> Pinned)", "cudaMemcpyAsync", False),
        ("Memcpy DtoD (Device -> Device)", "cudaMemcpyAsync", False),
    ],
)
def test_copies_that_the_host_waits_for(tmp_path: Path, copy: str, call: str, waits: bool) -> None:
    """The copy is over when its call returns, by need or by chance; stream 24 has ended too."""
    program = Program()
    program.op("write", writes=[X], stream=20, ends=30)
    program.op("other", writes=[Y], stream=24, ends=30)
    program.op(
        "copy", stream=20, copy=copy, call=call, at=40, starts=45, ends=49, lasts=15, call_lasts=8
    )
    program.now = 60
    assert both_read(program, tmp_path) == ([OTHER] if waits else [RACE, OTHER])


def test_a_copy_that_outlasts_its_call_is_not_waited_for(tmp_path: Path) -> None:
    """From pageable memory the call returns once all is in the staging buffer."""
    program = two_writes()
    name, call = "Memcpy HtoD (Pageable -> Device)", "cudaMemcpyAsync"
    program.op("copy", stream=20, copy=name, call=call, ends=200)
    assert both_read(program, tmp_path) == [RACE, OTHER]


def test_item_waits_for_its_stream(tmp_path: Path) -> None:
    program = two_writes()
    external = program.host_op("aten::_local_scalar_dense", reads=[X], lasts=50)
    program.launch(
        "item",
        program.now + 2,
        stream=20,
        external=external,
        copy="Memcpy DtoH (Device -> Pageable)",
        call="cudaMemcpyAsync",
    )
    program.host_call("cudaStreamSynchronize", kind="Stream Sync", stream=20)
    program.now += 50
    assert both_read(program, tmp_path) == [OTHER]


def copied_to_host(call: str = "cudaMemcpyAsync") -> Program:
    program = Program()
    program.op("copy", reads=[X], writes=[PINNED], copy=TO_HOST, call=call, schema=COPY_BACK)
    return program


def test_the_host_reads_before_the_copy_is_over(tmp_path: Path) -> None:
    program = copied_to_host()
    program.host_op("aten::sum", reads=[PINNED])
    race = ("copy", "aten::sum", "READ_AFTER_WRITE", "SYNCHRONIZE", True)
    assert found(program, tmp_path) == [race]


def test_the_host_waits_and_reads(tmp_path: Path) -> None:
    program = copied_to_host()
    program.record("e", 7)
    program.host_wait("e")
    program.host_op("aten::sum", reads=[PINNED])
    program.tell_apart(7)
    assert found(program, tmp_path) == []


def test_the_host_reads_at_the_very_end_of_its_wait(tmp_path: Path) -> None:
    """Times may be in whole microseconds."""
    program = copied_to_host()
    program.host_call("cudaStreamSynchronize", kind="Stream Sync", stream=7, at=30, lasts=10)
    program.host_op("aten::sum", reads=[PINNED], at=40)
    assert found(program, tmp_path) == []


def test_the_host_overwrites_what_a_copy_reads(tmp_path: Path) -> None:
    program = Program()
    program.host_op("aten::fill_", writes=[PINNED])
    program.op("copy", reads=[PINNED], writes=[X], copy=TO_GPU, call="cudaMemcpyAsync")
    program.host_op("aten::zero_", writes=[PINNED])
    race = ("copy", "aten::zero_", "WRITE_AFTER_READ", "SYNCHRONIZE", True)
    assert found(program, tmp_path) == [race]


def test_asking_where_memory_is_does_not_read_it(tmp_path: Path) -> None:
    program = copied_to_host()
    schema = "aten::is_pinned(Tensor self, Device? device=None) -> bool"
    program.host_op("aten::is_pinned", reads=[PINNED], schema=schema)
    assert found(program, tmp_path) == []


def test_of_nested_operators_the_innermost_touches(tmp_path: Path) -> None:
    """``aten::to`` around a copy from the host reads nothing itself."""
    program = Program()
    program.host_op("aten::to", reads=[PINNED], at=100, lasts=40)
    program.op(
        "aten::copy_", reads=[PINNED], writes=[X], copy=TO_GPU, call="cudaMemcpyAsync", at=110
    )
    program.host_op("aten::to", writes=[PINNED], at=200, lasts=40)
    program.host_op("aten::fill_", writes=[PINNED], at=210)
    race = ("aten::copy_", "aten::fill_", "WRITE_AFTER_READ", "SYNCHRONIZE", True)
    assert found(program, tmp_path) == [race]


def test_a_kernel_reads_a_number_of_the_host_when_it_is_launched(tmp_path: Path) -> None:
    """It is the host that reads it, so it may be changed at once, but not come from a copy."""
    number = memory(60, 0, 8, device="cpu")
    program = Program()
    program.op("aten::mul_", reads=[number], writes=[X])
    program.host_op("aten::add_", writes=[number])
    assert found(program, tmp_path) == []
    program = copied_to_host()
    program.op("aten::mul_", reads=[memory(3, 0, 8, device="cpu")], writes=[Y])
    race = ("copy", "aten::mul_", "READ_AFTER_WRITE", "SYNCHRONIZE", True)
    assert found(program, tmp_path) == [race]


def test_a_kernel_may_read_memory_of_the_host_itself(tmp_path: Path) -> None:
    """On the stream of the copy."""
    program = copied_to_host()
    program.op("mine::lookup", reads=[PINNED], writes=[Y])
    assert found(program, tmp_path) == []


def test_pageable_memory_is_left_out(tmp_path: Path) -> None:
    program = Program()
    program.op(
        "copy",
        reads=[PINNED],
        writes=[X],
        copy="Memcpy HtoD (Pageable -> Device)",
        call="cudaMemcpyAsync",
    )
    program.host_op("aten::zero_", writes=[PINNED])
    assert found(program, tmp_path) == []
