"""``overlap`` against counting every nanosecond, for every way of splitting it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.schema import Activity
from diagnose.timeline import BY, overlap
from tests.property.hand_made import Mark, Op, count, make_trace, rows_of

LENGTH = 60
FEWER = settings(max_examples=40)
MARKS = [Mark(0, 10), Mark(10, 20), Mark(20, 30)]


@st.composite
def operation(draw: Any) -> Op:
    start = draw(st.integers(0, LENGTH))
    activity = draw(st.sampled_from(Activity))
    talks = activity == Activity.COMMUNICATION
    text = st.sampled_from([None, "a", "b"])
    return Op(
        start,
        draw(st.integers(start, min(start + 25, LENGTH))),
        activity,
        source=draw(st.integers(0, 1)),
        device=draw(st.integers(0, 1)),
        stream=draw(st.sampled_from([None, 0, 7, 20])),
        step=draw(st.sampled_from([None, 0, 1, 2])),
        certain=draw(st.booleans()),
        group=draw(text) if talks else None,
        collective=draw(text) if talks else None,
    )


OPS = st.lists(operation(), max_size=14)


def marks() -> list[Mark]:
    return [dataclasses.replace(mark, source=source) for source in (0, 1) for mark in MARKS]


def key_of(op: Op, by: str) -> Any:
    return {"rank": None, "step": op.step}.get(by, getattr(op, by, None))


def expected(ops: list[Op], by: str) -> dict[Any, dict[str, Any]]:
    """(source, device, key) -> measures, by counting."""
    found: dict[Any, dict[str, Any]] = {}
    for source, device in sorted({(op.source, op.device) for op in ops}):
        on_gpu = [op for op in ops if (op.source, op.device) == (source, device)]
        split = on_gpu
        if by in ("group", "collective"):
            split = [op for op in on_gpu if op.activity == Activity.COMMUNICATION]
        keys = {key_of(op, by) for op in split} | ({0, 1, 2} if by == "step" else set())
        for key in keys:
            own = [op for op in split if key_of(op, by) == key]
            found[source, device, key] = count(own, on_gpu, LENGTH)
    return found


def measured(ops: list[Op], by: Any) -> list[dict[str, Any]]:
    rows = rows_of(overlap(make_trace(ops, marks()), by=by))
    for row in rows:
        row["key"] = row.get("step_row" if by == "step" else by) if by != "rank" else None
        if by == "step" and row["key"] is not None:
            row["key"] -= 3 * row["source"]
    return rows


@pytest.mark.parametrize("by", BY)
@FEWER
@given(ops=OPS)
def test_equals_counting(by, ops):
    rows, counted = measured(ops, by), expected(ops, by)
    assert len(rows) == len(counted)
    for row in rows:
        wanted = counted[row["source"], row["device"], row["key"]]
        for name, value in wanted.items():
            assert row[name] == (pytest.approx(value) if isinstance(value, float) else value), name
        assert row["rank"] == row["source"]
        assert row["overlapped_ns"] + row["exposed_communication_ns"] == row["communication_ns"]


@given(OPS)
def test_busy_and_idle_fill_the_window(ops):
    for row in measured(ops, "rank"):
        on_gpu = [o for o in ops if (o.source, o.device) == (row["source"], row["device"])]
        window = max(o.end for o in on_gpu) - min(o.start for o in on_gpu)
        assert row["window_ns"] == window
        assert row["busy_ns"] + row["idle_ns"] == window


@given(OPS)
def test_every_op_is_in_one_row(ops):
    talking = sum(op.activity == Activity.COMMUNICATION for op in ops)
    for by in BY:
        found = sum(row["num_ops"] for row in measured(ops, by))
        assert found == (talking if by in ("group", "collective") else len(ops))


@given(OPS)
def test_step_times(ops):
    """Step times as the documentation words them, in plain loops."""
    rows = {(r["source"], r["device"], r["key"]): r for r in measured(ops, "step")}
    for source, device in {(op.source, op.device) for op in ops}:
        on_gpu = [o for o in ops if (o.source, o.device) == (source, device)]
        ends = [max([o.end for o in on_gpu if o.step == n], default=None) for n in range(3)]

        def ends_last(n: int, ends: list[int | None] = ends) -> bool:
            return ends[n] is not None and all(e is None or e < ends[n] for e in ends[:n])

        for n in range(3):
            row = rows[source, device, n]
            if n == 0 or not (ends_last(n) and ends_last(n - 1)):
                assert row["step_ns"] is None
                assert row["idle_ns"] is None
                continue
            begin, end = ends[n - 1], ends[n]
            runs = np.zeros(LENGTH, bool)
            for op in on_gpu:
                runs[op.start : op.end] = True
            assert row["step_ns"] == end - begin
            assert row["idle_ns"] == int((~runs[begin:end]).sum())


def plain(rows: list[dict[str, Any]], *without: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in without} for row in rows]


@pytest.mark.parametrize("by", BY)
@FEWER
@given(ops=OPS, shift=st.sampled_from([-1_000_003, 1_733_059_200_000_000_000]))
def test_time_shift_changes_nothing(by, ops, shift):
    moved = [dataclasses.replace(o, start=o.start + shift, end=o.end + shift) for o in ops]
    assert measured(moved, by) == measured(ops, by)


@pytest.mark.parametrize("by", BY)
@FEWER
@given(ops=OPS)
def test_order_of_files_and_names_of_ranks_change_nothing(by, ops):
    swapped = [dataclasses.replace(op, source=1 - op.source) for op in ops]
    other = rows_of(overlap(make_trace(swapped, marks(), ranks=[1, 0]), by=by))
    assert plain(other, "source", "step_row") == plain(
        rows_of(overlap(make_trace(ops, marks()), by=by)), "source", "step_row"
    )
    renamed = rows_of(overlap(make_trace(ops, marks(), ranks=[40, 50]), by=by))
    assert plain(renamed, "rank") == plain(
        rows_of(overlap(make_trace(ops, marks()), by=by)), "rank"
    )


@given(OPS)
def test_doubled_streams_change_no_union(ops):
    twice = ops + [dataclasses.replace(o, stream=(o.stream or 0) + 100) for o in ops]
    doubled = ("num_ops", "kernel_time_ns")
    for by in ("rank", "step", "group", "collective"):
        once, again = measured(ops, by), measured(twice, by)
        assert plain(again, *doubled) == plain(once, *doubled)
        assert [[2 * r[n] for n in doubled] for r in once] == [
            [r[n] for n in doubled] for r in again
        ]
