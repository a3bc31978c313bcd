"""Every figure declares itself, and draws from the tables that it says it needs."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose import engine
from diagnose.analysis import Unavailable
from diagnose.plotting.definition import FigureContext, FigureDefinition
from diagnose.plotting.style import Unit
from tests.builder import TraceBuilder, build_trace
from tests.text import jobs

NAMES = [
    "arrival_skew",
    "overlap",
    "power",
    "ranks",
    "slowdown",
    "staircase",
    "stalls",
    "step_time",
    "timeline",
]


def test_figures_are_found_by_being_there():
    assert list(engine.figures()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_definition_is_whole(name):
    figure = engine.figures()[name]
    assert isinstance(figure, FigureDefinition)
    assert figure.title
    assert figure.reading.endswith(".")
    for analyzer, options in figure.needs.values():
        engine.options_of(engine.analyzers()[analyzer]).bind(**options)  # they exist


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"timeline"}))
def test_what_a_table_lacks_is_why_a_figure_lacks(name):
    """The reason of the analysis comes through as it is."""
    figure = engine.figures()[name]
    missing = Unavailable("nothing was recorded", "record it")
    tables = dict.fromkeys(figure.needs, missing)
    assert figure.draw(tables, FigureContext(jobs.two_ranks())) is missing


def test_times_have_the_unit_of_the_longest_window():
    """Windows of 310 us; and one of 20 ms, which is read in ms."""
    assert FigureContext(jobs.two_ranks()).unit == Unit("us", 1_000, 1)
    long = build_trace(TraceBuilder().kernel("gemm", 0, 10).kernel("gemm", 19_990, 10))
    assert FigureContext(long).unit == Unit("ms", 1_000_000, 2)


def test_steps_are_called_by_their_number():
    context = FigureContext(jobs.two_ranks())
    assert [context.step(row) for row in (-1, 0, 2)] == ["none", "7", "9"]


def test_without_lateness_there_is_nothing_to_draw_of_ranks():
    trace = jobs.two_ranks()
    table = engine.run(engine.analyzers()["ranks"], trace)
    zero = np.zeros(len(table), np.int64)
    even = type(table)(
        table.schema,
        {c.name: table[c.name] for c in table.schema.columns}
        | {"cost_ns": zero, "exposed_wait_ns": zero},
        table.strings,
    )
    drawn = engine.figures()["ranks"].draw({"ranks": even}, FigureContext(trace))
    assert drawn == Unavailable("no GPU cost another time, and none waited")
