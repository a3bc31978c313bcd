"""Happens-before, by vector clocks: what is known to be over before an operation may begin.

Each stream is a lane, the host another. A lane's clock says for each lane up to which of its
nodes everything is over before the lane goes on. A launch joins the host's clock into the
stream's; a record keeps a copy of the stream's, which a wait for that event joins into the
waiting one's (C. J. Fidge 1988, F. Mattern 1989; applied to streams as in CUDA's programming
guide: a stream runs in order, nothing else is ordered).

All threads of the host count as one that does things in the order of their times: what threads
owe each other is no business of streams. Streams are taken to be PyTorch's own, which the default
stream does not wait for: of one that CUDA was asked for otherwise no recording tells.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

HOST = 0
"""The lane of the host."""

CLOCK_ERROR_NS = 5_000
"""By how much the clocks of host and GPU are allowed to differ."""

Clock = npt.NDArray[np.int32]


class Act(IntEnum):
    """What the host does."""

    LAUNCH = 0
    """A node on a lane, with its end on the GPU."""
    TOUCH = 1
    """A node on the host's lane: an operator on memory of the host."""
    RECORD = 2
    RECORD_UNNAMED = 3
    """Of which event is unknown: perhaps of one that is waited for, but was never recorded."""
    STREAM_WAITS = 4
    STREAM_WAITS_UNNAMED = 5
    """For which event is unknown: taken to wait for everything launched so far."""
    HOST_BEGINS_EVENT = 6
    HOST_BEGINS_LANES = 7
    HOST_GOES_ON = 8
    """The call that began with one of the two above returns."""
    HOST_HAS_NODE = 9
    """A call that waited for a node returns: a blocking copy."""
    HOST_SEES = 10
    """An event or stream was asked: what was over by then may be known to be."""


class Action(NamedTuple):
    """One of them. ``at_ns``: its place in the host's order, on the clock of the source."""

    at_ns: int
    act: Act
    lanes: tuple[int, ...] = ()
    """More than one where it is not known which; none for waits of a stream: unknown."""
    node: int = -1
    event: str = ""
    end_ns: int = 0
    """Of a launched node: its end on the GPU. Of a question: when it was answered."""
    call: int = -1
    """Ties the end of a wait to its beginning; of actions at one time the lower goes first."""


class Order:
    """The order of nodes. Lists of length (nodes,); ``clocks`` of shape (states, lanes).

    ``state``: the row of ``clocks`` that held when a node was launched. ``place``: its number in
    the host's order. Nodes that no action named have index 0: nothing is known of them.
    """

    def __init__(self, num_nodes: int) -> None:
        self.lane = [HOST] * num_nodes
        self.index = [0] * num_nodes
        self.state = [-1] * num_nodes
        self.place = [-1] * num_nodes
        self.clocks: list[Clock] = []

    def before(self, first: int, second: int) -> bool:
        """Whether ``first`` is over before ``second`` may begin, whatever happens."""
        lane, index = self.lane[first], self.index[first]
        if lane == self.lane[second]:
            return index < self.index[second]
        state = self.state[second]
        return state >= 0 and int(self.clocks[state][lane]) >= index


