"""Operations that fit a question: rows, exact totals, and what the rows leave out."""

from __future__ import annotations

import json

import pytest

from diagnose.assistant._text import encoded
from diagnose.assistant.arguments import TimelineAsked
from diagnose.assistant.timeline_query import timeline_answer
from diagnose.errors import UnavailableError, UsageError
from diagnose.schema import Detail
from tests.builder import TraceBuilder, build_trace

ZERO = 5_000_000  # us: where the builder's time begins


@pytest.fixture(scope="module")
def trace():
    """Two ranks. Rank 0: compute [10,60) and [70,75), all-reduce [50,80), copy [90,92)."""
    first = TraceBuilder(rank=0, world_size=2)
    first.step(1, 0, 50).step(2, 50, 60)
    first.kernel("GemmKernel", 10, 50, launch=5)
    first.collective("allreduce", 50, 30, elements=1000, launch=20)
    first.kernel("gemm_small", 70, 5, launch=55)
    first.copy("HtoD", 90, 2, launch=60, bytes=4096)
    first.operator("aten::mm", 4, 6)
    first.operator("aten::add", 54, 4)
    second = TraceBuilder(rank=1, world_size=2, pid=77)
    second.step(1, 0, 50)
    second.kernel("GemmKernel", 12, 41, launch=6)
    return build_trace(first, second)


def ask(trace, **asked):
    return json.loads(encoded(timeline_answer(trace, TimelineAsked(recording="r1", **asked))))


def starts(answer):
    return [row["start_us"] - ZERO for row in answer["rows"]]


def test_totals_are_exact_and_the_longest_comes_first(trace):
    answer = ask(trace)
    # 50 + 30 + 5 + 2 on rank 0 and 41 on rank 1; [10,80) + [90,92) on the one, [12,53) on the other
    assert answer["total"] == {"num_operations": 5, "sum_us": 128, "covered_us": 72 + 41}
    assert [row["duration_us"] for row in answer["rows"]] == [50, 41, 30, 5, 2]
    assert answer["left_out"] == {"num_operations": 0, "sum_us": 0}
    assert "clock" in answer["clocks"]


def test_what_the_limit_leaves_out_is_counted(trace):
    answer = ask(trace, limit=2)
    assert [row["duration_us"] for row in answer["rows"]] == [50, 41]
    assert answer["total"]["num_operations"] == 5
    assert answer["left_out"] == {"num_operations": 3, "sum_us": 37}


def test_by_time_within_a_rank(trace):
    assert starts(ask(trace, rank=0, sort="time")) == [10, 50, 70, 90]
    assert starts(ask(trace, rank=1, sort="time")) == [12]
    assert starts(ask(trace, source=1)) == [12]


def test_a_row_says_what_is_known_and_nothing_else(trace):
    [row] = ask(trace, activity="communication")["rows"]
    assert row == {
        "rank": 0,
        "start_us": ZERO + 50,
        "duration_us": 30,
        "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "device": 0,
        "stream": 20,
        "activity": "communication",
        "step": "ProfilerStep#1",
        "bytes": 2000,  # 1000 elements of bfloat16
        "collective": "all_reduce",
        "group_size": 2,
    }
    [copy] = ask(trace, activity="memory")["rows"]
    assert copy["bytes"] == 4096
    assert "collective" not in copy


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"stream": 20}, [50]),
        ({"stream": 3}, []),
        ({"device": 1}, []),
        ({"name": "gemm"}, [10, 70]),
        ({"name": "HtoD"}, [90]),
        ({"step": "2"}, [70, 90]),  # launched at 55 and 60
        ({"step": 2}, [70, 90]),
        ({"step": "ProfilerStep#1"}, [10, 50]),
        ({"from_us": ZERO + 60, "to_us": ZERO + 90}, [50, 70]),  # [10,60) has ended, 90 is not in
        ({"from_us": ZERO + 59.999, "to_us": ZERO + 90.001}, [10, 50, 70, 90]),
    ],
)
def test_filters(trace, asked, expected):
    answer = ask(trace, rank=0, sort="time", **asked)
    assert starts(answer) == expected
    assert answer["total"]["num_operations"] == len(expected)


def test_nothing_fits(trace):
    answer = ask(trace, name="no such kernel")
    assert answer["total"] == {"num_operations": 0, "sum_us": 0, "covered_us": 0}
    assert answer["rows"] == []


def test_one_row_for_all_of_a_name(trace):
    answer = ask(trace, by="name", limit=1)
    assert answer["rows"] == [
        {"name": "GemmKernel", "num_operations": 2, "sum_us": 91, "longest_us": 50}
    ]
    assert answer["left_out"] == {"num_operations": 3, "sum_us": 37}
    names = [row["name"] for row in ask(trace, by="name", activity="compute", sort="time")["rows"]]
    assert names == ["GemmKernel", "gemm_small"]


def test_the_host(trace):
    answer = ask(trace, what="host", name="aten", step=2)
    assert [(row["name"], row["duration_us"]) for row in answer["rows"]] == [("aten::add", 4)]
    assert answer["rows"][0]["thread"] == "4242/4242"
    calls = ask(trace, what="calls", rank=0, sort="time")
    assert starts(calls) == [5, 20, 55, 60]
    assert [row["call"] for row in calls["rows"]] == ["launch", "launch", "launch", "copy"]


@pytest.mark.parametrize(
    ("asked", "sentence", "remedy"),
    [
        ({"rank": 7}, "no such rank", "its ranks: 0, 1"),
        ({"source": 2}, "no such rank or source", "0 to 1"),
        ({"step": 9}, "no step '9'", "ProfilerStep#1, ProfilerStep#2"),
        ({"what": "calls", "stream": 7}, "no stream", "what='gpu'"),
        ({"from_us": float("inf")}, "microseconds", "start_us"),
        ({"to_us": float("nan")}, "microseconds", "start_us"),
    ],
)
def test_what_does_not_exist(trace, asked, sentence, remedy):
    with pytest.raises(UsageError, match=sentence) as caught:
        ask(trace, **asked)
    assert remedy in caught.value.hint


def test_what_was_not_loaded():
    builder = TraceBuilder(rank=0, world_size=1).kernel("gemm", 0, 5)
    trace = build_trace(builder, detail=Detail.GPU)
    assert ask(trace)["total"]["num_operations"] == 1
    for what in ("host", "calls"):
        with pytest.raises(UnavailableError, match="only='gpu'") as caught:
            ask(trace, what=what)
        assert "without `only`" in caught.value.hint


def test_names_are_printable_and_short():
    hostile = "evil\x1b[31m\u202e" + "x" * 9000
    builder = TraceBuilder(rank=0, world_size=1).kernel(hostile, 0, 5)
    answer = ask(build_trace(builder))
    [row] = answer["rows"]
    assert row["name"].startswith("evil\\x1b[31m\\u202exxx")
    assert len(row["name"]) == 200
    assert "clocks" not in answer
