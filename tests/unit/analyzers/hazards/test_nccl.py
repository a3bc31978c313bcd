"""NCCL waits for events of its own inside of a collective: for no stream but those it was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.analyzers.hazards.programs import LONG, Program, X, Y, found

COMM, OTHER = 20, 24


def collective(program: Program, stream: int = COMM, **accesses: list) -> None:
    """An all-reduce in which NCCL lets its own stream wait, and then the one that it was given."""
    record = program.host_op("record_param_comms", schema="", lasts=30, **accesses)
    at = program.now
    program.record("-", stream, at=at + 2, annotated=False)
    program.wait("-", 0, at=at + 6, annotated=False, synced=False)
    program.builder.collective(
        "allreduce", at + 11, LONG, launch=at + 10, parent=record, stream=stream
    )
    program.wait("-", stream, at=at + 14, annotated=False)
    program.now = at + 30


def waits_once(program: Program) -> None:
    """Something is annotated, as everything of PyTorch's is then."""
    program.record("a", OTHER)
    program.wait("a", OTHER)


def test_its_waits_order_no_other_stream(tmp_path: Path) -> None:
    program = Program()
    waits_once(program)
    collective(program, reads=[X])
    program.op("update", writes=[X])
    race = ("record_param_comms", "update", "WRITE_AFTER_READ", "WAIT_STREAM", True)
    assert found(program, tmp_path) == [race]


def test_its_waits_are_not_for_what_another_stream_writes(tmp_path: Path) -> None:
    program = Program()
    waits_once(program)
    program.op("backward", writes=[X])
    collective(program, reads=[X])
    race = ("backward", "record_param_comms", "READ_AFTER_WRITE", "WAIT_STREAM", True)
    assert found(program, tmp_path) == [race]


def test_collectives_on_two_streams_are_taken_to_be_ordered(tmp_path: Path) -> None:
    program = Program()
    waits_once(program)
    collective(program, reads=[X])
    collective(program, 28, reads=[Y], news=[X])
    assert found(program, tmp_path) == []


@pytest.mark.parametrize("thread", [1, 2])
def test_a_wait_beside_it_may_be_for_anything(tmp_path: Path, thread: int) -> None:
    """Behind the collective, or on another thread while it lasts."""
    program = Program()
    waits_once(program)
    collective(program, reads=[X])
    at = program.now + 5 if thread == 1 else program.now - 5
    program.wait("-", 7, at=at, annotated=False, thread=4242 + thread - 1)
    program.op("update", writes=[X])
    assert found(program, tmp_path) == []


def test_without_annotations_its_waits_may_be_pytorchs_own(tmp_path: Path) -> None:
    program = Program()
    program.op("backward", writes=[X])
    collective(program, reads=[X])
    assert found(program, tmp_path) == []
