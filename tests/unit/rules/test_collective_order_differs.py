"""Ranks of one group issue its collectives in different order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "collective-order-differs"
A, B, C = 1024, 4096, 512


def rank(
    number: int,
    steps: Sequence[Sequence[int]],
    *,
    sequence: int | None = None,
    first_step: int = 0,
    marks: bool = True,
    name: str = "allreduce",
    **rest: Any,
) -> TraceBuilder:
    """All-reduces of so many bfloat16 elements, 100 us apart, in each step.

    ``sequence``: the number of the first; without, there are none.
    """
    builder = TraceBuilder(rank=number, world_size=2, pid=100 + number)
    at = 1000.0 * first_step
    for place, sizes in enumerate(steps):
        begin = at
        for elements in sizes:
            told = {} if sequence is None else {"Seq": sequence}
            sequence = None if sequence is None else sequence + 1
            builder.collective(name, at + 20, 50, elements=elements, launch=at + 5, **told, **rest)
            builder.kernel("gemm", at + 20, 60, launch=at + 8)
            at += 100
        if marks:
            builder.step(first_step + place, begin, at - begin)
        at += 50
    return builder


def pair(ours: list[list[int]], theirs: list[list[int]], **rest: Any) -> Any:
    return trace_of(rank(0, ours, **rest), rank(1, theirs, **rest))


def test_fires_by_sequence_number():
    finding = found(pair([[A, B, C]] * 2, [[A, B, C], [B, A, C]], sequence=10), RULE)
    evidence = values(finding)
    # Numbers 13 and 14 of ranks 0 and 1: 2 KiB then 8 KiB, and the other way round.
    assert (evidence["num_places"], evidence["proof"]) == (2, "sequence numbers")
    assert evidence["order_here"].startswith("all_reduce 2.0 KiB")
    assert evidence["order_there"].startswith("all_reduce 8.0 KiB")
    assert "at number 13" in finding.sentence
    assert finding.confidence == "high"
    assert [span.source for span in finding.where.spans] == [0, 1]


def test_fires_by_order_within_a_step():
    finding = found(pair([[A, B, C]] * 2, [[A, B, C], [A, C, B]]), RULE)
    assert values(finding)["num_places"] == 2
    assert values(finding)["proof"] == "order of launch"
    assert finding.confidence == "medium"


def test_sizes_that_read_alike_are_shown_exactly():
    large = 2**24
    finding = found(pair([[large, large + 8]], [[large + 8, large]], sequence=1), RULE)
    assert values(finding)["order_here"].startswith("all_reduce 33,554,432 B")
    assert values(finding)["order_there"].startswith("all_reduce 33,554,448 B")


def test_fires_between_two_matched_collectives_without_steps():
    # 303 collectives, of which 150 to 152 stand in another order on rank 1.
    ours = [[A] * 150 + [A, B, C] + [A] * 150]
    theirs = [[A] * 150 + [B, C, A] + [A] * 150]
    finding = found(pair(ours, theirs, marks=False), RULE)
    assert values(finding)["num_places"] == 3
    assert values(finding)["order_here"].startswith("all_reduce 2.0 KiB")
    assert finding.confidence == "medium"


def test_is_not_judged_where_nothing_says_what_is_the_same():
    _, checked = judged(pair([[A, B, C, C]], [[C, B, C, A]], marks=False), RULE)
    (one,) = checked.not_checked
    assert "profiler.step()" in one.remedy


def test_fires_for_another_kind_under_one_number():
    first, second = rank(0, [[A, B]], sequence=1), rank(1, [[A]], sequence=1)
    second.collective("broadcast", 120, 50, elements=B, launch=105, Seq=2)
    assert values(found(trace_of(first, second), RULE))["num_places"] == 1


@pytest.mark.parametrize("sequence", [None, 1])
def test_silent_where_the_order_is_the_same(sequence):
    assert is_clean(pair([[A, B, C]] * 3, [[A, B, C]] * 3, sequence=sequence), RULE)


def test_silent_where_a_window_cuts_the_first_or_last():
    # Rank 1 lacks the first of its first step and the last of its last one.
    assert is_clean(pair([[A, B, C]] * 3, [[B, C], [A, B, C], [A, B]]), RULE)
    numbered = trace_of(
        rank(0, [[A, B, C]] * 3, sequence=1), rank(1, [[B, C], [A, B, C], [A, B]], sequence=2)
    )
    assert is_clean(numbered, RULE)


def test_silent_where_ranks_issue_different_collectives():
    assert is_clean(pair([[A, B], [A, B]], [[A, B], [A, B, C]]), RULE)


def test_silent_for_sizes_that_differ_by_design():
    # Under one number, but never the other's size: a list of uneven tensors.
    assert is_clean(pair([[A, B]], [[A, C]], sequence=1), RULE)


def test_silent_for_sends_and_receives():
    first = rank(0, [[A, B]], name="send", **{"Src Rank": 0, "Dst Rank": 1})
    second = rank(1, [[B, A]], name="send", **{"Src Rank": 1, "Dst Rank": 0})
    findings, _ = judged(trace_of(first, second), RULE)
    assert not findings


def test_silent_within_a_batched_call():
    # One description stands for both of a step, whose number they share.
    builders = []
    for number, sizes in ((0, [A, B]), (1, [B, A])):
        builder = TraceBuilder(rank=number, world_size=2, pid=100 + number)
        for step in range(3):
            at = 1000.0 * step
            builder.step(step, at, 500)
            call = builder.operator("record_param_comms", at, 20)
            for place, elements in enumerate(sizes):
                builder.collective(
                    "allreduce", at + 20 + 50 * place, 50, elements=elements,
                    launch=at + 5 + place, parent=call, Seq=step,
                )  # fmt: skip
        builders.append(builder)
    findings, _ = judged(trace_of(*builders), RULE)
    assert not findings


def test_silent_across_groups():
    """Each group in its own order, the two groups in different order on the two ranks."""
    builders = []
    for number, order in ((0, ("x", "y")), (1, ("y", "x"))):
        builder = TraceBuilder(rank=number, world_size=2, pid=100 + number)
        for step in range(3):
            builder.step(step, 300.0 * step, 300)
            for place, group in enumerate(order):
                at = 300.0 * step + 100 * place
                elements = A if group == "x" else B
                builder.collective(
                    "allreduce", at + 20, 50, elements=elements, group=group, launch=at + 5
                )
        builders.append(builder)
    findings, _ = judged(trace_of(*builders), RULE)
    assert not findings


def test_names_the_rank_that_differs_of_four():
    builders = [
        rank(number, [[A, B], [B, A] if number == 2 else [A, B]], sequence=1, group_size=4)
        for number in range(4)
    ]
    finding = found(trace_of(*builders), RULE)
    assert [gpu.rank for gpu in finding.where.gpus] == [0, 2]


def test_does_not_apply_to_one_rank():
    _, checked = judged(trace_of(rank(0, [[A, B]])), RULE)
    assert [one.because for one in checked.not_checked] == ["one rank was given"]
