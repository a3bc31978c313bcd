"""Models of the replay written down by hand, and their times by plain Python.

::

    made = Made()
    call = made.call("main", work=5, takes=2)
    gemm = made.op("compute", 10, launched_by=call, lag=3)
    made.tie(Kind.HOST_WAIT, gemm, made.call("main", waits=True), lag=1)
    model = made.model()

``slow_times`` is the definition in ``diagnose.replay.model``, word by word, by recursion.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
from hypothesis import strategies as st

from diagnose.replay.model import Calls, Dependencies, Entries, Kind, Model, Operations
from diagnose.schema import NO_ROW, NULL, Activity
from diagnose.trace import Trace
from tests.builder import TraceBuilder, build_trace


@dataclass(frozen=True)
class Node:
    """An operation or a call of a ``Made``: ``number`` counts from 0 in each sort."""

    is_op: bool
    number: int


@dataclass
class Made:
    """A model that grows by a line at a time. Streams are of GPU 0 unless said otherwise."""

    num_steps: int = 1
    ops: list[dict[str, int]] = field(default_factory=list)
    calls: list[dict[str, int]] = field(default_factory=list)
    ties: list[tuple[Kind, Node, Node, int, int]] = field(default_factory=list)
    entries: list[tuple[Node, int, bool]] = field(default_factory=list)
    _queues: dict[str, int] = field(default_factory=dict)

    def _queue(self, name: str) -> int:
        return self._queues.setdefault(name, len(self._queues))

    def op(
        self,
        stream: str,
        duration: int,
        *,
        launched_by: Node | None = None,
        lag: int = 0,
        pause: int = 0,
        gpu: int = 0,
        match: int = -1,
        step: int = 0,
    ) -> Node:
        """One more operation at the end of a stream."""
        node = Node(True, len(self.ops))
        self.ops.append(
            {"stream": self._queue(stream), "duration": duration, "pause": pause, "gpu": gpu}
            | {"match": match, "step": step}
        )
        if launched_by is not None:
            self.tie(Kind.LAUNCH, launched_by, node, lag=lag)
        return node

    def call(
        self, thread: str, *, work: int = 0, takes: int = 0, waits: bool = False, events: int = 0
    ) -> Node:
        """One more call at the end of a thread."""
        node = Node(False, len(self.calls))
        self.calls.append(
            {"thread": self._queue(thread), "work": work, "takes": takes, "waits": waits}
            | {"events": events}
        )
        return node

    def tie(self, kind: Kind, of: Node, to: Node, *, lag: int = 0, passes: int = 0) -> None:
        """``to`` waits for ``of``."""
        self.ties.append((kind, of, to, lag, passes))

    def enter(self, node: Node, moment: int, *, back: bool = False) -> None:
        """``node`` may not begin (``back``: not return) before ``moment``."""
        self.entries.append((node, moment, back))

    def model(self, trace: Trace | None = None) -> Model:
        """The model so far; ``trace`` says how many GPUs there are (otherwise one)."""
        num_ops, num_calls = len(self.ops), len(self.calls)

        def number(node: Node) -> int:
            return node.number if node.is_op else num_ops + node.number

        def ops(name: str, dtype: str = "int64") -> np.ndarray:
            return np.array([op[name] for op in self.ops], dtype)

        def calls(name: str, dtype: str = "int64") -> np.ndarray:
            return np.array([call[name] for call in self.calls], dtype)

        return Model(
            trace=trace or trace_of(1 + max((op["gpu"] for op in self.ops), default=0)),
            num_steps=self.num_steps,
            operations=Operations(
                row=np.full(num_ops, NO_ROW),
                gpu=ops("gpu", "int32"),
                stream=ops("stream", "int32"),
                place=np.arange(num_ops, dtype=np.float64),
                step=ops("step", "int32"),
                activity=np.full(num_ops, Activity.COMPUTE, np.int8),
                duration_ns=ops("duration"),
                pause_ns=ops("pause"),
                match=ops("match"),
                bytes=np.full(num_ops, NULL),
            ),
            calls=Calls(
                row=np.full(num_calls, NO_ROW),
                source=np.zeros(num_calls, np.int32),
                thread=calls("thread", "int32"),
                place=np.arange(num_calls, dtype=np.float64),
                step=np.zeros(num_calls, np.int32),
                work_ns=calls("work"),
                call_ns=calls("takes"),
                waits=calls("waits", "bool"),
                num_events=calls("events"),
            ),
            dependencies=Dependencies(
                np.array([number(of) for _, of, _, _, _ in self.ties], np.int64),
                np.array([number(to) for _, _, to, _, _ in self.ties], np.int64),
                np.array([lag for *_, lag, _ in self.ties], np.int64),
                np.array([kind for kind, *_ in self.ties], np.int8),
                np.array([passes for *_, passes in self.ties], np.int8),
            ),
            measured_step_ns=np.array([np.nan]),
            unexplained_ns=np.array([np.nan]),
            entries=Entries(
                np.array(
                    [number(node) + num_calls * back for node, _, back in self.entries], np.int64
                ),
                np.array([moment for _, moment, _ in self.entries], np.int64),
            ),
        )


@cache
def trace_of(num_gpus: int) -> Trace:
    """A trace with so many GPUs and nothing else of interest."""
    builders = [TraceBuilder(rank=rank).kernel("gemm", 0, 1) for rank in range(num_gpus)]
    return build_trace(*builders)


class SlowTimes:
    """Moments of every pass by recursion over the definition; ``entries`` hold in pass 0."""

    def __init__(self, model: Model) -> None:
        self.model, self.ops, self.calls = model, model.operations, model.calls
        self.known: dict[tuple[str, int, int], int] = {}
        self.op_queue = _queues(self.ops.stream, self.ops.place)
        self.call_queue = _queues(self.calls.thread, self.calls.place)

    def begin(self, op: int, turn: int) -> int:
        return self._once("begin", op, turn)

    def end(self, op: int, turn: int) -> int:
        return self._once("end", op, turn)

    def start(self, call: int, turn: int) -> int:
        return self._once("start", call, turn)

    def back(self, call: int, turn: int) -> int:
        return self._once("back", call, turn)

    def _once(self, what: str, number: int, turn: int) -> int:
        key = (what, number, turn)
        if key not in self.known:
            self.known[key] = max(getattr(self, f"_{what}s")(number, turn))
        return self.known[key]

    def _begins(self, op: int, turn: int) -> list[int]:
        before, earlier = _before(self.op_queue, self.ops.stream[op], op)
        found = self._entered(op, turn)
        if turn - earlier >= 0:
            found.append(self.end(before, turn - earlier) + int(self.ops.pause_ns[op]))
        # A queue that nothing was found for begins at 0.
        return (found or [0]) + self._tied(op, turn, host_wait=False)

    def _ends(self, op: int, turn: int) -> list[int]:
        match = self.ops.match[op]
        members = [op] if match < 0 else np.flatnonzero(self.ops.match == match).tolist()
        return [max(self.begin(m, turn) for m in members) + int(self.ops.duration_ns[op])]

    def _starts(self, call: int, turn: int) -> list[int]:
        node = self.model.num_ops + call
        before, earlier = _before(self.call_queue, self.calls.thread[call], call)
        found = self._entered(node, turn)
        if turn - earlier >= 0:
            found.append(self.back(before, turn - earlier) + int(self.calls.work_ns[call]))
        return (found or [0]) + self._tied(node, turn, host_wait=False)

    def _backs(self, call: int, turn: int) -> list[int]:
        found = [self.start(call, turn) + int(self.calls.call_ns[call])]
        if self.calls.waits[call]:
            node = self.model.num_ops + call
            found += self._entered(node + self.calls.row.size, turn)
            found += self._tied(node, turn, host_wait=True)
        return found

    def _entered(self, node: int, turn: int) -> list[int]:
        entries = zip(*(column.tolist() for column in self.model.entries), strict=True)
        return [moment for which, moment in entries if which == node and turn == 0]

    def _tied(self, node: int, turn: int, *, host_wait: bool) -> list[int]:
        rows = zip(*(column.tolist() for column in self.model.dependencies), strict=True)
        found = []
        for of, to, lag, kind, passes in rows:
            if to != node or (kind == Kind.HOST_WAIT) != host_wait or turn < passes:
                continue
            if of < self.model.num_ops:
                moment = self.end(of, turn - passes)
            elif kind == Kind.HANDOFF:
                moment = self.back(of - self.model.num_ops, turn - passes)
            else:
                moment = self.start(of - self.model.num_ops, turn - passes)
            found.append(moment + lag)
        return found

    def slope(self, gpu: int, passes: int) -> float:
        """Time per pass of a GPU over the second half of so many passes."""
        mine = np.flatnonzero(self.ops.gpu == gpu).tolist()
        ends = [max(self.end(op, turn) for op in mine) for turn in range(passes)]
        half = passes // 2
        return (ends[-1] - ends[half - 1]) / (passes - half)


def _queues(queue: np.ndarray, place: np.ndarray) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number in np.argsort(place, kind="stable").tolist():
        found.setdefault(int(queue[number]), []).append(number)
    return found


def _before(queues: dict[int, list[int]], queue: int, number: int) -> tuple[int, int]:
    """What is before it in its queue, and how many passes earlier that is."""
    members = queues[int(queue)]
    at = members.index(number)
    return members[at - 1], 0 if at else 1


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Models without circles: what is drawn later may wait for what was drawn earlier."""
    made = Made(num_steps=draw(st.integers(1, 2)))
    small = st.integers(0, 30)
    signed = st.integers(-6, 30)
    nodes: list[Node] = []
    for match in range(draw(st.integers(1, 14))):
        if draw(st.booleans()):
            waits = draw(st.booleans())
            thread = draw(st.sampled_from(["main", "backward"]))
            new = [made.call(thread, work=draw(signed), takes=draw(small), waits=waits)]
        else:
            gpus = draw(st.sampled_from([(0,), (1,), (0, 1)]))
            stream = draw(st.sampled_from(["compute", "communication"]))
            matched = match if len(gpus) > 1 else -1
            new = [
                made.op(f"{stream} {gpu}", draw(small), pause=draw(signed), gpu=gpu, match=matched)
                for gpu in gpus
            ]
        for to in new:
            for of in draw(st.lists(st.sampled_from(nodes), max_size=2)) if nodes else ():
                made.tie(draw(st.sampled_from(_kinds(of, to))), of, to, lag=draw(signed))
        nodes += new
    for _ in range(draw(st.integers(0, 3))):
        of, to = draw(st.sampled_from(nodes)), draw(st.sampled_from(nodes))
        kind = draw(st.sampled_from(_kinds(of, to)))
        made.tie(kind, of, to, lag=draw(signed), passes=draw(st.integers(1, 3)))
    for node in draw(st.lists(st.sampled_from(nodes), max_size=2)):
        back = not node.is_op and bool(made.calls[node.number]["waits"]) and draw(st.booleans())
        made.enter(node, draw(st.integers(0, 80)), back=back)
    return made.model()


def _kinds(of: Node, to: Node) -> list[Kind]:
    if to.is_op:
        return [Kind.EVENT_WAIT, Kind.ROOM] if of.is_op else [Kind.LAUNCH]
    return [Kind.HOST_WAIT, Kind.QUEUE_LIMIT] if of.is_op else [Kind.HANDOFF]
