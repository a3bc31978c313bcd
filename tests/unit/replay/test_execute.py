"""Execution: the definition of a model, by hand, and against plain recursion."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diagnose.analysis import Unavailable
from diagnose.replay._scan import NEVER, Scan
from diagnose.replay.execute import CIRCLE, Times, execute, first_bounds, prepared, times_of
from diagnose.replay.model import Kind, Model
from tests.unit.replay.hand_models import Made, SlowTimes, models


def times(made: Made) -> Times:
    found = execute(made.model())
    assert not isinstance(found, Unavailable)
    return found


class TestByHand:
    def test_launches_that_the_gpu_waits_for(self) -> None:
        made = Made()
        for _ in range(3):
            made.op("compute", 4, launched_by=made.call("main", work=10, takes=2), lag=3, pause=1)
        found = times(made)
        # The first call starts at 0; each next one 2 + 10 later.
        assert found.start_ns.tolist() == [0, 12, 24]
        assert found.return_ns.tolist() == [2, 14, 26]
        assert found.begin_ns.tolist() == [3, 15, 27]
        assert found.end_ns.tolist() == [7, 19, 31]

    def test_launches_ahead_of_the_gpu(self) -> None:
        made = Made()
        for _ in range(3):
            made.op("compute", 40, launched_by=made.call("main", work=10, takes=2), lag=3, pause=1)
        found = times(made)
        assert found.begin_ns.tolist() == [3, 44, 85]
        assert found.end_ns.tolist() == [43, 84, 125]

    def test_a_stream_waits_for_an_event_of_another(self) -> None:
        made = Made()
        gradient = made.op("compute", 100)
        reduction = made.op("communication", 30)
        made.tie(Kind.EVENT_WAIT, gradient, reduction, lag=5)
        optimizer = made.op("compute", 10, pause=2)
        made.tie(Kind.EVENT_WAIT, reduction, optimizer, lag=4)
        found = times(made)
        assert found.begin_ns.tolist() == [0, 105, 139]

    def test_a_collective_begins_when_its_last_member_does(self) -> None:
        made = Made()
        made.op("first compute", 10)
        made.op("second compute", 70, gpu=1)
        made.op("first compute", 20, match=0)
        made.op("second compute", 25, gpu=1, match=0)
        found = times(made)
        assert found.begin_ns.tolist() == [0, 0, 10, 70]
        # Both from the late rank's begin; each with its own transfer.
        assert found.end_ns.tolist() == [10, 70, 90, 95]

    def test_a_waiting_call_returns_after_the_operation(self) -> None:
        made = Made()
        launch = made.call("main", takes=2)
        kernel = made.op("compute", 50, launched_by=launch, lag=3)
        wait = made.call("main", work=1, takes=4, waits=True)
        made.tie(Kind.HOST_WAIT, kernel, wait, lag=6)
        made.call("main", work=10)
        found = times(made)
        assert found.return_ns.tolist() == [2, 59, 69]

    def test_a_call_that_no_longer_waits_returns_by_itself(self) -> None:
        made = Made()
        kernel = made.op("compute", 50)
        wait = made.call("main", work=1, takes=4, waits=False)
        made.tie(Kind.HOST_WAIT, kernel, wait, lag=6)
        assert times(made).return_ns.tolist() == [4]

    def test_a_handoff_counts_from_the_return(self) -> None:
        made = Made()
        kernel = made.op("compute", 50)
        wait = made.call("main", takes=1, waits=True)
        made.tie(Kind.HOST_WAIT, kernel, wait)
        backward = made.call("backward", takes=3)
        made.tie(Kind.HANDOFF, wait, backward, lag=7)
        forward = made.call("main", work=2)
        made.tie(Kind.HANDOFF, backward, forward, lag=5)
        found = times(made)
        assert found.start_ns.tolist() == [0, 57, 65]

    def test_a_full_launch_queue_holds_the_next_call(self) -> None:
        made = Made()
        kernel = made.op("compute", 50)
        call = made.call("main")
        made.tie(Kind.QUEUE_LIMIT, kernel, call, lag=11)
        assert times(made).start_ns.tolist() == [61]

    def test_one_may_begin_before_the_one_ahead_has_ended(self) -> None:
        made = Made()
        made.op("compute", 50)
        made.op("compute", 10, pause=-8)
        assert times(made).begin_ns.tolist() == [0, 42]

    def test_entries_hold_operations_calls_and_returns(self) -> None:
        made = Made()
        kernel = made.op("compute", 5)
        call = made.call("main", takes=1)
        wait = made.call("main", takes=1, waits=True)
        made.enter(kernel, 30)
        made.enter(call, 7)
        made.enter(wait, 40, back=True)
        found = times(made)
        assert found.begin_ns.tolist() == [30]
        assert found.start_ns.tolist() == [7, 8]
        assert found.return_ns.tolist() == [8, 40]

    def test_dependencies_of_earlier_passes_do_not_count_in_one(self) -> None:
        made = Made()
        first, second = made.op("compute", 5), made.op("copy", 5)
        made.tie(Kind.EVENT_WAIT, second, first, lag=100, passes=1)
        assert times(made).begin_ns.tolist() == [0, 0]

    def test_order_is_by_place_not_by_row(self) -> None:
        made = Made()
        made.op("compute", 5)
        made.op("compute", 7)
        model = made.model()
        found = execute(model.with_operations(place=np.array([2.0, 1.0])))
        assert not isinstance(found, Unavailable)
        assert found.begin_ns.tolist() == [7, 0]

    def test_nothing_at_all(self) -> None:
        found = times(Made())
        assert [column.size for column in found] == [0, 0, 0, 0]


class TestCircles:
    def test_two_streams_that_wait_for_each_other(self) -> None:
        made = Made()
        first, second = made.op("compute", 5), made.op("copy", 5)
        made.tie(Kind.EVENT_WAIT, first, second)
        made.tie(Kind.EVENT_WAIT, second, first)
        assert execute(made.model()) is CIRCLE

    def test_an_operation_that_waits_for_a_later_one_of_its_stream(self) -> None:
        made = Made()
        first, second = made.op("compute", 5), made.op("compute", 5)
        made.tie(Kind.EVENT_WAIT, second, first)
        assert execute(made.model()) is CIRCLE

    def test_a_launch_that_needs_the_end_of_what_it_launches(self) -> None:
        made = Made()
        early, late = made.call("main"), made.call("main", waits=True)
        other = made.op("compute", 5, launched_by=early)
        launched = made.op("compute", 5, launched_by=late)
        made.tie(Kind.QUEUE_LIMIT, launched, late)
        made.tie(Kind.EVENT_WAIT, other, launched)
        assert execute(made.model()) is CIRCLE

    def test_two_members_of_a_collective_on_one_stream(self) -> None:
        made = Made()
        made.op("compute", 5, match=0)
        made.op("compute", 5, match=0)
        assert execute(made.model()) is CIRCLE

    def test_over_passes_there_is_none(self) -> None:
        made = Made()
        first, second = made.op("compute", 5), made.op("copy", 5)
        made.tie(Kind.EVENT_WAIT, first, second)
        made.tie(Kind.EVENT_WAIT, second, first, passes=1)
        assert not isinstance(execute(made.model()), Unavailable)


def expected(model: Model) -> Times:
    slow = SlowTimes(model)
    ops, calls = range(model.num_ops), range(model.calls.row.size)
    columns = (
        [slow.begin(op, 0) for op in ops],
        [slow.end(op, 0) for op in ops],
        [slow.start(call, 0) for call in calls],
        [slow.back(call, 0) for call in calls],
    )
    return Times(*(np.array(column, np.int64) for column in columns))


def same(found: Times, wanted: Times) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


class TestAgainstRecursion:
    @given(models())
    def test_by_level(self, model: Model) -> None:
        assert same(_executed(model, loops=False), expected(model))

    @given(models())
    def test_by_point(self, model: Model) -> None:
        assert same(_executed(model, loops=True), expected(model))

    @given(models(), st.randoms(use_true_random=False))
    def test_rows_in_any_order(self, model: Model, random: object) -> None:
        order = list(range(model.num_ops))
        random.shuffle(order)  # type: ignore[attr-defined]
        shuffled = _reordered(model, np.array(order, np.int64))
        found, wanted = execute(shuffled), expected(model)
        assert not isinstance(found, Unavailable)
        assert found.begin_ns.tolist() == wanted.begin_ns[order].tolist()


def _executed(model: Model, *, loops: bool) -> Times:
    execution = prepared(model)
    assert not isinstance(execution, Unavailable)
    scan: Scan = execution.scan
    scan._loops = loops
    return times_of(model, execution, scan.run(first_bounds(model, execution)))


def _reordered(model: Model, order: np.ndarray) -> Model:
    ops = model.operations
    columns = {name: getattr(ops, name)[order] for name in ops.__dataclass_fields__}
    new = np.arange(model.num_ops + 2 * model.calls.row.size)
    new[order] = np.arange(model.num_ops)
    ties = model.dependencies
    moved = ties._replace(from_node=new[ties.from_node], to_node=new[ties.to_node])
    entries = model.entries._replace(node=new[model.entries.node])
    return replace(model, operations=type(ops)(**columns), dependencies=moved, entries=entries)


def test_a_long_chain_and_many_queues_at_once() -> None:
    """Numbers near the largest times: a day in ns over 200 streams, no overflow."""
    day = 86_400 * 10**9
    made = Made()
    for stream in range(200):
        made.op(f"stream {stream}", day)
        made.op(f"stream {stream}", day, pause=1)
    found = times(made)
    assert found.end_ns.tolist() == [day, 2 * day + 1] * 200
    assert found.begin_ns.min() > NEVER
