"""What a recording does not say: nothing is claimed of pairs that it may order."""

from __future__ import annotations

from pathlib import Path

from tests.unit.analyzers.hazards.programs import Program, X, Y, found

RACE = ("write", "read", "READ_AFTER_WRITE", "WAIT_STREAM", True)


def test_an_event_of_another_device(tmp_path: Path) -> None:
    """Its default stream was never seen to wait: its handle may be any stream that has none."""
    program = Program()
    program.handles = {(1, 11): "1"}
    program.op("write", writes=[X], stream=11, device=1)
    program.record("e", 11, device=1)
    program.wait("e", 7)
    program.op("read", reads=[X])
    assert found(program, tmp_path) == []


def test_default_streams_of_two_devices_are_told_apart(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[X], stream=11, device=1)
    program.record("e", 7)
    program.wait("e", 20)
    program.op("read", reads=[X], stream=20)
    program.tell_apart(7, 20)
    assert found(program, tmp_path) == [RACE]


def test_a_wait_that_nothing_names_is_taken_to_wait_for_everything(tmp_path: Path) -> None:
    for synced in (True, False):
        program = Program()
        program.op("write", writes=[X], stream=20)
        program.record("e", 20, annotated=False)
        program.wait("e", 7, annotated=False, synced=synced)
        program.op("read", reads=[X])
        program.op("after", writes=[X], stream=20)
        expected = [("read", "after", "WRITE_AFTER_READ", "WAIT_STREAM", True)]
        assert found(program, tmp_path) == expected


def test_a_record_that_nothing_names_may_be_of_the_event_waited_for(tmp_path: Path) -> None:
    """The annotations begin a moment after the profile."""
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.record("e", 20, annotated=False)
    program.op("late", writes=[Y], stream=20)
    program.wait("e", 7)
    program.op("read", reads=[X])
    program.op("early", reads=[Y])
    late = ("late", "early", "READ_AFTER_WRITE", "WAIT_STREAM", True)
    assert found(program, tmp_path) == [late]


def test_an_event_recorded_before_the_window_orders_nothing_in_it(tmp_path: Path) -> None:
    program = Program()
    program.wait("e", 7)
    program.op("write", writes=[X], stream=20)
    program.wait("e", 7)
    program.op("read", reads=[X])
    assert found(program, tmp_path) == [RACE]


def test_annotations_whose_calls_are_not_recorded_still_count(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.record("e", 20, called=False)
    program.wait("e", 7, called=False)
    program.op("read", reads=[X])
    program.tell_apart(20, 7)
    assert found(program, tmp_path) == []


def test_a_stream_that_no_wait_tells_may_be_any(tmp_path: Path) -> None:
    """Handle 1014 waits nowhere: stream 20 or 24, so nothing is said of either."""
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.op("other", writes=[Y], stream=24)
    program.record("e", 20)
    program.wait("e", 7)
    program.op("read", reads=[X])
    program.op("too", reads=[Y])
    assert found(program, tmp_path) == []


def test_a_stream_that_no_wait_tells_is_none_that_another_handle_is(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.op("other", writes=[Y], stream=24)
    program.record("e", 20)
    program.wait("e", 7)
    program.op("read", reads=[X])
    program.op("too", reads=[Y])
    program.tell_apart(24)
    assert found(program, tmp_path) == [("other", "too", "READ_AFTER_WRITE", "WAIT_STREAM", True)]


def test_a_stream_that_no_wait_tells_is_not_the_default_one(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[X])
    program.op("work", stream=20)
    program.record("e", 20)
    program.wait("e", 24)
    program.op("read", reads=[X], stream=24)
    program.tell_apart(7)
    assert found(program, tmp_path) == [RACE]


def test_an_annotation_does_not_take_the_call_of_another(tmp_path: Path) -> None:
    """The second record's call is not recorded: it was behind ``late``, not in front of it."""
    program = Program()
    program.record("e", 20)
    program.op("late", writes=[X], stream=24)
    program.record("f", 24, called=False)
    program.wait("f", 7)
    program.op("read", reads=[X])
    program.tell_apart(20, 24)
    assert found(program, tmp_path) == []


def test_a_value_in_memory_that_a_stream_waits_for(tmp_path: Path) -> None:
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.host_call("cuStreamWaitValue32")
    program.op("read", reads=[X])
    assert found(program, tmp_path) == []


def test_work_launched_before_the_window_is_unknown(tmp_path: Path) -> None:
    program = Program()
    external = program.host_op("write", writes=[X])
    program.builder.kernel("old", 0, 50, stream=20, parent=external)  # no launch recorded
    program.op("read", reads=[X])
    assert found(program, tmp_path) == []
