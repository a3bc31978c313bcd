"""The step clock on made-up optimizers: which one is counted, and what a mark holds."""

from __future__ import annotations

import gc
import sys
import threading
from types import SimpleNamespace

import pytest

from diagnose.agent.protocol import RefusalError
from diagnose.agent.sequence import SequenceReader
from diagnose.agent.start import Start, read_start
from diagnose.agent.steps import RING, Mark, StepClock


class Optimizer:
    def __init__(self, elements: int = 1) -> None:
        parameter = SimpleNamespace(numel=lambda: elements)
        self.param_groups = [{"params": [parameter]}]


def step(clock: StepClock, *optimizers: Optimizer) -> int:
    for optimizer in optimizers:
        clock.hook(optimizer, (), {})
    return clock.step


def test_the_first_optimizer_is_the_clock() -> None:
    clock, first, second = StepClock(), Optimizer(), Optimizer(9)
    assert step(clock, first, second, first, second) == 2
    assert [mark.step for mark in clock.marks()] == [1, 2]
    assert [mark.step for mark in clock.marks(since=1)] == [2]
    assert clock.marks()[0].seq is None
    assert clock.marks()[0].unix_ns < clock.marks()[1].unix_ns


def test_an_optimizer_that_cannot_be_watched_is_counted_all_the_same() -> None:
    class Slotted:
        __slots__ = ("param_groups",)

    clock, optimizer = StepClock(), Slotted()
    for _ in range(3):
        clock.hook(optimizer, (), {})
    assert clock.step == 3


def test_the_next_one_takes_over_when_the_clock_is_gone() -> None:
    clock, first, second = StepClock(), Optimizer(), Optimizer()
    step(clock, first)
    del first
    gc.collect()
    assert step(clock, second, second) == 3


def test_another_takes_over_when_the_clock_stands_still() -> None:
    clock, first, second = StepClock(), Optimizer(), Optimizer()
    step(clock, first)
    assert step(clock, *[second] * 63) == 1
    assert step(clock, first) == 2  # it moved: nobody takes over
    assert step(clock, *[second] * 63) == 2
    assert step(clock, second) == 3
    assert step(clock, first) == 3


def test_many_optimizers_in_a_step_take_nothing_over() -> None:
    clock, many = StepClock(), [Optimizer() for _ in range(200)]
    for _ in range(5):
        step(clock, *many)
    assert clock.step == 5


@pytest.mark.parametrize("entered_at", [0, 1])
def test_a_late_agent_takes_the_largest_wherever_it_came_in(entered_at: int) -> None:
    small, large = Optimizer(10), Optimizer(1000)
    order = [small, large] * 4
    clock = StepClock(watch_round=True)
    step(clock, *order[entered_at:])
    # Four steps of the large one were seen, each a mark, also that of the round watched.
    assert clock.step == 4
    assert len(clock.marks()) == 4
    assert step(clock, small) == 4
    assert step(clock, large) == 5


def test_a_late_agent_with_one_optimizer_loses_no_step() -> None:
    clock, only = StepClock(watch_round=True), Optimizer()
    assert step(clock, only) == 0
    assert step(clock, only) == 2
    assert [mark.step for mark in clock.marks()] == [1, 2]


def test_the_ring_is_bounded() -> None:
    clock = StepClock()
    for _ in range(RING + 5):
        clock.mark()
    assert len(clock.marks()) == RING
    assert clock.marks()[0].step == 6
    assert [mark.step for mark in clock.marks(most=2)] == [RING + 4, RING + 5]


def test_median_interval() -> None:
    clock = StepClock()
    assert clock.interval_ns() is None
    clock.ring.extend([(1, None, 0), (2, None, 10), (3, None, 1010), (4, None, 1030)])
    assert clock.interval_ns() == 20


def test_the_listener_hears_on_the_training_thread() -> None:
    clock, heard = StepClock(), []
    clock.listener = heard.append
    thread = threading.Thread(target=lambda: step(clock, Optimizer()))
    thread.start()
    thread.join()
    assert [type(mark) for mark in heard] == [Mark]
    assert clock.training_thread == thread.ident


