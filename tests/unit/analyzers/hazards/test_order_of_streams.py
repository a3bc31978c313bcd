"""Records, waits, default streams, devices and threads: what orders two accesses, and what not."""

from __future__ import annotations

from pathlib import Path

from diagnose.analyzers.hazards import hazards
from diagnose.readers import read
from diagnose.trace import Table
from tests.unit.analyzers.hazards.programs import Program, X, Y, found, found_in, memory

RACE = ("write", "read", "READ_AFTER_WRITE", "WAIT_STREAM", True)


def test_nothing_between_two_streams_is_a_race(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.op("read", reads=[X])
    assert found(program, tmp_path) == [RACE]


def test_the_kinds_of_hazard(tmp_path: Path) -> None:
    program = Program()
    program.op("read", reads=[X], stream=20)
    program.op("write", writes=[X])
    program.op("first", writes=[Y], stream=20)
    program.op("second", writes=[Y])
    program.op("one", reads=[memory(9)], stream=20)
    program.op("two", reads=[memory(9)])
    assert found(program, tmp_path) == [
        ("read", "write", "WRITE_AFTER_READ", "WAIT_STREAM", True),
        ("first", "second", "WRITE_AFTER_WRITE", "WAIT_STREAM", True),
    ]


def test_a_wait_orders_what_is_in_front_of_its_record(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.record("e", 20)
    program.op("late", writes=[Y], stream=20)
    program.wait("e", 7)
    program.op("read", reads=[X])
    program.op("early", reads=[Y])
    program.tell_apart(20)
    late = ("late", "early", "READ_AFTER_WRITE", "WAIT_STREAM", True)
    assert found(program, tmp_path) == [late]


def test_the_default_stream_does_not_wait_for_others_by_itself(tmp_path: Path) -> None:
    """Streams of PyTorch are made without it; in both directions."""
    program = Program()
    program.op("write", writes=[X])
    program.op("read", reads=[X], stream=20)
    program.op("again", writes=[X])
    assert found(program, tmp_path) == [
        RACE,
        ("read", "again", "WRITE_AFTER_READ", "WAIT_STREAM", True),
    ]


def test_an_event_recorded_twice_is_its_last_record(tmp_path: Path) -> None:
    """Before the wait: the later record counts, whatever it is on. After it: it does not."""
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.record("e", 20)
    program.record("e", 24)  # no work of stream 20 any more
    program.wait("e", 7)
    program.record("e", 20)
    program.op("read", reads=[X])
    program.tell_apart(20, 24)
    assert found(program, tmp_path) == [RACE]


def test_a_second_record_on_the_same_stream_covers_more(tmp_path: Path) -> None:
    program = Program()
    program.record("e", 20)
    program.op("write", writes=[X], stream=20)
    program.record("e", 20)
    program.wait("e", 7)
    program.op("read", reads=[X])
    program.tell_apart(20)
    assert found(program, tmp_path) == []


def test_a_handle_of_another_event_is_what_was_recorded_last(tmp_path: Path) -> None:
    """A handle is used again once its event is gone; the new event was recorded on stream 24."""
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.record("e", 20)
    program.wait("e", 28)
    program.op("other", writes=[Y], stream=24)
    program.record("e", 24)
    program.wait("e", 7)
    program.op("read", reads=[X])
    program.op("fine", reads=[Y])
    program.tell_apart(20, 24)
    assert found(program, tmp_path) == [RACE]


def test_a_wait_before_any_record_waits_for_nothing(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.wait("e", 7)
    program.op("read", reads=[X])
    program.record("e", 20)
    program.tell_apart(20)
    assert found(program, tmp_path) == [RACE]


def test_a_chain_over_a_stream_without_work(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.record("e", 20)
    program.wait("e", 24)
    program.record("f", 24)
    program.wait("f", 7)
    program.op("read", reads=[X])
    program.tell_apart(20)
    assert found(program, tmp_path) == []


def test_a_chain_in_the_wrong_order_is_none(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.record("f", 24)
    program.record("e", 20)
    program.wait("e", 24)
    program.wait("f", 7)
    program.op("read", reads=[X])
    program.tell_apart(20)
    assert found(program, tmp_path) == [RACE]


def test_the_wrong_stream_waits(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.record("e", 20)
    program.wait("e", 24)
    program.op("read", reads=[X])
    program.tell_apart(20)
    assert found(program, tmp_path) == [RACE]


def test_side_streams_of_two_devices(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[X], stream=30, device=1)
    program.op("late", writes=[Y], stream=31, device=1)
    program.record("e", 30, device=1)
    program.wait("e", 20)
    program.op("read", reads=[X], stream=20)
    program.op("early", reads=[Y], stream=20)
    program.wait("f", 30, device=1)
    program.wait("f", 31, device=1)
    late = ("late", "early", "READ_AFTER_WRITE", "WAIT_STREAM", True)
    assert found(program, tmp_path) == [late]


def test_streams_of_equal_number_on_two_devices_are_two(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[X], stream=7, device=1)
    program.op("read", reads=[X], stream=7, device=0)
    assert found(program, tmp_path) == [RACE]


def test_the_backward_thread_on_the_streams_of_forward(tmp_path: Path) -> None:
    """Another thread on the same stream is ordered by the stream; on another it is not."""
    program = Program()
    program.op("forward", writes=[X], stream=20)
    program.op("backward", reads=[X], stream=20, thread=99)
    program.op("elsewhere", reads=[X], stream=24, thread=99)
    race = ("forward", "elsewhere", "READ_AFTER_WRITE", "WAIT_STREAM", True)
    assert found(program, tmp_path) == [race]


def test_records_and_waits_of_two_threads_keep_to_their_own_calls(tmp_path: Path) -> None:
    """Each annotation belongs to the call of its thread, not to the nearest one."""
    program = Program()
    program.op("write", writes=[X], stream=20, at=100)
    program.record("e", 20, at=120)
    program.record("f", 24, at=121, thread=99)
    program.wait("e", 7, at=140)
    program.wait("f", 28, at=141, thread=99)
    program.op("read", reads=[X], at=160)
    program.op("wrong", reads=[X], stream=28, at=180)
    program.tell_apart(20, 24)
    wrong = ("write", "wrong", "READ_AFTER_WRITE", "WAIT_STREAM", True)
    assert found(program, tmp_path) == [wrong]


def test_one_missing_wait_is_told_once(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.op("read", reads=[X])
    program.op("more", reads=[X])
    program.op("elsewhere", reads=[X], stream=24)
    elsewhere = ("write", "elsewhere", "READ_AFTER_WRITE", "WAIT_STREAM", True)
    assert found(program, tmp_path) == [RACE, elsewhere]


def test_each_process_has_an_order_of_its_own(tmp_path: Path) -> None:
    """The same events, streams and storages in two processes; one of them lacks its wait."""
    pinned = memory(3, device="cpu")
    for rank in (0, 1):
        program = Program(rank)
        program.op("write", writes=[X], stream=20)
        program.record("e", 20)
        if rank == 0:
            program.wait("e", 7)
        program.op("read", reads=[X])
        copy = {"copy": "Memcpy DtoH (Device -> Pinned)", "call": "cudaMemcpyAsync"}
        program.op("copy", writes=[pinned], at=100, **copy)
        program.host_call("cudaStreamSynchronize", kind="Stream Sync", at=110, lasts=10)
        program.host_call("cudaDeviceSynchronize", kind="Context Sync", at=120, lasts=10)
        program.host_op("aten::sum", reads=[pinned], at=130)
        program.tell_apart(20)
        program.write(tmp_path)
    trace = read(tmp_path)
    assert found_in(trace) == [RACE]
    table = hazards(trace)
    assert isinstance(table, Table)
    assert [trace.sources[source].rank for source in table["source"].tolist()] == [1]
