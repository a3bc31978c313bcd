"""``Timeline``: everything that is drawn along one axis of time, at any level of detail."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.errors import UsageError
from diagnose.intervals import Array, Intervals
from diagnose.lanes.clock import Clocks, clocks_of
from diagnose.lanes.contents import states_index, states_of, stream_index, thread_index
from diagnose.lanes.counters import Counter, counters_of
from diagnose.lanes.index import LaneIndex
from diagnose.lanes.lane import Category, Lane, LaneKind, OpTable, lanes_of
from diagnose.lanes.picture import Asked, Picture, shapes_of
from diagnose.lanes.search import Hits, search
from diagnose.lanes.shapes import joined
from diagnose.lanes.steps import StepMark, step_marks
from diagnose.schema import NO_ROW, NULL
from diagnose.timeline.step_times import of_source
from diagnose.trace import Gpu, Table, Trace

_FARTHEST = 2**61
_MOST_PIXELS = 20_000


class Place(NamedTuple):
    """Where an operation is: its lane, its row there, its time on the axis."""

    lane: str
    depth: int
    start_ns: int
    end_ns: int


class Timeline:
    """The lanes of a trace on one axis: nanoseconds since the first event, on one clock.

    Nothing is built before it is asked for, and what was built is kept. May be asked by
    several threads at once.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._lock = threading.RLock()
        self._indexes: dict[str, LaneIndex] = {}
        self._states: dict[str, dict[Category, Intervals]] = {}

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """By rank: each GPU and its streams, then the host's threads."""
        return lanes_of(self.trace)

    @cached_property
    def _lane_of_key(self) -> dict[str, Lane]:
        return {lane.key: lane for lane in self.lanes}

    @cached_property
    def _ends(self) -> list[tuple[int, int] | None]:
        """First start and last end of each source, by its own clock; None without events."""
        return [self._ends_of(source) for source in range(len(self.trace.sources))]

    def _ends_of(self, source: int) -> tuple[int, int] | None:
        trace, found = self.trace, []
        for table in (trace.gpu_ops, trace.host_ops, trace.launches, trace.steps):
            rows = of_source(table, source)
            if rows.stop > rows.start:
                start, end = table["start_ns"][rows], table["end_ns"][rows]
                # An event without length at the very end lies before the end.
                found.append((int(start.min()), max(int(end.max()), int(start.max()) + 1)))
        return (min(f[0] for f in found), max(f[1] for f in found)) if found else None

    @cached_property
    def _clocks(self) -> Clocks:
        return clocks_of(self.trace, [None if ends is None else ends[0] for ends in self._ends])

    @cached_property
    def _range(self) -> tuple[int, int]:
        """Start and end on the common clock, before the start is made 0."""
        found = []
        for clock, ends in zip(self._clocks.of_source, self._ends, strict=True):
            if ends is not None:
                low, high = clock.forward(np.array(ends, np.int64)).tolist()
                found.append((low, max(high, low + 1)))
        return (min(f[0] for f in found), max(f[1] for f in found)) if found else (0, 1)

    @property
    def start_ns(self) -> int:
        """Always 0: the first event."""
        return 0

    @property
    def end_ns(self) -> int:
        """The end of the last event, at least 1."""
        return self._range[1] - self._range[0]

    @property
    def clock(self) -> str:
        """How the clocks of the sources were brought together, and how well; "" for one source."""
        return self._clocks.sentence

    def to_common(self, source: int, time_ns: Array) -> Array:
        """Times of a source on the timeline's axis."""
        return self._clocks.of_source[source].forward(time_ns) - self._range[0]

    def from_common(self, source: int, time_ns: Array) -> Array:
        """Times on the axis on the clock of a source."""
        return self._clocks.of_source[source].back(time_ns + self._range[0])

    def lane(self, key: str) -> Lane:
        """The lane of a key. Raises UsageError if there is none."""
        found = self._lane_of_key.get(key)
        if found is None:
            raise UsageError(
                f"This recording has no lane {key!r}.",
                hint="Lanes are named in `Timeline.lanes`, as g0.0, g0.0s7 or h0.2.",
            )
        return found

    def index(self, key: str) -> LaneIndex:
        """The arrays of a lane, built when first asked for."""
        found = self._indexes.get(key)
        if found is None:
            with self._lock:
                found = self._indexes.get(key) or self._build(self.lane(key))
                self._indexes[key] = found
        return found

    def _build(self, lane: Lane) -> LaneIndex:
        if lane.kind == LaneKind.THREAD:
            return thread_index(self.trace, lane)
        if lane.kind == LaneKind.STATES:
            return states_index(self._states_of(lane))
        return stream_index(self.trace, lane, self._states_of(lane)[Category.EXPOSED])

    def _states_of(self, lane: Lane) -> dict[Category, Intervals]:
        key = f"g{lane.source}.{lane.device}"
        if key not in self._states:
            gpu = Gpu(lane.source, lane.device or 0, None)
            self._states[key] = states_of(self.trace, gpu)
        return self._states[key]

    @property
    def num_bytes(self) -> int:
        """Memory of all that was built so far, in bytes, without the trace."""
        return sum(index.num_bytes for index in list(self._indexes.values()))

    def rows_of(self, lane: str) -> int:
        """How many rows a lane needs when drawn; at least 1."""
        return self.index(lane).num_rows

    def picture(
        self,
        start_ns: int,
        end_ns: int,
        *,
        pixels: int,
        lanes: Sequence[str],
        most_shapes: int = 4000,
    ) -> Picture:
        """The shapes of a window, ``pixels`` wide, of the lanes asked for.

        Raises UsageError for an empty window, an unknown lane, or where not even one pixel
        per row and colour fits into ``most_shapes``.
        """
        start_ns, end_ns = _window(start_ns, end_ns)
        if not 1 <= pixels <= _MOST_PIXELS:
            raise UsageError(f"A picture is 1 to {_MOST_PIXELS} pixels wide, not {pixels}.")
        if most_shapes < 1:
            raise UsageError(f"A picture needs at least one shape, not {most_shapes}.")
        asked = [self._asked(key) for key in lanes]
        pixel, found = shapes_of(asked, start_ns, end_ns, pixels, most_shapes)
        count = [len(shapes.depth) for shapes in found]
        lane = np.repeat(np.arange(len(lanes), dtype=np.int32), count)
        shapes = joined(found)
        keys = (shapes.row, shapes.end, shapes.start, shapes.category, shapes.depth, lane)
        order = np.lexsort(keys)
        shapes = shapes.in_order(order)
        return Picture(
            start_ns=start_ns,
            end_ns=end_ns,
            pixel_ns=pixel,
            lanes=tuple(lanes),
            lane=lane[order],
            depth=shapes.depth,
            category=shapes.category,
            shape_start_ns=shapes.start,
            shape_end_ns=shapes.end,
            busy_ns=shapes.busy,
            num_ops=shapes.num_ops,
            table=shapes.table,
            row=shapes.row,
            name=self._names(shapes.table, shapes.row),
        )

    def _asked(self, key: str) -> Asked:
        source = self.lane(key).source
        clock, zero = self._clocks.of_source[source], self._range[0]
        return Asked(
            self.index(key),
            lambda times: clock.back(times + zero),
            lambda times: clock.forward(times) - zero,
        )

    def table(self, table: OpTable) -> Table:
        """The table of the trace that operations of this kind are rows of."""
        tables = {
            OpTable.GPU_OPS: self.trace.gpu_ops,
            OpTable.HOST_OPS: self.trace.host_ops,
            OpTable.LAUNCHES: self.trace.launches,
        }
        return tables[table]

    def _names(self, table: npt.NDArray[np.int8], row: Array) -> npt.NDArray[np.int32]:
        names = np.full(len(row), NO_ROW, np.int32)
        for kind in (OpTable.GPU_OPS, OpTable.HOST_OPS, OpTable.LAUNCHES):
            of_kind = table == kind
            if of_kind.any():
                names[of_kind] = self.table(kind)["name"][row[of_kind]]
        return names

    def steps(self, source: int | None = None) -> tuple[StepMark, ...]:
        """The step marks of one source, or of all, by source and start."""
        sources = range(len(self.trace.sources)) if source is None else [source]
        return tuple(mark for s in sources for mark in step_marks(self.trace, s, self.to_common))

    def counters(self, start_ns: int, end_ns: int, *, pixels: int) -> tuple[Counter, ...]:
        """What the sensors of each GPU read in a window; see ``Counter``."""
        start_ns, end_ns = _window(start_ns, end_ns)
        return counters_of(self.trace, self.lanes, self.to_common, start_ns, end_ns, pixels)

    def search(self, text: str, *, lanes: Iterable[str] | None = None) -> Hits:
        """Operations whose name contains a text, in upper or lower case, by time.

        ``lanes`` limits them to some lanes. An empty text finds nothing.
        """
        wanted = None if lanes is None else [self.lane(key) for key in lanes]
        return search(self.trace, text, wanted, self.to_common)

    def locate(self, table: OpTable | str, row: int) -> Place:
        """Where one operation is. Raises UsageError if there is none."""
        kind = _kind(table)
        if not 0 <= row < len(self.table(kind)):
            raise UsageError(f"This recording has no row {row} in {kind.label}.")
        lane = self.lane(self._key_of(kind, row))
        depth = self.index(lane.key).row_of(kind, row)
        held = self.table(kind)
        ends = np.array([held["start_ns"][row], held["end_ns"][row]], np.int64)
        start, end = self.to_common(lane.source, ends).tolist()
        return Place(lane.key, depth or 0, start, end)

    def lane_of(self, table: OpTable, row: int) -> str:
        """Key of the lane of an operation, without building that lane; the row must exist."""
        return self._key_of(table, row)

    def _key_of(self, kind: OpTable, row: int) -> str:
        held = self.table(kind)
        source = int(held["source"][row])
        if kind == OpTable.GPU_OPS:
            stream = int(held["stream"][row])
            shown = "-" if stream == NULL else str(stream)
            return f"g{source}.{int(held['device'][row])}s{shown}"
        return self._thread_keys[source, self.trace.strings[int(held["thread"][row])]]

    @cached_property
    def _thread_keys(self) -> dict[tuple[int, str], str]:
        return {
            (lane.source, lane.thread): lane.key for lane in self.lanes if lane.thread is not None
        }


def _kind(table: OpTable | str) -> OpTable:
    known = {kind.label: kind for kind in OpTable if kind != OpTable.NONE}
    if not isinstance(table, str):
        table = next((label for label, kind in known.items() if kind == table), str(table))
    found = known.get(table)
    if found is None:
        raise UsageError(f"{table!r} is no table of operations.", hint=f"Use {', '.join(known)}.")
    return found


def _window(start_ns: int, end_ns: int) -> tuple[int, int]:
    start_ns, end_ns = int(start_ns), int(end_ns)
    if end_ns <= start_ns:
        raise UsageError(f"A window from {start_ns} to {end_ns} ns is empty.")
    if max(-start_ns, end_ns) > _FARTHEST:
        raise UsageError(f"A window from {start_ns} to {end_ns} ns is beyond any recording.")
    return start_ns, end_ns
