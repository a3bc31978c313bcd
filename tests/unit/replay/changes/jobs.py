"""A job written down by hand: its model, and a trace that says the same of names and sizes.

::

    job = Job()
    launch = job.call("cudaLaunchKernel", work=5, takes=2)
    gemm = job.kernel("gemm", 10, by=launch, lag=3)
    job.next_step()
    model = job.model()

Times of the model are in ns. In the trace events follow each other, a microsecond apart,
unless ``at`` (start, length, in us) says when they were.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.replay.change import Assume, Change
from diagnose.replay.model import Kind, Model
from diagnose.replay.steady import steady
from diagnose.schema import NULL, Activity
from diagnose.trace import Trace
from tests.builder import MAIN_THREAD, TraceBuilder, build_trace
from tests.unit.replay.hand_models import Made, Node

THREADS = {"main": MAIN_THREAD, "backward": MAIN_THREAD + 58, "loader": MAIN_THREAD + 99}
STREAMS = {"compute": 7, "communication": 20, "other": 30}
At = tuple[float, float]


class Job:
    """Grows by a line at a time; everything belongs to the step that is open."""

    def __init__(self, ranks: int = 1) -> None:
        self.made = Made()
        self.builders = [TraceBuilder(rank, ranks) for rank in range(ranks)]
        for builder in self.builders:
            builder.top["host_name"] = "node-a"
        self.step = 0
        self._clock = [1.0] * ranks
        self._begun = [0.0] * ranks
        self._ops: list[tuple[int, float, Activity, int]] = []
        self._calls: list[tuple[int, float, int]] = []
        self._unseen: list[tuple[int, float]] = []
        self._correlation: dict[int, int] = {}

    def _when(self, rank: int, at: At | None) -> At:
        if at is None:
            at = (self._clock[rank], 0.5)
        self._clock[rank] = max(self._clock[rank], at[0]) + 1
        return at

    def now(self, rank: int = 0) -> float:
        """When the next event of a rank will be, in us."""
        return self._clock[rank]

    def next_step(self) -> None:
        """Close the step with a mark on every rank's main thread."""
        for rank, builder in enumerate(self.builders):
            end = self._clock[rank]
            builder.step(self.step, self._begun[rank], end - self._begun[rank])
            self._begun[rank] = end
            self._clock[rank] += 1
        self.step += 1

    def call(
        self,
        name: str = "cudaLaunchKernel",
        *,
        thread: str = "main",
        work: int = 0,
        takes: int = 0,
        waits: bool = False,
        rank: int = 0,
        at: At | None = None,
    ) -> Node:
        """A host call."""
        node = self.made.call(f"{thread} {rank}", work=work, takes=takes, waits=waits)
        start, length = self._when(rank, at)
        correlation = self.builders[rank].call(name, start, length, thread=THREADS[thread])
        self._correlation[node.number] = correlation
        self._calls.append((rank, start, self.step))
        return node

    def earlier_call(self, start: float, length: float = 2, rank: int = 0) -> None:
        """A call from before the replayed steps: in the trace, not in the model."""
        self.builders[rank].call("cudaLaunchKernel", start, length)
        self._unseen.append((rank, start))

    def query(self, start: float, length: float = 1, rank: int = 0) -> None:
        """A call that neither launches nor waits: in the trace, not in the model."""
        self.builders[rank].call("cudaEventQuery", start, length)
        self._unseen.append((rank, start))

    def kernel(self, name: str, duration: int, **rest: Any) -> Node:
        """Compute."""
        return self._op("kernel", name, duration, Activity.COMPUTE, **rest)

    def copy(self, kind: str, duration: int, *, size: int = NULL, **rest: Any) -> Node:
        """``kind`` as in the trace: ``HtoD (Pageable -> Device)``."""
        extra = {} if size == NULL else {"bytes": size}
        name = f"Memcpy {kind}"
        return self._op(
            "gpu_memcpy", name, duration, Activity.MEMORY, size=size, extra=extra, **rest
        )

    def collective(
        self,
        duration: int,
        *,
        kind: str = "allreduce",
        elements: int = 1024,
        dtype: str = "BFloat16",
        group: str = "0",
        stream: str = "communication",
        by: Node | None = None,
        lag: int = 0,
        pause: int = 0,
        match: int = -1,
        rank: int = 0,
        at: At | None = None,
    ) -> Node:
        """Communication of ``elements``."""
        node = self.made.op(
            f"{stream} {rank}",
            duration,
            launched_by=by,
            lag=lag,
            pause=pause,
            gpu=rank,
            match=match,
            step=self.step,
        )
        start, length = self._when(rank, at)
        self.builders[rank].collective(
            kind,
            start,
            length,
            elements=elements,
            dtype=dtype,
            group=group,
            stream=STREAMS[stream],
            correlation=None if by is None else self._correlation[by.number],
        )
        width = {"BFloat16": 2, "Float": 4}[dtype]
        self._ops.append((rank, start, Activity.COMMUNICATION, width * elements))
        return node

    def _op(
        self,
        category: str,
        name: str,
        duration: int,
        activity: Activity,
        *,
        stream: str = "compute",
        by: Node | None = None,
        lag: int = 0,
        pause: int = 0,
        rank: int = 0,
        size: int = NULL,
        extra: dict[str, Any] | None = None,
        at: At | None = None,
    ) -> Node:
        node = self.made.op(
            f"{stream} {rank}",
            duration,
            launched_by=by,
            lag=lag,
            pause=pause,
            gpu=rank,
            step=self.step,
        )
        start, length = self._when(rank, at)
        self.builders[rank].gpu(
            category,
            name,
            start,
            length,
            stream=STREAMS[stream],
            correlation=None if by is None else self._correlation[by.number],
            **(extra or {}),
        )
        self._ops.append((rank, start, activity, size))
        return node

    def waits_for(
        self, of: Node, to: Node, *, lag: int = 0, passes: int = 0, kind: Kind | None = None
    ) -> None:
        """``to`` waits for ``of``: by an event, a handoff or a host wait, as they are."""
        if kind is None:
            kind = Kind.HANDOFF if not of.is_op else Kind.EVENT_WAIT if to.is_op else Kind.HOST_WAIT
        self.made.tie(kind, of, to, lag=lag, passes=passes)

    def model(self, trace: Trace | None = None) -> Model:
        """The model; all arrays refuse to be written to."""
        if trace is None:
            trace = build_trace(*self.builders)
        self.made.num_steps = max(self.step, 1)
        model = self.made.model(trace)
        op_row = _rows([one[:2] for one in self._ops])
        call_row = _rows([one[:2] for one in self._calls] + self._unseen)
        assert len(trace.gpu_ops) == len(op_row)
        assert len(trace.launches) == len(call_row)
        model = model.with_operations(
            row=op_row,
            activity=np.array([one[2] for one in self._ops], np.int8),
            bytes=np.array([one[3] for one in self._ops], np.int64),
        ).with_calls(
            row=call_row[: len(self._calls)],
            source=np.array([one[0] for one in self._calls], np.int32),
            step=np.array([one[2] for one in self._calls], np.int32),
        )
        for part in (model.operations, model.calls):
            for field in fields(part):
                getattr(part, field.name).setflags(write=False)
        for column in model.dependencies:
            column.setflags(write=False)
        return model


def _rows(when: list[tuple[int, float]]) -> np.ndarray:
    """The row of each event in a table sorted by (source, start)."""
    order = sorted(range(len(when)), key=lambda one: when[one])
    rows = np.empty(len(when), np.int64)
    rows[order] = np.arange(len(when))
    return rows


def changed(model: Model, change: Change, assume: Assume = Assume.LIKELY) -> Model:
    """The model after a change that applies."""
    found = change.apply(model, assume)
    assert not isinstance(found, Unavailable), found
    return found


def because(model: Model, change: Change) -> str:
    """Why a change means nothing."""
    found = change.apply(model, Assume.LIKELY)
    assert isinstance(found, Unavailable)
    return found.because


def step_of(model: Model) -> float:
    """The steady step in ns."""
    found = steady(model)
    assert not isinstance(found, Unavailable)
    assert found.settled
    return found.slowest_ns


def after(model: Model, change: Change, assume: Assume = Assume.LIKELY) -> float:
    """The steady step after a change, in ns."""
    return step_of(changed(model, change, assume))


def with_environment(trace: Trace, said: dict[str, Any]) -> Trace:
    """The trace with the same environment file for every process."""
    return replace(
        trace, sources=tuple(replace(source, environment=said) for source in trace.sources)
    )
