"""Recordings whose contention is known: kernels played beside collectives, rate by rate.

Nothing here is shared with the estimator. A kernel is an amount of work; at every
moment it is done at a rate that depends on what runs beside it and on the clock. The
simulator walks from event to event and adds the work up, so durations, shares and
the truth all come out of the play. ::

    played = Play(seed=1, slowdown={"allreduce": 1.123}).run()
    played.trace          # what a reader would have returned
    played.truth          # kind -> overlapped time / time of the same work alone
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from diagnose import schema
from diagnose.schema import NO_ROW, NULL, Activity, Detail, Kind
from diagnose.trace import Source, Strings, Table, Trace

BASE_NS = 1_759_276_800_000_000_000
ZERO_NS = 7_000_000_000
NOMINAL_MHZ = 1980.0
NCCL = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL()",
    "all_gather": "ncclDevKernel_AllGather_RING_LL()",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL()",
    "send_recv": "ncclDevKernel_SendRecv()",
}
KERNELS = (
    "nvjet_sm90_tst_128x256_64x4_4x2_h_bz_coopA_NNN",
    "flash_fwd_kernel",
    "vectorized_layer_norm_kernel",
    "vectorized_elementwise_kernel",
)


class Work(NamedTuple):
    """One kind of kernel. ``slowdown`` holds its own factor by kind of collective."""

    name: str
    launch: str
    alone_ns: float
    slowdown: dict[str, float]
    where: str
    """``both``: phases with and without communication; ``hidden``: only those with."""


class Span(NamedTuple):
    start: float
    end: float
    kind: str
    blocks: int


class Ran(NamedTuple):
    start: int
    end: int
    work: int
    step: int
    gpu: int


@dataclass
class Played:
    """A trace and what is true of it."""

    trace: Trace
    truth: dict[str, float]
    """By kind: overlapped time / the same work alone, over kernels that also ran alone."""
    by_work: dict[tuple[int, str], float]
    works: list[Work]
    cost_ns: float
    """All kernels: time beyond what the same work takes alone."""


@dataclass
class Play:
    """What to play. ``slowdown``: a factor, or a range from which each kernel draws its own."""

    seed: int = 0
    slowdown: dict[str, float | tuple[float, float]] = field(
        default_factory=lambda: {
            "all_reduce": 1.123,
            "all_gather": (1.08, 1.21),
            "send_recv": 1.03,
        }
    )
    num_steps: int = 5
    num_works: int = 16
    per_phase: int = 60
    noise: float = 0.03
    outliers: float = 0.005
    unpaired: float = 0.2
    drift: float = 0.03
    num_gpus: int = 1
    overlap_mhz: float | None = None
    """The clock in phases with communication, 1980 in the others; None: no telemetry."""
    clock_sensitivity: float = 1.0
    """Durations go with this power of the clock."""
    sample_every_ns: int = 50_000

    def run(self) -> Played:
        self.random = np.random.default_rng(self.seed)
        self.works = self._works()
        self.phase = self.random.uniform(0, 2 * math.pi)
        self.period = self.random.uniform(0.6, 2.0)
        self.did: dict[tuple[int, str], list[float]] = {}
        self.ran_alone: set[int] = set()
        self.cost = 0.0
        self.clock_set: list[tuple[int, float, float]] = []
        ran: list[Ran] = []
        spans: list[list[Span]] = []
        self.length = 0.0
        marks: list[list[tuple[float, float]]] = []
        for gpu in range(self.num_gpus):
            kernels, beside, steps = self._gpu(gpu)
            ran += kernels
            spans.append(beside)
            marks.append(steps)
        truth = {}
        for kind in self.slowdown:
            parts = [v for (w, k), v in self.did.items() if k == kind and w in self.ran_alone]
            if parts:
                truth[kind] = sum(p[0] for p in parts) / sum(p[1] for p in parts)
        by_work = {key: value[0] / value[1] for key, value in self.did.items() if value[1]}
        return Played(self._trace(ran, spans, marks), truth, by_work, self.works, self.cost)

    def _works(self) -> list[Work]:
        works = []
        for number in range(self.num_works):
            own = {}
            for kind, factor in self.slowdown.items():
                low, high = factor if isinstance(factor, tuple) else (factor, factor)
                own[kind] = float(self.random.uniform(low, high))
            hidden = self.random.uniform() < self.unpaired
            works.append(
                Work(
                    KERNELS[number % len(KERNELS)],
                    f"grid [{number + 8}, 1, 1] block [128, 1, 1]",
                    float(np.exp(self.random.uniform(np.log(15e3), np.log(250e3)))),
                    own,
                    "hidden" if hidden else "both",
                )
            )
        works[0] = works[0]._replace(where="both")
        return works

    def _speed(self, time: float) -> float:
        """Kernels take this much longer at a time."""
        slower = (NOMINAL_MHZ / self.mhz) ** self.clock_sensitivity
        at = 2 * math.pi * time / (self.period * max(self.expected, 1.0)) + self.phase
        return slower * math.exp(self.drift * math.sin(at))

    def _set_clock(self, gpu: int, time: float, mhz: float) -> None:
        self.mhz = mhz
        self.clock_set.append((gpu, time, mhz))

    def _gpu(self, gpu: int) -> tuple[list[Ran], list[Span], list[tuple[float, float]]]:
        both = [n for n, work in enumerate(self.works) if work.where == "both"]
        everything = list(range(len(self.works)))
        typical = float(np.mean([work.alone_ns for work in self.works]))
        phase = self.per_phase * typical
        self.expected = 2 * phase * self.num_steps
        kinds = list(self.slowdown)
        now, ran, spans, marks = 0.0, [], [], []
        for step in range(self.num_steps):
            begin = now
            self._set_clock(gpu, now, NOMINAL_MHZ)
            for number in self.random.choice(both, self.per_phase).tolist():
                now = self._kernel(gpu, step, number, now, [], ran)
            beside: list[Span] = []
            time = now
            self._set_clock(gpu, now, self.overlap_mhz or NOMINAL_MHZ)
            while time < now + 1.6 * phase:
                kind = kinds[int(self.random.integers(len(kinds)))]
                length = float(self.random.uniform(0.5, 8) * typical)
                beside.append(Span(time, time + length, kind, int(4 + 4 * len(beside) % 28)))
                time += length + float(self.random.uniform(0.05, 3) * typical)
            used = len(ran)
            for number in self.random.choice(everything, self.per_phase).tolist():
                now = self._kernel(gpu, step, number, now, beside, ran)
            spans += [span for span in beside if span.start < now]
            now = max(now, spans[-1].end)
            assert used < len(ran)
            marks.append((begin, now))
        return ran, spans, marks

    def _kernel(
        self, gpu: int, step: int, number: int, now: float, beside: list[Span], ran: list[Ran]
    ) -> float:
        work = self.works[number]
        now += float(self.random.uniform(500, 3000))
        left = work.alone_ns * math.exp(self.random.normal(0, self.noise))
        disturbed = self.random.uniform() < self.outliers
        if disturbed:
            left *= float(self.random.uniform(2, 6))
        speed = self._speed(now)
        time, needed, hidden = now, left * speed, False
        at = bisect.bisect_right(beside, now, key=lambda span: span.end)
        while left > 1e-9:
            span = beside[at] if at < len(beside) else None
            if span is None or time < span.start:
                until = math.inf if span is None else span.start
                done = min(left, (until - time) / speed)
                time += done * speed
            else:
                slow = work.slowdown[span.kind]
                done = min(left, (span.end - time) / (speed * slow))
                hidden = True
                if not disturbed:
                    entry = self.did.setdefault((number, span.kind), [0.0, 0.0])
                    entry[0] += done * speed * slow
                    entry[1] += done * speed
                time += done * speed * slow
                at += time >= span.end - 1e-9
            left -= done
        if not hidden and not disturbed:
            self.ran_alone.add(number)
        if not disturbed:
            self.cost += (time - now) - needed
        ran.append(Ran(round(now), round(time), number, step, gpu))
        return time

    def _trace(
        self, ran: list[Ran], spans: list[list[Span]], marks: list[list[tuple[float, float]]]
    ) -> Trace:
        texts = [*KERNELS, *NCCL, *NCCL.values(), "1/1"]
        texts += [f"ProfilerStep#{n}" for n in range(self.num_steps)]
        texts += [work.launch for work in self.works]
        texts += [f"grid [{n}, 1, 1] block [544, 1, 1]" for n in range(64)]
        code = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        rows: list[tuple[Any, ...]] = []
        for one in ran:
            work = self.works[one.work]
            step = one.gpu * self.num_steps + one.step
            rows.append(
                (one.gpu, one.start, one.end, 0, code[work.name], code[work.launch], step, -1, 7)
            )
        for gpu, own in enumerate(spans):
            for span in own:
                step = max(n for n, mark in enumerate(marks[gpu]) if span.start >= mark[0])
                rows.append(
                    (
                        gpu,
                        round(span.start),
                        round(span.end),
                        1,
                        code[NCCL[span.kind]],
                        code[f"grid [{span.blocks}, 1, 1] block [544, 1, 1]"],
                        gpu * self.num_steps + step,
                        code[span.kind],
                        20,
                    )
                )
        rows.sort(key=lambda row: (row[0], row[1], row[3]))
        strings = Strings(code)
        table = np.array(rows, np.int64)
        num = len(rows)
        ops: dict[str, Any] = {
            "op_id": np.arange(num),
            "source": table[:, 0],
            "device": np.zeros(num),
            "stream": table[:, 8],
            "start_ns": table[:, 1] + ZERO_NS,
            "end_ns": table[:, 2] + ZERO_NS,
            "kind": np.full(num, Kind.KERNEL),
            "activity": np.where(table[:, 3] == 1, Activity.COMMUNICATION, Activity.COMPUTE),
            "certain": np.ones(num),
            "name": table[:, 4],
            "launch_shape": table[:, 5],
            "shapes": np.full(num, NO_ROW),
            "correlation": np.arange(num),
            "external_id": np.full(num, NULL),
            "bytes": np.full(num, NULL),
            "launch_row": np.full(num, NO_ROW),
            "step_row": table[:, 6],
        }
        communicates = np.flatnonzero(table[:, 3])
        collectives: dict[str, Any] = {
            column.name: np.full(
                communicates.size, NO_ROW if column.is_reference else NULL, column.dtype
            )
            for column in schema.COLLECTIVES.columns
        }
        collectives["gpu_op_row"] = communicates
        collectives["collective"] = table[communicates, 7]
        collectives["origin"] = np.full(communicates.size, code["1/1"])
        flat = [(gpu, *mark) for gpu, own in enumerate(marks) for mark in own]
        steps: dict[str, Any] = {
            "op_id": num + np.arange(len(flat)),
            "source": [row[0] for row in flat],
            "thread": np.full(len(flat), code["1/1"]),
            "name": [code[f"ProfilerStep#{n}"] for own in marks for n in range(len(own))],
            "number": [n for own in marks for n in range(len(own))],
            "start_ns": [round(row[1]) + ZERO_NS for row in flat],
            "end_ns": [round(row[2]) + ZERO_NS for row in flat],
        }
        samples = self._samples(marks)

        def made(table_schema: schema.TableSchema, columns: dict[str, Any]) -> Table:
            typed = {
                c.name: np.asarray(columns[c.name]).astype(c.dtype) for c in table_schema.columns
            }
            return Table(table_schema, typed, strings)

        empty = {
            one.name: Table(one, one.empty(), strings)
            for one in (schema.HOST_OPS, schema.LAUNCHES, schema.SYNCS)
        }
        return Trace(
            tuple(
                Source(f"rank{n}.json", n, "metadata", host="node0", base_ns=BASE_NS)
                for n in range(self.num_gpus)
            ),
            strings,
            gpu_ops=made(schema.GPU_OPS, ops),
            collectives=made(schema.COLLECTIVES, collectives),
            steps=made(schema.STEPS, steps),
            samples=made(schema.SAMPLES, samples),
            detail=Detail.ALL,
            **empty,
        )

    def _samples(self, marks: list[list[tuple[float, float]]]) -> dict[str, Any]:
        columns: dict[str, Any] = {c.name: np.empty(0) for c in schema.SAMPLES.columns}
        if self.overlap_mhz is None:
            return columns
        sources, times, clocks = [], [], []
        for gpu, own in enumerate(marks):
            since = [(time, mhz) for number, time, mhz in self.clock_set if number == gpu]
            for time in np.arange(0, own[-1][1], self.sample_every_ns).tolist():
                sources.append(gpu)
                times.append(round(time) + ZERO_NS + BASE_NS)
                clocks.append([mhz for begin, mhz in since if begin <= time][-1])
        columns = {c.name: np.full(len(times), np.nan) for c in schema.SAMPLES.columns}
        columns |= {"source": sources, "unix_ns": times, "sm_clock_mhz": clocks}
        return columns