def test_first_step_is_told_once() -> None:
    clock, told = StepClock(), []
    clock.on_first = lambda: told.append(clock.step)
    only = Optimizer()
    step(clock, only, only)
    assert told == [0]


class Group:
    def __init__(self, size: int, number: int = 0, moves: bool = True) -> None:
        self.size = lambda: size
        self.number, self.moves, self.broken = number, moves, False

    def _get_sequence_number_for_group(self) -> int:
        if self.broken:
            raise RuntimeError("does not support sequence numbers")
        self.number += self.moves
        return self.number


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    world = SimpleNamespace(default_pg=Group(4, 10), pg_names={})
    module = SimpleNamespace(_world=world)
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", module)
    return world


def test_sequence_number(world: SimpleNamespace) -> None:
    reader = SequenceReader()
    assert (reader.read(), reader.read()) == (11, 12)
    world.default_pg = None  # destroyed
    assert reader.read() is None
    world.default_pg = Group(4, 70)  # and made anew
    assert reader.read() == 71


def test_a_backend_without_numbers_is_asked_once(world: SimpleNamespace) -> None:
    world.default_pg.broken = True
    reader = SequenceReader()
    assert reader.read() is None
    world.default_pg.broken = False
    assert reader.read() is None  # an exception a step would cost more than the rest
    reader.reset()
    assert reader.read() == 11


def test_without_process_groups_there_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.distributed.distributed_c10d", raising=False)
    reader = SequenceReader()
    assert reader.read() is None
    assert reader.read_all() == {}


def test_a_group_of_all_ranks_stands_in_for_an_idle_default_group(world: SimpleNamespace) -> None:
    world.default_pg.moves = False
    tensor, every, later = Group(2), Group(4, 100), Group(4, 200)
    world.pg_names = {world.default_pg: "0", tensor: "1", later: "7", every: "3"}
    reader = SequenceReader()
    first, second = reader.read_all(), reader.read_all()
    assert first == {"": 10, "3": 101, "7": 201}
    assert reader.choose(first, second) == "3"
    assert reader.read() == 103
    reader.reset()
    assert reader.read() == 10


def test_the_default_group_is_preferred(world: SimpleNamespace) -> None:
    world.pg_names = {world.default_pg: "0", Group(4): "1"}
    reader = SequenceReader()
    assert reader.choose(reader.read_all(), reader.read_all()) == ""
    assert reader.group is None


def test_start_on_each_clock() -> None:
    mark = Mark(step=20, seq=100, unix_ns=1_000)
    by_seq = read_start({"seq": 110}, 4, 50)
    assert by_seq == Start("seq", 110, 4)
    assert by_seq.missed(mark) is None
    assert by_seq.missed(mark._replace(seq=106)) is not None  # 106 is the one to prepare at
    assert not by_seq.near(mark._replace(seq=105))
    assert by_seq.near(mark._replace(seq=106))
    assert by_seq.near(mark._replace(seq=300))
    assert not by_seq.near(mark._replace(seq=None))
    by_step = read_start({"step": 25}, None, 50)
    assert by_step == Start("step", 25, 1)
    assert not by_step.near(mark._replace(step=23))
    assert by_step.near(mark._replace(step=24))
    by_time = read_start({"unix_ns": 5_000}, 7, 50)
    assert by_time == Start("unix", 5_000, 50)
    assert by_time.near(mark._replace(unix_ns=4_950))
    assert by_time.missed(mark) is None


def test_start_without_a_number_is_refused() -> None:
    with pytest.raises(RefusalError, match="no sequence number"):
        read_start({"seq": 1}, 1, None).missed(Mark(1, None, 5))


@pytest.mark.parametrize(
    ("start", "stride"),
    [
        (None, 1),
        ({}, 1),
        ({"seq": 1, "step": 2}, 1),
        ({"when": 1}, 1),
        ({"seq": 1.5}, 1),
        ({"seq": True}, 1),
        ({"seq": -1}, 1),
        ({"seq": "1"}, 1),
        ({"seq": 1}, 0),
        ({"seq": 1}, "2"),
        ([1], 1),
    ],
)
def test_bad_start_is_refused(start: object, stride: object) -> None:
    with pytest.raises(RefusalError) as refusal:
        read_start(start, stride, None)
    assert refusal.value.code == "bad-request"
