from __future__ import annotations

from typing import Any

from diagnose.schema import Detail
from tests.unit.readers.kineto_texts import codes, dumps, kernel, read, table


def mark(
    phase: str, time: int, name: str = "", tid: Any = 7, cat: str = "kernel"
) -> dict[str, Any]:
    event: dict[str, Any] = {"ph": phase, "pid": 0, "tid": tid, "ts": time}
    if name:
        event |= {"name": name}
    if phase == "B":
        event |= {"cat": cat, "args": {"device": 0, "stream": 7, "correlation": time}}
    return event


def spans(events: list[dict[str, Any]], group: str = "gpu") -> list[tuple[str, int, int]]:
    found = table(read(dumps(events).encode()), group)
    return sorted(
        (name, start // 1000, end // 1000)
        for name, start, end in zip(found["name"], found["start_ns"], found["end_ns"], strict=True)
    )


def test_touching_pairs_do_not_nest_in_any_order_of_the_file() -> None:
    events = [mark("B", 0, "a"), mark("E", 100), mark("B", 100, "b"), mark("E", 250)]
    expected = [("a", 0, 100), ("b", 100, 250)]
    assert spans(events) == expected
    assert spans(events[::-1]) == expected
    assert spans([events[2], events[1], events[3], events[0]]) == expected


def test_pairs_of_a_host_thread_nest() -> None:
    events = [
        mark("B", 0, "outer", cat="cpu_op"),
        mark("B", 10, "inner", cat="cpu_op"),
        mark("E", 20),
        mark("E", 30),
    ]
    assert spans(events, "host") == [("inner", 10, 20), ("outer", 0, 30)]


def test_threads_are_apart_and_a_number_is_not_its_text_process() -> None:
    events = [mark("B", 0, "a", tid=1), mark("B", 5, "b", tid=2), mark("E", 7, tid=1)]
    events += [mark("E", 9, tid=2)]
    assert spans(events) == [("a", 0, 7), ("b", 5, 9)]


def test_a_pair_without_length() -> None:
    assert spans([mark("B", 5, "a"), mark("E", 5)]) == [("a", 5, 5)]
    inside = [mark("B", 0, "outer"), mark("B", 5, "zero"), mark("E", 5, "zero"), mark("E", 9)]
    assert spans(inside) == [("outer", 0, 9), ("zero", 5, 5)]


def test_marks_without_partner_are_counted_and_left_out() -> None:
    events = [mark("E", 1), mark("B", 2, "a"), mark("E", 3), mark("B", 4, "never"), kernel(1)]
    raw = read(dumps(events).encode())
    assert table(raw, "gpu")["name"] == ["a", "kernel_1"]
    assert codes(raw) == {"unmatched-begin": 1, "unmatched-end": 1}


def test_a_pair_that_is_not_kept_does_not_end_its_neighbour() -> None:
    events = [
        mark("B", 0, "ProfilerStep#1", cat="user_annotation"),
        mark("B", 1, "aten::mm", cat="cpu_op"),
        mark("E", 2),
        mark("E", 9),
    ]
    raw = read(dumps(events).encode(), Detail.GPU)
    assert table(raw, "host")["end_ns"] == [9000]
    assert codes(raw) == {}


def test_pairs_far_apart_in_the_file() -> None:
    start = 5277830926000
    events = [mark("B", start, "a"), *(kernel(i) for i in range(50)), mark("E", start + 7)]
    raw = read(dumps(events).encode(), Detail.GPU, 300)
    assert table(raw, "gpu")["end_ns"][0] == (start + 7) * 1000
    assert len(raw.gpu["order"]) == 51


def test_an_end_closes_the_begin_that_it_names() -> None:
    """Two pairs that cross: by their names 0..20 and 10..30, whatever began last."""
    events = [mark("B", 0, "a"), mark("B", 10, "b"), mark("E", 20, "a"), mark("E", 30, "b")]
    raw = read(dumps(events).encode())
    assert spans(events) == [("a", 0, 20), ("b", 10, 30)]
    assert codes(raw) == {"crossed-pairs": 1}
    same = [mark("B", 0, "a"), mark("B", 10, "a"), mark("E", 20, "a"), mark("E", 30)]
    assert spans(same) == [("a", 0, 30), ("a", 10, 20)]
    assert codes(read(dumps(same).encode())) == {}


def test_an_end_that_names_nothing_open_closes_nothing() -> None:
    events = [mark("B", 0, "a"), mark("E", 5, "lost"), mark("E", 9, "a")]
    assert spans(events) == [("a", 0, 9)]
    assert codes(read(dumps(events).encode())) == {"unmatched-end": 1}


def test_names_without_end_take_no_time() -> None:
    begins = [mark("B", i, f"n{i}") for i in range(20_000)]
    raw = read(dumps([*begins, *(mark("E", 30_000 + i, f"n{i}") for i in range(20_000))]).encode())
    assert len(raw.gpu["order"]) == 20_000
    assert codes(raw) == {"crossed-pairs": 19_999}
