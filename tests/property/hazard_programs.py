"""Random programs on streams, and what is before what in them, by an explicit graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from diagnose.analyzers.hazards.order import CLOCK_ERROR_NS, HOST, Act, Action

NUM_LANES = 4
_EVENTS = st.sampled_from(["a", "b", "c"])
_LANE = st.integers(1, NUM_LANES - 1)
_SOME = st.lists(_LANE, min_size=1, max_size=2, unique=True).map(tuple)
_WAITS = (Act.HOST_BEGINS_EVENT, Act.HOST_BEGINS_LANES)
_RARE = (Act.RECORD_UNNAMED, Act.STREAM_WAITS_UNNAMED, Act.HOST_SEES, Act.HOST_HAS_NODE)
_OFTEN = (Act.LAUNCH, Act.LAUNCH, Act.TOUCH, Act.RECORD, Act.STREAM_WAITS, *_WAITS)


@st.composite
def programs(draw: Any, *, rare: bool = True) -> list[Action]:
    """Actions in order of time, 10 us apart; nodes are numbered as they come."""
    acts = draw(st.lists(st.sampled_from(_OFTEN * 3 + _RARE * rare), max_size=25))
    made: list[Action] = []
    open_calls: list[int] = []
    num_nodes = 0
    for number, act in enumerate(acts):
        at, event, lane = 10_000 * number, draw(_EVENTS), (draw(_LANE),)
        if open_calls and draw(st.booleans()):
            made.append(Action(at - 5_000, Act.HOST_GOES_ON, end_ns=at, call=open_calls.pop()))
        if act in (Act.LAUNCH, Act.TOUCH):
            lasts = draw(st.integers(1, 200_000))
            lanes = lane if act == Act.LAUNCH else ()
            made.append(Action(at, act, lanes, num_nodes, end_ns=at + lasts, call=number))
            num_nodes += 1
        elif act == Act.HOST_HAS_NODE:
            launched = [one.node for one in made if one.act == Act.LAUNCH]
            if launched:
                made.append(Action(at, act, node=draw(st.sampled_from(launched)), call=number))
        else:
            lanes = draw(_SOME) if act in (Act.RECORD, Act.STREAM_WAITS) else lane
            if act == Act.STREAM_WAITS_UNNAMED and draw(st.booleans()):
                lanes = ()
            made.append(Action(at, act, lanes, event=event, end_ns=at, call=number))
            if act in _WAITS:
                open_calls.append(number)
    return made


@dataclass
class Graph:
    """Vertices with all that is before each of them, itself included."""

    past: list[set[int]] = field(default_factory=list)
    node: dict[int, int] = field(default_factory=dict)
    tips: list[int] = field(default_factory=list)
    """The last vertex of each lane."""

    def vertex(self, *after: int) -> int:
        self.past.append(set().union(*(self.past[one] for one in after), {len(self.past)}))
        return len(self.past) - 1

    def before(self, first: int, second: int) -> bool:
        one, other = self.node[first], self.node[second]
        return one != other and one in self.past[other]


def graph_of(actions: list[Action]) -> Graph:
    """Every edge drawn by hand, and all paths along them."""
    graph = Graph()
    graph.tips = tips = [graph.vertex() for _ in range(NUM_LANES)]
    recorded: dict[str, int] = {}
    unnamed: int | None = None
    asked: dict[int, int | None] = {}
    ends: list[list[tuple[int, int]]] = [[] for _ in range(NUM_LANES)]

    def seen(end_ns: int) -> list[int]:
        # What is launched later on a stream ends later, whatever the clock says.
        return [
            vertex
            for lane in ends
            for place, (vertex, _) in enumerate(lane)
            if max(end for _, end in lane[: place + 1]) <= end_ns + CLOCK_ERROR_NS
        ]

    for action in actions:
        act, lanes = action.act, action.lanes
        if act == Act.LAUNCH:
            tips[lanes[0]] = graph.node[action.node] = graph.vertex(tips[lanes[0]], tips[HOST])
            ends[lanes[0]].append((tips[lanes[0]], action.end_ns))
        elif act == Act.TOUCH:
            tips[HOST] = graph.node[action.node] = graph.vertex(tips[HOST])
        elif act == Act.RECORD:
            recorded[action.event] = graph.vertex(tips[HOST], *(tips[lane] for lane in lanes))
        elif act == Act.RECORD_UNNAMED:
            unnamed = graph.vertex(*tips)
        elif act == Act.STREAM_WAITS:
            event = recorded.get(action.event, unnamed)
            for lane in lanes if event is not None else ():
                tips[lane] = graph.vertex(tips[lane], event)
        elif act == Act.STREAM_WAITS_UNNAMED:
            everything = graph.vertex(*tips)
            for lane in lanes or (HOST,):
                tips[lane] = graph.vertex(tips[lane], everything)
        elif act == Act.HOST_BEGINS_EVENT:
            asked[action.call] = recorded.get(action.event)
        elif act == Act.HOST_BEGINS_LANES:
            asked[action.call] = graph.vertex(tips[HOST], *(tips[lane] for lane in lanes))
        elif act == Act.HOST_GOES_ON:
            event = asked[action.call]
            if event is not None:
                tips[HOST] = graph.vertex(tips[HOST], event)
            elif unnamed is not None:
                tips[HOST] = graph.vertex(tips[HOST], *seen(action.end_ns))
        elif act == Act.HOST_HAS_NODE:
            tips[HOST] = graph.vertex(tips[HOST], graph.node[action.node])
        elif act == Act.HOST_SEES:
            tips[HOST] = graph.vertex(tips[HOST], *seen(action.end_ns))
    return graph
