"""Ends that cannot be true, because work on one stream is serial."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from diagnose.trace import Trace
from tests.builder import TraceBuilder, build_trace

ZERO = 5_000_000_000


def ends(trace: Trace) -> dict[str | None, float]:
    found = zip(trace.gpu_ops.texts("name"), trace.gpu_ops["end_ns"].tolist(), strict=True)
    return {name: (end - ZERO) / 1000 for name, end in found}


def test_an_end_is_cut_at_the_next_start_on_the_stream() -> None:
    builder = TraceBuilder(rank=0).kernel("a", 0, 50).kernel("wrong", 50, 1_600_000)
    builder.kernel("b", 110, 40).kernel("c", 160, 30).kernel("elsewhere", 120, 10, stream=20)
    trace = build_trace(builder)
    assert ends(trace) == {"a": 50, "wrong": 110, "b": 150, "c": 190, "elsewhere": 130}
    (note,) = [note for note in trace.notes if note.code == "same-stream-overlap"]
    assert (note.count, note.severity) == (1, "warning")
    assert "1,599,940.000 us" in note.sentence


def test_a_chain_of_overruns_is_cut_link_by_link() -> None:
    builder = TraceBuilder(rank=0)
    builder.kernel("a", 0, 1000).kernel("b", 10, 900).kernel("c", 20, 800).kernel("d", 30, 5)
    assert ends(build_trace(builder)) == {"a": 10, "b": 20, "c": 30, "d": 35}


def test_an_end_is_cut_if_a_later_than_the_next_operation_lies_within_it() -> None:
    builder = TraceBuilder(rank=0)
    builder.kernel("a", 0, 1000).kernel("b", 10, 2000).kernel("c", 20, 10)
    assert ends(build_trace(builder)) == {"a": 10, "b": 20, "c": 30}


def test_partial_overlaps_are_left() -> None:
    builder = TraceBuilder(rank=0).kernel("a", 0, 60).kernel("b", 50, 60).kernel("c", 109, 60)
    trace = build_trace(builder)
    assert ends(trace) == {"a": 60, "b": 110, "c": 169}
    assert not [note for note in trace.notes if note.code == "same-stream-overlap"]


def test_up_to_a_microsecond_is_left() -> None:
    builder = TraceBuilder(rank=0).kernel("a", 0, 11).kernel("b", 10, 0.5)
    builder.kernel("c", 20, 11.001).kernel("d", 30, 0.5)
    assert ends(build_trace(builder)) == {"a": 11, "b": 10.5, "c": 30, "d": 30.5}


def test_other_streams_and_devices_do_not_matter() -> None:
    builder = TraceBuilder(rank=0).kernel("a", 0, 100, stream=7)
    builder.kernel("b", 10, 10, stream=8).kernel("c", 10, 10, stream=7, device=1)
    assert ends(build_trace(builder)) == {"a": 100, "b": 20, "c": 20}


def test_operations_of_unknown_stream_are_left() -> None:
    builder = TraceBuilder(rank=0)
    for name, start, duration in (("a", 0, 100), ("b", 10, 10)):
        builder.event("kernel", name, start, duration, pid=0, args={"device": 0})
    assert ends(build_trace(builder)) == {"a": 100, "b": 20}


def test_nodes_of_a_graph_may_run_at_once() -> None:
    builder = TraceBuilder(rank=0)
    first, second = (builder.call("cudaGraphLaunch", at) for at in (0, 1))
    builder.kernel("a", 10, 100, correlation=first).kernel("b", 20, 10, correlation=first)
    builder.kernel("c", 50, 10, correlation=second).kernel("d", 70, 10, correlation=second)
    builder.kernel("e", 200, 100, **{"graph node id": 5}).kernel("f", 210, 10)
    expected = {"a": 110, "b": 30, "c": 60, "d": 80, "e": 300, "f": 220}
    assert ends(build_trace(builder)) == expected


def test_equal_starts_leave_no_empty_operation() -> None:
    builder = TraceBuilder(rank=0)
    builder.kernel("long", 50, 1000).kernel("short", 50, 10).kernel("next", 110, 10)
    assert ends(build_trace(builder)) == {"short": 60, "long": 110, "next": 120}


def test_two_starts_at_one_instant_on_a_stream_are_said_to_be_impossible() -> None:
    builder = TraceBuilder(rank=0).kernel("a", 50, 10).kernel("b", 50, 10).kernel("c", 70, 5)
    builder.kernel("d", 50, 10, stream=8).kernel("nothing", 70, 0)
    (note,) = [n for n in build_trace(builder).notes if n.code == "same-stream-start"]
    assert (note.count, note.severity) == (1, "warning")
    graph = TraceBuilder(rank=0)
    for name in "ab":
        graph.kernel(name, 50, 10, correlation=5)
    assert "same-stream-start" not in [note.code for note in build_trace(graph).notes]


def brute_force(ops: list[tuple[int, int]]) -> list[int]:
    """The rule as written: operations sorted by start and end, in whole microseconds."""
    result = []
    for index, (_, end) in enumerate(ops):
        later = ops[index + 1 :]
        starts = [start for start, _ in later if start > ops[index][0]]
        contains = any(other < end for _, other in later)
        result.append(starts[0] if contains and starts and end - starts[0] > 1 else end)
    return result


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=12))
def test_against_the_rule_one_by_one(drawn: list[tuple[int, int]]) -> None:
    builder = TraceBuilder(rank=0)
    for number, (start, duration) in enumerate(drawn):
        builder.kernel(str(number), start, duration)
    intervals = [(start, start + duration, str(n)) for n, (start, duration) in enumerate(drawn)]
    intervals.sort(key=lambda each: each[:2])
    expected = brute_force([each[:2] for each in intervals])
    found = ends(build_trace(builder))
    assert found == {each[2]: end for each, end in zip(intervals, expected, strict=True)}
