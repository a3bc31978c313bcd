"""How fast a step is replayed: synthetic models of 8 ranks, one change, until it settles.

``python -m benchmarks.replay_speed [--events N]`` prints CPU seconds per model. An event is an
operation of a GPU or a call of the host. The models differ in how often work goes back and
forth between queues, which is what decides (``diagnose.replay._schedule``).
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose import schema
from diagnose.analysis import Unavailable
from diagnose.replay.execute import prepared
from diagnose.replay.model import Calls, Dependencies, Kind, Model, Operations
from diagnose.replay.steady import settle
from diagnose.schema import NO_ROW, NULL, Activity, Detail
from diagnose.trace import Source, Strings, Table, Trace

Array = npt.NDArray[np.int64]
RANKS = 8


class Shape(NamedTuple):
    """How often something happens, in kernels of a rank. 0: never."""

    name: str
    reduce_every: int
    wait_every: int


SHAPES = (
    Shape("host ahead, an all-reduce every 50 kernels", 50, 0),
    Shape("an all-reduce every 10 kernels", 10, 0),
    Shape("the host waits every 50 kernels", 50, 50),
    Shape("the host waits every 5 kernels", 50, 5),
    Shape("every launch waits", 50, 1),
)


def model_of(shape: Shape, num_events: int, seed: int = 7) -> Model:
    """One step of ``RANKS`` ranks with about ``num_events`` operations and calls."""
    per_kernel = 2 + (2 / shape.reduce_every) + (1 / shape.wait_every if shape.wait_every else 0)
    kernels = int(num_events / RANKS / per_kernel)
    random = np.random.default_rng(seed)
    parts = [_rank(shape, kernels, rank, random) for rank in range(RANKS)]
    ties, op, call = [], 0, sum(part.duration.size for part in parts)
    for part in parts:
        tie = part.ties
        shift_of = np.where(tie.kind == Kind.LAUNCH, call, op)
        shift_to = np.where(tie.kind == Kind.HOST_WAIT, call, op)
        ties.append(
            tie._replace(from_node=tie.from_node + shift_of, to_node=tie.to_node + shift_to)
        )
        op, call = op + part.duration.size, call + part.waits.size
    return _assembled(parts, Dependencies.joined(ties))


class _Rank(NamedTuple):
    """Operations in order of streams, then calls; ``ties`` count both from 0."""

    stream: Array
    duration: Array
    match: Array
    waits: npt.NDArray[np.bool_]
    ties: Dependencies


def _rank(shape: Shape, kernels: int, rank: int, random: np.random.Generator) -> _Rank:
    reduces = np.arange(shape.reduce_every - 1, kernels, shape.reduce_every)
    every = shape.wait_every or kernels + 1
    waits: Array = np.arange(every - 1, kernels, every)
    # Calls: 0 launches a kernel, 1 the all-reduce after it, 2 waits for it.
    sort = np.repeat([0, 1, 2], [kernels, len(reduces), len(waits)])
    after = np.concatenate([np.arange(kernels), reduces, waits])
    order = np.lexsort((sort, after))
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    kernel_call, reduce_call, wait_call = (place[sort == number] for number in range(3))
    reduce = kernels + np.arange(len(reduces))
    later = np.minimum(reduces + shape.reduce_every // 2 + 1, kernels - 1)
    kinds = [
        (kernel_call, np.arange(kernels), 6_000, Kind.LAUNCH),
        (reduce_call, reduce, 6_000, Kind.LAUNCH),
        (reduces, reduce, 3_000, Kind.EVENT_WAIT),
        (reduce[later > reduces], later[later > reduces], 3_000, Kind.EVENT_WAIT),
        (waits, wait_call, 8_000, Kind.HOST_WAIT),
    ]
    return _Rank(
        np.repeat([2 * rank, 2 * rank + 1], [kernels, len(reduces)]),
        np.concatenate([random.integers(3_000, 15_000, kernels), np.full(len(reduces), 80_000)]),
        np.concatenate([np.full(kernels, -1), np.arange(len(reduces))]),
        (sort == 2)[order],
        Dependencies.joined([_ties(*kind) for kind in kinds]),
    )


def _ties(of: Array, to: Array, lag: int, kind: Kind) -> Dependencies:
    size = of.size
    return Dependencies(
        of, to, np.full(size, lag), np.full(size, kind, np.int8), np.zeros(size, np.int8)
    )


def _assembled(parts: list[_Rank], dependencies: Dependencies) -> Model:
    stream, duration, match = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("stream", "duration", "match")
    )
    waits = np.concatenate([part.waits for part in parts])
    ops, calls = duration.size, waits.size
    per_rank = [part.waits.size for part in parts]
    return Model(
        trace=_empty_trace(),
        num_steps=1,
        operations=Operations(
            row=np.full(ops, NO_ROW),
            gpu=(stream // 2).astype(np.int32),
            stream=stream.astype(np.int32),
            place=np.arange(ops, dtype=np.float64),
            step=np.zeros(ops, np.int32),
            activity=np.full(ops, Activity.COMPUTE, np.int8),
            duration_ns=duration,
            pause_ns=np.full(ops, 1_200),
            match=match,
            bytes=np.full(ops, NULL),
        ),
        calls=Calls(
            row=np.full(calls, NO_ROW),
            source=np.repeat(np.arange(RANKS), per_rank).astype(np.int32),
            thread=np.repeat(np.arange(RANKS), per_rank).astype(np.int32),
            place=np.arange(calls, dtype=np.float64),
            step=np.zeros(calls, np.int32),
            work_ns=np.full(calls, 4_000),
            call_ns=np.full(calls, 3_000),
            waits=waits,
            num_events=np.full(calls, 3),
        ),
        dependencies=dependencies,
        measured_step_ns=np.full(RANKS, np.nan),
        unexplained_ns=np.full(RANKS, np.nan),
    )


def _empty_trace() -> Trace:
    """As many GPUs as there are ranks, and nothing that a replay looks at."""
    strings = Strings(("kernel",))
    empty: dict[str, Any] = {
        table.name: Table(table, table.empty(), strings)
        for table in schema.TABLES
        if table.name != "gpu_ops"
    }
    columns = {column.name: np.zeros(RANKS, column.dtype) for column in schema.GPU_OPS.columns} | {
        "source": np.arange(RANKS, dtype=np.int32),
        "op_id": np.arange(RANKS),
    }
    return Trace(
        tuple(Source(f"rank{rank}.json", rank) for rank in range(RANKS)),
        strings,
        gpu_ops=Table(schema.GPU_OPS, columns, strings),
        detail=Detail.ALL,
        **empty,
    )


def main() -> None:
    """Print a line a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    wanted = parser.parse_args().events
    for shape in SHAPES:
        model = model_of(shape, wanted)
        changed = model.with_operations(duration_ns=model.operations.duration_ns // 2)
        start = time.process_time()
        execution = prepared(changed)
        if isinstance(execution, Unavailable):
            raise SystemExit(execution.because)
        ready = time.process_time()
        steady = settle(changed, execution)
        end = time.process_time()
        print(
            f"{shape.name}: {model.num_ops + model.calls.row.size:,} events, "
            f"{execution.schedule.num_levels:,} levels: ordered in {ready - start:.2f} s, "
            f"settled after {steady.num_passes} passes in {end - ready:.2f} s CPU; "
            f"step {steady.slowest_ns / 1e6:.1f} ms"
        )


if __name__ == "__main__":
    main()
