"""What the reports say of late ranks."""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.stragglers import STRAGGLERS, Pattern
from diagnose.reporters._verdict import row_sentences, straggler_sentences
from diagnose.trace import Strings, Table
from tests.builder import TraceBuilder, build_trace

TRACE = build_trace(TraceBuilder(rank=0).kernel("gemm", 0, 10))


def table(*rows):
    usual = {
        "source": 0,
        "device": 0,
        "num_late": 1,
        "num_steps": 10,
        "late_steps": 9,
        "lost_per_step_ns": 5_200_000.0,
        "lost_pct": 11.8,
        "behind_per_step_ns": 5_100_000.0,
        "last_pct": 64.0,
        "owner_pct": 95.0,
        "compute_ratio": 1.03,
        "certain": True,
    }
    given = [usual | row for row in rows]
    columns = {
        c.name: np.array([row[c.name] for row in given], c.dtype) for c in STRAGGLERS.columns
    }
    return Table(STRAGGLERS, columns, Strings())


def test_one_late_rank():
    late = table({"pattern": Pattern.CONSTANT, "rank": 3})
    expected = (
        "Rank 3 holds the others up: late in 9 of 10 steps, last in 64.0 % of its collectives, "
        "costs at most 5.20 ms a step (11.8 % of the step time); it computes 1.03 times as long "
        "as the median rank."
    )
    assert straggler_sentences(TRACE, late) == [expected]
    assert row_sentences(TRACE, late) == [expected]


def test_ranks_that_are_late_together_share_a_sentence():
    rows = [
        {"pattern": Pattern.CONSTANT, "rank": 4, "num_late": 3, "late_steps": 7},
        {"pattern": Pattern.CONSTANT, "rank": 5, "num_late": 3},
        {"pattern": Pattern.CONSTANT, "rank": 9, "num_late": 3, "behind_per_step_ns": 800_000.0},
        {"pattern": Pattern.INHERENT, "rank": 1, "num_late": 2},
    ]
    first, second = straggler_sentences(TRACE, table(*rows))
    assert first == (
        "Ranks 4-5, 9 hold the others up together: each late in at least 7 of 10 steps, by up to "
        "5.10 ms a step against the middle rank."
    )
    assert "no slow rank" in second
    assert len(row_sentences(TRACE, table(*rows))) == 4


def test_what_wanders_names_no_rank():
    [said] = straggler_sentences(TRACE, table({"pattern": Pattern.WANDERING, "rank": 2}))
    assert "another rank each time (notable in 9 of 10 steps)" in said
    assert "ank 2" not in said


def test_doubt_is_said():
    late = {"pattern": Pattern.CONSTANT, "rank": 3, "certain": False}
    assert "Not certain" in straggler_sentences(TRACE, table(late))[0]


def test_unknown_is_left_out():
    row = {"pattern": Pattern.CONSTANT, "rank": 3, "compute_ratio": np.nan}
    row |= {"lost_per_step_ns": np.nan, "lost_pct": 7.5}
    [said] = straggler_sentences(TRACE, table(row))
    assert "costs at most 7.5 % of the window." in said
    assert "nan" not in said


def test_nothing_notable_is_said_with_its_threshold():
    assert straggler_sentences(TRACE, table()) == [
        "No straggler: no rank costs the others 5 % of the step time or more."
    ]
