"""What holds of every contention analysis, whatever was recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.analysis import Unavailable
from diagnose.contention import (
    contention,
    contention_basis,
    contention_causes,
    contention_kernels,
    overlap_balance,
)
from diagnose.trace import Table
from tests.simulated_contention import Play

TIMES = ("start_ns", "end_ns")

plays = st.builds(
    Play,
    seed=st.integers(0, 10_000),
    num_steps=st.integers(1, 3),
    num_works=st.integers(1, 8),
    per_phase=st.integers(1, 25),
    noise=st.sampled_from([0.0, 0.03, 0.3]),
    outliers=st.sampled_from([0.0, 0.1]),
    unpaired=st.sampled_from([0.0, 0.5]),
    drift=st.sampled_from([0.0, 0.1]),
    num_gpus=st.integers(1, 2),
    overlap_mhz=st.sampled_from([None, 1500.0]),
)


def changed(trace, shift=0, scale=1):
    """The same with all times ``scale`` times as long, and ``shift`` ns later."""

    def moved(table):
        columns = table.columns
        times = {name: columns[name] * scale + shift for name in TIMES}
        return Table(table.schema, columns | times, table.strings)

    samples = trace.samples.columns
    samples |= {"unix_ns": samples["unix_ns"] + shift}
    return replace(
        trace,
        gpu_ops=moved(trace.gpu_ops),
        steps=moved(trace.steps),
        samples=Table(trace.samples.schema, samples, trace.strings),
    )


def same(first, second, factor=1.0):
    """Equal tables, times of the second ``factor`` times as long."""
    if isinstance(first, Unavailable) or isinstance(second, Unavailable):
        assert first == second
        return
    assert len(first) == len(second)
    for column in first.schema.columns:
        a, b = first[column.name], second[column.name]
        # Counts and unknown values stay; times scale, intervals as far as sums round.
        scaled = column.unit == "ns" and column.name != "sample_interval_ns"
        known = first.known(column.name)
        np.testing.assert_array_equal(known, second.known(column.name), column.name)
        expected = a[known] * factor if scaled else a[known]
        # Exposures are measured in whole nanoseconds.
        tolerance = 1e-4 * max(1.0, float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(b[known], expected, rtol=1e-4, atol=tolerance)


@given(plays)
@settings(max_examples=60)
def test_no_time_is_counted_twice_or_lost(play):
    trace = play.run().trace
    basis = contention_basis(trace)
    parts = ("paired", "touched", "no_twin", "crowded", "disagree", "outlier")
    parts += ("unclear", "other_company")
    total = sum(basis[f"{part}_ns"] for part in parts)
    assert total.tolist() == basis["overlapped_ns"].tolist()
    tables = [contention(trace, by) for by in ("all", "gpu", "collective", "family")]
    tables += [contention_kernels(trace), contention_causes(trace)]
    if isinstance(tables[0], Unavailable):
        assert all(isinstance(table, Unavailable) for table in tables)
        assert all(table.because for table in tables)
        return
    overlapped = int(basis["overlapped_ns"].sum())
    for table in tables[:4]:
        assert int(table["overlapped_ns"].sum()) == overlapped
        assert int(table["paired_ns"].sum()) == int(basis["paired_ns"].sum())
        assert table["cost_ns"].sum() == pytest.approx(tables[0]["cost_ns"][0], abs=1)
    kernels = tables[4]
    assert np.nansum(kernels["cost_ns"]) == pytest.approx(tables[0]["cost_ns"][0], abs=1)
    assert (kernels["num_paired"] <= kernels["num_overlapped"]).all()
    for table in tables:
        for name in ("slowdown", "duration_ratio"):
            low, value, high = (table[name + end] for end in ("_low", "", "_high"))
            held = ~np.isnan(value) & ~np.isnan(low)
            assert (low[held] <= value[held] * (1 + 1e-12)).all()
            held &= ~np.isnan(high)
            assert (value[held] <= high[held] * (1 + 1e-12)).all()


@given(plays)
@settings(max_examples=30)
def test_the_balance_adds_up(play):
    balance = overlap_balance(play.run().trace)
    if isinstance(balance, Unavailable):
        return
    known = np.flatnonzero(balance.known("gain_ns"))
    row = {name: balance[name][known] for name in balance.columns}
    np.testing.assert_allclose(row["ideal_ns"], row["step_ns"] - row["contention_ns"])
    np.testing.assert_allclose(row["serial_ns"], row["ideal_ns"] + row["hidden_ns"])
    np.testing.assert_allclose(row["gain_ns"], row["serial_ns"] - row["step_ns"], atol=1)
    cost = contention(play.run().trace, "gpu")
    windows = balance["step_row"] < 0
    measured = balance["measured_ns"][windows]
    assert measured.sum() == pytest.approx(cost["cost_ns"].sum(), abs=1)


@given(plays, st.sampled_from([-3_000_000_000, 86_400_000_000_007]))
@settings(max_examples=20)
def test_the_time_of_day_does_not_matter(play, shift):
    trace = play.run().trace
    later = changed(trace, shift=shift)
    for analysis in (contention, contention_kernels, contention_basis, overlap_balance):
        same(analysis(trace), analysis(later))


@given(plays)
@settings(max_examples=20)
def test_a_slower_machine_has_the_same_slowdown(play):
    trace = replace(play, overlap_mhz=None).run().trace
    slower = changed(trace, scale=3)
    for analysis in (contention, contention_kernels, overlap_balance):
        same(analysis(trace), analysis(slower), 3.0)