class _Clocks:
    """The clocks as the host goes on."""

    def __init__(self, num_nodes: int, num_lanes: int) -> None:
        self.order = Order(num_nodes)
        self.lanes = np.zeros((num_lanes, num_lanes), np.int32)
        self.events: dict[str, Clock] = {}
        self.unnamed: Clock | None = None
        self.asked: dict[int, Clock | None] = {}
        self.ends: list[list[int]] = [[] for _ in range(num_lanes)]
        # A lane's clock is kept once for all nodes between two changes of it.
        self.state = [-1] * num_lanes
        self.news = 0
        self.heard = [0] * num_lanes
        self.num_placed = 0

    def launch(self, action: Action) -> None:
        lane = action.lanes[0]
        self._hear(lane)
        self._enter(action.node, lane)
        # Nodes of a lane end in order; where the clock's grain says otherwise, the later counts.
        ends = self.ends[lane]
        ends.append(max(action.end_ns, ends[-1]) if ends else action.end_ns)

    def touch(self, action: Action) -> None:
        self._enter(action.node, HOST)
        self.news += 1

    def record(self, action: Action) -> None:
        self.events[action.event] = self._now(action.lanes)

    def record_unnamed(self, action: Action) -> None:  # noqa: ARG002
        self.unnamed = self.lanes.max(axis=0)

    def stream_waits(self, action: Action) -> None:
        # Neither named nor unnamed: recorded before the window, for work that is not in it.
        clock = self.events.get(action.event, self.unnamed)
        for lane in action.lanes:
            self._join(lane, clock)

    def stream_waits_unnamed(self, action: Action) -> None:
        everything = self.lanes.max(axis=0)
        for lane in action.lanes or (HOST,):
            self._join(lane, everything)

    def host_begins_event(self, action: Action) -> None:
        self.asked[action.call] = self.events.get(action.event)

    def host_begins_lanes(self, action: Action) -> None:
        self.asked[action.call] = self._now(action.lanes)

    def host_goes_on(self, action: Action) -> None:
        clock = self.asked.pop(action.call, None)
        if clock is not None:
            self._join(HOST, clock)
        elif self.unnamed is not None:
            self.host_sees(action)

    def host_has_node(self, action: Action) -> None:
        order, node = self.order, action.node
        clock = order.clocks[order.state[node]].copy()
        clock[order.lane[node]] = order.index[node]
        self._join(HOST, clock)

    def host_sees(self, action: Action) -> None:
        by = action.end_ns + CLOCK_ERROR_NS
        over = [0, *(bisect_right(ends, by) for ends in self.ends[1:])]
        self._join(HOST, np.array(over, np.int32))

    def _now(self, lanes: tuple[int, ...]) -> Clock:
        clock: Clock = self.lanes[[HOST, *lanes]].max(axis=0)
        return clock

    def _hear(self, lane: int) -> None:
        if self.heard[lane] != self.news:
            self.heard[lane] = self.news
            self._join(lane, self.lanes[HOST])

    def _enter(self, node: int, lane: int) -> None:
        order = self.order
        if self.state[lane] < 0:
            self.state[lane] = len(order.clocks)
            order.clocks.append(self.lanes[lane].copy())
        order.lane[node], order.state[node] = lane, self.state[lane]
        order.place[node] = self.num_placed
        self.num_placed += 1
        self.lanes[lane, lane] += 1
        order.index[node] = int(self.lanes[lane, lane])

    def _join(self, lane: int, clock: Clock | None) -> None:
        if clock is None or not (clock > self.lanes[lane]).any():
            return
        np.maximum(self.lanes[lane], clock, out=self.lanes[lane])
        self.state[lane] = -1
        self.news += lane == HOST


def order_of(actions: Iterable[Action], num_nodes: int, num_lanes: int) -> Order:
    """The order that actions make, sorted by ``at_ns`` and ``call`` (equal ones as given)."""
    clocks = _Clocks(num_nodes, num_lanes)
    do: dict[Act, Callable[[Action], None]] = {
        Act.LAUNCH: clocks.launch,
        Act.TOUCH: clocks.touch,
        Act.RECORD: clocks.record,
        Act.RECORD_UNNAMED: clocks.record_unnamed,
        Act.STREAM_WAITS: clocks.stream_waits,
        Act.STREAM_WAITS_UNNAMED: clocks.stream_waits_unnamed,
        Act.HOST_BEGINS_EVENT: clocks.host_begins_event,
        Act.HOST_BEGINS_LANES: clocks.host_begins_lanes,
        Act.HOST_GOES_ON: clocks.host_goes_on,
        Act.HOST_HAS_NODE: clocks.host_has_node,
        Act.HOST_SEES: clocks.host_sees,
    }
    for action in sorted(actions, key=lambda action: (action.at_ns, action.call)):
        do[action.act](action)
    return clocks.order
