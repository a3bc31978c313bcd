"""Bandwidths from one rank, with values worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from diagnose import schema
from diagnose.analyzers.collectives import ANALYZERS, BANDWIDTH, SIZES, bandwidth, bus_factor, sizes
from diagnose.readers.nccl_tests import ReferencePoint
from diagnose.schema import NO_ROW, NULL, Activity
from diagnose.trace import Source, Strings, Table, Trace

MIB = 1 << 20


def _trace(*ops: tuple[Any, ...]) -> Trace:
    """Each: (duration_ns, collective, bytes, group_size), optionally group and device."""
    words = ["kernel", "0/1"]

    def code(word: str | None) -> int:
        if word is None:
            return NO_ROW
        if word not in words:
            words.append(word)
        return words.index(word)

    gpu: dict[str, list[int]] = {c.name: [] for c in schema.GPU_OPS.columns}
    known: dict[str, list[int]] = {c.name: [] for c in schema.COLLECTIVES.columns}
    start = 1000
    for row, op in enumerate(ops):
        duration, collective, size, ranks, group, device = (*op, "0", 0)[:6]
        unknown = dict.fromkeys(gpu, NULL) | {"name": 0, "launch_shape": NO_ROW, "source": 0}
        unknown |= {"kind": 0, "activity": Activity.COMMUNICATION, "certain": 1, "device": device}
        unknown |= {
            "shapes": NO_ROW,
            "launch_row": NO_ROW,
            "step_row": NO_ROW,
            "stream": 20,
            "op_id": row,
        }
        for name, value in (unknown | {"start_ns": start, "end_ns": start + duration}).items():
            gpu[name].append(value)
        meta = dict.fromkeys(known, NULL) | {"name": code(collective), "dtype": NO_ROW}
        meta |= {"gpu_op_row": row, "collective": code(collective), "origin": 0}
        meta |= {"group": code(group), "group_ranks": NO_ROW}
        meta |= {"in_addresses": NO_ROW, "out_addresses": NO_ROW}
        meta |= {"bytes": NULL if size is None else size}
        meta |= {"group_size": NULL if ranks is None else ranks, "sequence": row}
        for name, value in meta.items():
            known[name].append(value)
        start += duration + 10
    strings = Strings(words)

    def table(of: schema.TableSchema, columns: dict[str, list[int]]) -> Table:
        arrays = {c.name: np.array(columns[c.name], c.dtype) for c in of.columns}
        return Table(of, arrays, strings)

    empty = {t.name: Table(t, t.empty(), strings) for t in schema.TABLES}
    empty |= {
        "gpu_ops": table(schema.GPU_OPS, gpu),
        "collectives": table(schema.COLLECTIVES, known),
    }
    return Trace(sources=(Source("rank0.json"),), strings=strings, **empty)


# duration_ns, collective, bytes, ranks, algbw, busbw in 10^9 bytes/s
BY_HAND = [
    (500_000, "all_reduce", 64 * MIB, 8, 134.217728, 234.881024),
    (250_000, "all_gather", 64 * MIB, 8, 268.435456, 234.881024),
    (1_000_000, "reduce_scatter", 128 * MIB, 8, 134.217728, 117.440512),
    (200_000, "all_to_all", 16 * MIB, 8, 83.88608, 73.40032),
    (100_000, "broadcast", 8 * MIB, 8, 83.88608, 83.88608),
    (100_000, "reduce", 1000, 4, 0.01, 0.01),
    (100, "send_recv", 1000, 2, 10.0, 10.0),
    (100, "gather", 1000, 4, 10.0, 7.5),
    (100, "scatter", 1000, 5, 10.0, 8.0),
    (100_000, "all_reduce", 2 * MIB, 64, 20.97152, 41.28768),
    (4000, "all_reduce", 4096, 1, 1.024, 0.0),  # a group of one moves nothing
    (4000, "broadcast", 4096, 1, 1.024, 0.0),
    (3000, "all_gather", 0, 8, 0.0, 0.0),  # an empty message
    (0, "all_reduce", 4096, 8, None, None),  # no time, no bandwidth
    (0, "all_reduce", 0, 8, None, None),
    (120_000, "all_reduce", None, 8, None, None),
    (120_000, None, None, None, None, None),
    (100, None, 1000, 8, 10.0, None),
    (100, "dispatch", 1000, 8, 10.0, None),  # nccl-tests defines no factor
    (100, "barrier", 4, 8, 0.04, None),
    (100, "all_reduce", 1000, None, 10.0, None),  # the factor needs the group's size
    (100, "all_reduce", 1000, 0, 10.0, None),
    (100, "broadcast", 1000, None, 10.0, 10.0),
]


def _shown(values: Any) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def test_bandwidth_by_hand() -> None:
    found = bandwidth(_trace(*(row[:4] for row in BY_HAND)))
    assert _shown(found["algbw_gb_per_s"]) == [pytest.approx(row[4]) for row in BY_HAND]
    assert _shown(found["busbw_gb_per_s"]) == [pytest.approx(row[5]) for row in BY_HAND]
    assert found["duration_ns"].tolist() == [row[0] for row in BY_HAND]
    assert found["sequence"].tolist() == list(range(len(BY_HAND)))
    assert found["start_ns"].tolist()[:2] == [1000, 501_010]
    assert found.texts("collective")[:2] == ["all_reduce", "all_gather"]
    assert _shown(found["reference_busbw_gb_per_s"]) == [None] * len(BY_HAND)


@pytest.mark.parametrize("ranks", range(2, 10))
def test_factors_against_the_definition(ranks: int) -> None:
    # doc/PERFORMANCE.md of nccl-tests
    share = (ranks - 1) / ranks
    assert bus_factor("all_reduce", ranks) == pytest.approx(2 * share)
    for kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        assert bus_factor(kind, ranks) == pytest.approx(share)
    for kind in ("broadcast", "reduce", "send_recv"):
        assert bus_factor(kind, ranks) == 1


def test_sizes_most_time_first() -> None:
    trace = _trace(
        (100, "all_reduce", 1000, 2),  # 10 GB/s, bus 10
        (200, "all_reduce", 1000, 2),  # 5
        (400, "all_reduce", 1000, 2),  # 2.5
        (0, "all_reduce", 1000, 2),  # no bandwidth, but counted
        (600, "all_reduce", 1000, 2, "1"),  # another group
        (5000, None, None, None),
        (10, "all_gather", 50, 2, "0", 1),  # another GPU
    )
    found = sizes(trace)
    columns = ("device", "bytes", "count", "total_ns")
    assert [tuple(row) for row in zip(*(found[c].tolist() for c in columns), strict=True)] == [
        (0, NULL, 1, 5000),
        (0, 1000, 4, 700),
        (0, 1000, 1, 600),
        (1, 50, 1, 10),
    ]
    assert found.texts("collective") == [None, "all_reduce", "all_reduce", "all_gather"]
    assert found.texts("group") == ["0", "0", "1", "0"]
    third = 1000 / 600
    assert _shown(found["median_algbw_gb_per_s"]) == [None, 5.0, pytest.approx(third), 5.0]
    assert _shown(found["best_algbw_gb_per_s"]) == [None, 10.0, pytest.approx(third), 5.0]
    assert _shown(found["best_busbw_gb_per_s"]) == [None, 10.0, pytest.approx(third), 2.5]


def test_reference_is_interpolated_in_log_size() -> None:
    reference = [
        ReferencePoint("all_reduce", 1000, 10.0, 8),
        ReferencePoint("all_reduce", 100_000, 30.0, 8),
        ReferencePoint("all_reduce", 1000, 8.0, 8),  # a second, slower run
        ReferencePoint("all_gather", 1000, 99.0, 8),
    ]
    trace = _trace(
        (100, "all_reduce", 1000, 8),
        (100, "all_reduce", 10_000, 8),  # half way in log size
        (100, "all_reduce", 100_000, 8),
        (100, "all_reduce", 999, 8),
        (100, "all_reduce", 100_001, 8),
        (100, "all_reduce", 0, 8),
        (100, "all_reduce", 1000, 64),  # another number of ranks
        (100, "reduce_scatter", 1000, 8),
        (100, None, 1000, 8),
        (100, "all_gather", 1000, 8),
    )
    expected = [10.0, 20.0, 30.0, None, None, None, None, None, None, 99.0]
    found = bandwidth(trace, reference=reference)
    assert _shown(found["reference_busbw_gb_per_s"]) == [pytest.approx(v) for v in expected]
    by_size = sizes(trace, reference=reference)
    assert sorted(v for v in _shown(by_size["reference_busbw_gb_per_s"]) if v is not None) == [
        pytest.approx(v) for v in (10.0, 20.0, 30.0, 99.0)
    ]


def test_reference_without_its_ranks_serves_where_no_other_does() -> None:
    anywhere = ReferencePoint("all_reduce", 1000, 5.0, None)
    exact = ReferencePoint("all_reduce", 1000, 7.0, 8)
    trace = _trace((100, "all_reduce", 1000, 8), (100, "all_reduce", 1000, 2))
    for reference in ([anywhere, exact], [exact, anywhere]):
        found = bandwidth(trace, reference=reference)["reference_busbw_gb_per_s"]
        assert found.tolist() == [7.0, 5.0]


def test_a_reference_for_a_collective_that_the_trace_lacks() -> None:
    trace = _trace((100, None, 1000, 8))
    point = ReferencePoint("all_reduce", 1000, 5.0, None)
    found = bandwidth(trace, reference=[point])["reference_busbw_gb_per_s"]
    assert _shown(found) == [None]


def test_no_collectives() -> None:
    assert len(bandwidth(_trace())) == 0
    assert len(sizes(_trace())) == 0


def test_tables_say_that_bandwidths_are_lower_bounds() -> None:
    assert {a.name: a.schema for a in ANALYZERS} == {
        "collectives": BANDWIDTH,
        "collective_sizes": SIZES,
    }
    for table in (BANDWIDTH, SIZES):
        for column in table.columns:
            if column.name.endswith("bw_gb_per_s") and not column.name.startswith("reference"):
                assert "lower bound" in column.meaning
                assert column.unit == "10^9 bytes/s"
