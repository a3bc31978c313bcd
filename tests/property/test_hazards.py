"""Order and conflicts against explicit graphs, sets of bytes and all pairs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.analysis import Unavailable
from diagnose.analyzers.hazards import hazards
from diagnose.analyzers.hazards.conflicts import Pair, unordered
from diagnose.analyzers.hazards.coverage import coverage
from diagnose.analyzers.hazards.latest import Latest
from diagnose.analyzers.hazards.order import Action, Order, order_of
from diagnose.analyzers.hazards.touches import Touches
from diagnose.readers import read
from tests.property.hazard_programs import NUM_LANES, graph_of, programs
from tests.unit.analyzers.hazards.programs import Program, found, memory

LENGTH = 12


@settings(max_examples=400)
@given(programs())
def test_before_is_a_path(actions: list[Action]) -> None:
    graph = graph_of(actions)
    order = order_of(actions, len(graph.node), NUM_LANES)
    for first in graph.node:
        for second in graph.node:
            assert order.before(first, second) == graph.before(first, second)


@st.composite
def touches(draw: Any, actions: list[Action]) -> list[dict[str, Any]]:
    """Of each operator, one node or two of one lane in a row, up to two accesses."""
    order = order_of(actions, num_nodes(actions), NUM_LANES)
    by_lane: dict[int, list[int]] = {}
    for node, lane in enumerate(order.lane):
        by_lane.setdefault(lane, []).append(node)
    made: list[dict[str, Any]] = []
    operator = 0
    for nodes in by_lane.values():
        while nodes:
            operator += 1
            own = [nodes.pop(0) for _ in range(min(len(nodes), draw(st.integers(1, 2))))]
            for _ in range(draw(st.integers(0, 2))):
                begin = draw(st.integers(0, LENGTH - 1))
                end = draw(st.integers(begin + 1, LENGTH))
                made.append(
                    {
                        "storage": draw(st.integers(0, 1)),
                        **{"begin": begin, "end": end, "life": 1, "split": False},
                        "writes": draw(st.booleans()),
                        "dense": draw(st.booleans()),
                        **{"first": own[0], "last": own[-1], "host_op_row": operator},
                    }
                )
    return sorted(made, key=lambda one: (one["storage"], order.place[one["last"]]))


def num_nodes(actions: list[Action]) -> int:
    return 1 + max((action.node for action in actions), default=-1)


def of_all_pairs(made: list[dict[str, Any]], order: Order) -> list[Pair]:
    """What ``unordered`` is to say: all earlier ones looked at, byte by byte."""
    told: set[tuple[int, int]] = set()
    pairs = []
    for second, other in enumerate(made):
        lane = order.lane[other["first"]]
        for lane_of_first in range(NUM_LANES):
            apart: dict[bool, int] = {}
            for first, one in enumerate(made[:second]):
                conflict = one["storage"] == other["storage"] and hull(one) & hull(other)
                conflict = conflict and (one["writes"] or other["writes"])
                conflict = conflict and one["host_op_row"] != other["host_op_row"]
                if not conflict or order.lane[one["first"]] != lane_of_first != lane:
                    continue
                if lane_of_first != lane and not order.before(one["last"], other["first"]):
                    apart[bool(sure(one) & sure(other))] = apart[False] = first
            if apart:
                first = apart.get(True, apart[False])
                if (first, lane) not in told:
                    told.add((first, lane))
                    one = made[first]
                    certain = bool(sure(one) & sure(other))
                    certain &= not order.before(one["first"], other["last"])
                    certain &= not order.before(other["first"], one["last"])
                    pairs.append(Pair(first, second, certain))
    return pairs


def hull(touch: dict[str, Any]) -> set[int]:
    return set(range(touch["begin"], touch["end"]))


def sure(touch: dict[str, Any]) -> set[int]:
    return hull(touch) if touch["dense"] else {touch["begin"], touch["end"] - 1}


@settings(max_examples=400)
@given(st.data())
def test_unordered_against_all_pairs(data: Any) -> None:
    actions = data.draw(programs())
    order = order_of(actions, num_nodes(actions), NUM_LANES)
    made = data.draw(touches(actions))
    flags = ("writes", "dense", "split")
    names = Touches.__dataclass_fields__
    columns = {
        name: np.array([one[name] for one in made], bool if name in flags else np.int64)
        for name in names
    }
    assert sorted(unordered(Touches(**columns), order)) == sorted(of_all_pairs(made, order))


RANGES = st.tuples(st.integers(0, 2000), st.integers(1, 1500), st.integers(0, 1), st.booleans())


@given(st.lists(RANGES, max_size=30))
def test_latest_against_a_list(asked: list[tuple[int, int, int, bool]]) -> None:
    """More than one block."""
    length = 2000
    latest, plain = Latest(2, length), [[-1] * length for _ in range(2)]
    for number, (begin, extent, row, takes) in enumerate(asked):
        begin = min(begin, length - 1)
        end = min(begin + extent, length)
        if takes:
            latest.take(row, begin, end, number)
            plain[row][begin:end] = [number] * (end - begin)
        assert latest.last(begin, end) == [max(line[begin:end]) for line in plain]


STEPS = st.tuples(
    st.sampled_from(["op", "op", "record", "wait", "stream", "event", "device"]),
    st.sampled_from([7, 20, 24]),
    st.sampled_from(["a", "b"]),
    st.integers(1, 2),
    st.booleans(),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, max_size=14))
def test_whole_programs(steps: list[tuple[str, int, str, int, bool]]) -> None:
    """Through files: a race is found just where two accesses have no path between them."""
    program, past = Program(), Past()
    program.op("begin", reads=[memory(9)])
    for number, (kind, stream, event, storage, writes) in enumerate(steps):
        if kind == "op":
            access = {"writes" if writes else "reads": [memory(storage)]}
            program.op(f"op {number}", stream=stream, **access)
            past.launch(number, stream, storage, writes)
        elif kind == "record":
            program.record(event, stream)
            past.events[event] = past.of(stream)
        elif kind == "wait":
            program.wait(event, stream)
            past.lanes[stream] |= past.events.get(event, set())
        elif kind == "stream":
            program.host_call("cudaStreamSynchronize", kind="Stream Sync", stream=stream)
            past.host |= past.lanes[stream]
        elif kind == "event":
            program.host_wait(event)
            past.host |= past.events.get(event, set())
        else:
            program.host_call("cudaDeviceSynchronize", kind="Context Sync")
            past.host |= set().union(*past.lanes.values())
    program.tell_apart(7, 20, 24)
    with tempfile.TemporaryDirectory() as folder:
        told = {(int(one[3:]), int(two[3:])) for one, two, *_ in found(program, Path(folder))}
    assert told <= past.races
    # One missing wait is told once: for each race there is one between the same streams, on the
    # same memory, of the same or a later operation with the same or an earlier one.
    for first, second in past.races:
        assert any(
            one >= first
            and other <= second
            and steps[one][1] == steps[first][1]
            and steps[other][1] == steps[second][1]
            and steps[one][3] == steps[first][3]
            for one, other in told
        )


class Past:
    """For each stream and the host the operations that are over."""

    def __init__(self) -> None:
        self.lanes: dict[int, set[int]] = {7: set(), 20: set(), 24: set()}
        self.host: set[int] = set()
        self.events: dict[str, set[int]] = {}
        self.accesses: list[tuple[int, int, bool]] = []
        self.races: set[tuple[int, int]] = set()

    def of(self, stream: int) -> set[int]:
        return self.lanes[stream] | self.host

    def launch(self, number: int, stream: int, storage: int, writes: bool) -> None:
        self.lanes[stream] |= self.host
        for other, where, wrote in self.accesses:
            if where == storage and (wrote or writes) and other not in self.lanes[stream]:
                self.races.add((other, number))
        self.lanes[stream].add(number)
        self.accesses.append((number, storage, writes))


HOSTILE = (
    "diagnose: event recorded on stream",
    "diagnose: event zz recorded on stream 0",
    f"diagnose: event {'f' * 10_000} recorded on stream 0",
    "diagnose: event a recorded on stream 0\n",
    "diagnose: stream \u0660 waits for event \u0661",
    "diagnose: host waits for event a",
    "diagnose: stream 1014 waits for event a",
    "\u202e\x00<script>",
    "cudaEventRecord",
    "cudaStreamSynchronize",
    "cudaMemcpy",
    "Memcpy DtoH (Device -> Pinned)",
    "aten::empty",
    "",
)
DAMAGE = st.tuples(
    st.integers(0, 10_000),
    st.sampled_from(["name", "tid", "ts", "dur", "args", "cat"]),
    st.sampled_from(HOSTILE),
    st.sampled_from([0, -1, 5, 2**63, 2**31, 1e300, None, "x", [], {}]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(DAMAGE, max_size=8))
def test_damage_gives_an_answer(damages: list[tuple[int, str, str, Any]]) -> None:
    program = Program()
    program.op("make", news=[memory(1)], kernels=2)
    pinned = memory(3, device="cpu")
    program.op("copy", reads=[pinned], writes=[memory(1)], copy=HOSTILE[11], stream=20)
    program.record("a", 20)
    program.wait("a", 24)
    program.host_wait("a")
    program.host_call("cudaStreamSynchronize", kind="Stream Sync", stream=20)
    program.host_op("aten::fill_", writes=[pinned])
    program.op("use", writes=[memory(1)], stream=24)
    for place, key, text, value in damages:
        event = program.builder.events[place % len(program.builder.events)]
        if key == "name":
            event["name"] = text
        elif key in ("ts", "dur") and isinstance(value, int):
            event[key] = value % 10_000_000
        elif key == "args" and event.get("args"):
            names = sorted(event["args"])
            event["args"][names[place % len(names)]] = value
        elif key == "tid":
            event["tid"] = place % 3
        elif key == "cat":
            event["cat"] = ("cpu_op", "cuda_runtime", "kernel", "cuda_sync")[place % 4]
    for number, (place, _, text, value) in enumerate(damages):
        node = program.nodes[place % len(program.nodes)]
        node["name" if number % 2 else "inputs"] = (
            text if number % 2 else {"values": [value, [value]]}
        )
    with tempfile.TemporaryDirectory() as folder:
        trace = read(program.write(Path(folder)))
    answer = hazards(trace)
    assert isinstance(answer, Unavailable) or len(answer) >= 0
    for one in coverage(trace):
        parts = (one.num_launched_before, one.num_known, one.num_in_graphs)
        others = (one.num_without_operator, one.num_unknown)
        assert sum(parts) + sum(others) == one.num_gpu_ops
