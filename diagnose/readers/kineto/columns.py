"""Typed events to columns: a numpy block per chunk is added to its group, texts are stored once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from diagnose.errors import InputTooLargeError
from diagnose.readers.kineto.begin_end import Pairs
from diagnose.readers.kineto.categories import (
    BEGIN,
    CALLS,
    END,
    GPU,
    HOST,
    HOST_BY_NAME,
    METADATA,
    SYNCS,
    UNKNOWN,
    Routes,
    gpu_kind,
)
from diagnose.readers.kineto.decode import NO_ARGS, Args, Event, text_of
from diagnose.readers.kineto.growing import GrowingColumns
from diagnose.readers.kineto.timestamps import nanoseconds
from diagnose.readers.raw import GROUPS, NO_NAME, Columns, ReadOptions
from diagnose.schema import NULL, Detail

Key = TypeVar("Key")
_INT64 = (-(1 << 63), 1 << 63)
_NO_ID = (1 << 32) - 1  # CUPTI's "invalid" of 32 bits, printed without a sign
_BLANK = re.compile(r"\s+")


class _Codes(dict[Key, int]):
    """Key -> code into the file's texts; ``spell`` makes the text at the first use."""

    __slots__ = ("_spell", "_strings")

    def __init__(self, strings: Strings, spell: Callable[[Key], str | None]) -> None:
        self._strings, self._spell = strings, spell

    def __missing__(self, key: Key) -> int:
        text = self._spell(key)
        code = self[key] = -1 if text is None else self._strings[text]
        return code


class Strings(dict[str, int]):
    """The file's texts and their codes, in order of appearance."""

    def __missing__(self, text: str) -> int:
        code = self[text] = len(self)
        return code


def _spaced(raw: bytes) -> str | None:
    """Lists of numbers in one spelling, whatever the file's layout."""
    text = text_of(raw)
    if text.startswith("["):
        text = _BLANK.sub("", text).replace(",", ", ")
    return text if raw != b"null" and text else None


def _launch_shape(key: tuple[bytes, bytes]) -> str | None:
    grid, block = _spaced(key[0]), _spaced(key[1])
    parts = [grid and f"grid {grid}", block and f"block {block}"]
    return " ".join(part for part in parts if part) or None


class ColumnBuilder:
    """Takes decoded events in file order; ``groups`` hold what is kept of them."""

    def __init__(self, path: str, options: ReadOptions, name_prefixes: tuple[str, ...]) -> None:
        self.path = path
        self.strings = Strings()
        self.groups = {group: GrowingColumns(dtypes) for group, dtypes in GROUPS.items()}
        self.pairs = Pairs()
        self.process_names: dict[str, dict[str, str]] = {}
        self.num_unreadable = 0
        self.uncounted: dict[str, int] = {}
        """Per category that nobody knows: events that name a device and a stream."""
        self.invalid_times = dict.fromkeys(GROUPS, 0)
        self.num_bytes = 0
        self._limit = options.memory_limit_bytes
        self._prefixes = name_prefixes
        self._keeps_all = options.detail >= Detail.ALL
        self._keeps_shapes = options.detail == Detail.SHAPES
        self._keeps_functions = options.function_ids
        self._routes = Routes(options.detail)
        self._names = _Codes[str](self.strings, lambda name: name or NO_NAME)
        self._texts = _Codes["str | None"](self.strings, lambda text: text or None)
        self._threads = _Codes["tuple[int | str, int | str]"](
            self.strings, lambda key: f"{key[0]}/{key[1]}"
        )
        self._processes = _Codes["int | str"](self.strings, str)
        self._lists = _Codes[bytes](self.strings, _spaced)
        self._shapes = _Codes["tuple[bytes, bytes]"](self.strings, _launch_shape)

    def add(self, events: Sequence[Event], places: npt.NDArray[np.int64]) -> None:
        """Append events; ``places`` are their places in the file, from 0."""
        count = len(events)
        routes = np.fromiter(
            map(self._routes.__getitem__, [(e.ph, e.cat) for e in events]), np.uint8, count
        )
        for group, route in (("gpu", GPU), ("calls", CALLS), ("syncs", SYNCS)):
            self._add_group(group, events, np.flatnonzero(routes == route), places)
        named = np.flatnonzero(routes == HOST_BY_NAME)
        hosts = np.flatnonzero(routes == HOST)
        unknown = np.flatnonzero(routes == UNKNOWN)
        if len(unknown):
            unknown = self._add_unknown(events, unknown)
            if self._keeps_all:
                hosts = np.sort(np.concatenate([hosts, unknown]))
            elif self._keeps_shapes:
                named = np.sort(np.concatenate([named, unknown]))
        wanted = self._wanted(events, named)
        if wanted.any():
            hosts = np.sort(np.concatenate([hosts, named[wanted]]))
        self._add_group("host", events, hosts, places)
        if self._keeps_shapes:
            self._add_operators(events, named[~wanted], places)
        for index in np.flatnonzero((routes >= BEGIN) & (routes <= METADATA)).tolist():
            event = events[index]
            if routes[index] == METADATA:
                self._name_process(event)
            elif routes[index] == END:
                self._add_end(event, int(places[index]))
            else:
                self._add_begin(event, places[index : index + 1])

    def _wanted(self, events: Sequence[Event], rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Which host events decide what a GPU operation is: by name or by what they carry."""
        chosen = [events[row] for row in rows.tolist()]
        prefixes = self._prefixes
        found = np.fromiter([e.name.startswith(prefixes) for e in chosen], bool, len(chosen))
        if self._keeps_shapes:
            found[_with_metadata([e.args or NO_ARGS for e in chosen])] = True
        return found

    def _add_unknown(
        self, events: Sequence[Event], rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Count what looks like work of a device; the rest may be operators."""
        host = []
        for row in rows.tolist():
            args = events[row].args or NO_ARGS
            if args.device != NULL and args.stream != NULL:
                category = events[row].cat[:100]
                self.uncounted[category] = self.uncounted.get(category, 0) + 1
            else:
                host.append(row)
        return np.array(host, np.int64)

    def _add_end(self, event: Event, place: int) -> None:
        time = int(nanoseconds([event.ts])[0])
        if time == NULL:
            self.pairs.num_unmatched_ends += 1
        else:
            self.pairs.end(self._threads[(event.pid, event.tid)], time, place, event.name)

    def _add_begin(self, event: Event, place: npt.NDArray[np.int64]) -> None:
        """A row as for a complete event, its end to be set by its partner."""
        event.ph = "X"
        event.dur = Raw(b"0")
        before = {group: columns.num_rows for group, columns in self.groups.items()}
        self.add([event], place)
        for group in ("gpu", "calls", "syncs", "host"):
            if self.groups[group].num_rows > before[group]:
                start = self.groups[group].last("start_ns")
                thread = self._threads[(event.pid, event.tid)]
                self.pairs.begin(thread, start, int(place[0]), event.name, group)
                return
        # Not kept, but on the stack of its thread all the same.
        time = int(nanoseconds([event.ts])[0])
        if time != NULL:
            thread = self._threads[(event.pid, event.tid)]
            self.pairs.begin(thread, time, int(place[0]), event.name, "")

    def _name_process(self, event: Event) -> None:
        args = event.args or NO_ARGS
        raw = {"process_name": args.name, "process_labels": args.labels}.get(event.name)
        text = text_of(bytes(raw)) if raw is not None and bytes(raw) else ""
        if text and len(self.process_names) < 100_000:
            self.process_names.setdefault(str(event.pid), {})[event.name] = text[:1000]

    def _add_group(
        self,
        group: str,
        events: Sequence[Event],
        rows: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
    ) -> None:
        if not len(rows):
            return
        chosen = events if len(rows) == len(events) else [events[i] for i in rows.tolist()]
        start = nanoseconds([e.ts for e in chosen])
        duration = nanoseconds([e.dur for e in chosen])
        valid = (start != NULL) & (duration >= 0)
        places = places[rows]
        if not valid.all():
            self.invalid_times[group] += len(rows) - int(valid.sum())
            chosen = [chosen[i] for i in np.flatnonzero(valid).tolist()]
            start, duration, places = start[valid], duration[valid], places[valid]
        block: Columns = {"order": places, "start_ns": start, "end_ns": start + duration}
        args = [e.args or NO_ARGS for e in chosen]
        if group in ("gpu", "host"):
            self._add_collectives(args, places, on_gpu=group == "gpu")
        if group == "host" and self._keeps_functions:
            identities = self._identifiers([a.function for a in args])
            told = identities > 0  # 0 is written for none
            self._append("functions", {"order": places[told], "function_id": identities[told]})
        block.update(getattr(self, f"_{group}")(chosen, args))
        self._append(group, block)

    def _add_operators(
        self,
        events: Sequence[Event],
        rows: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
    ) -> None:
        """What tells the input shapes of what they launched; their times are not needed."""
        if not len(rows):
            return
        chosen = [events[row] for row in rows.tolist()]
        args = [event.args or NO_ARGS for event in chosen]
        block: Columns = {
            "order": places[rows],
            "thread": self._thread(chosen),
            "category": self._texts_of(self._texts, [e.cat for e in chosen]),
            "external_id": self._external(args),
            "shapes": self._texts_of(self._lists, _shapes_of(args)),
        }
        self._append("operators", block)

    def _append(self, group: str, block: Columns) -> None:
        self.num_bytes += self.groups[group].append(block)

    def check_memory(self, stored_share: float | None) -> None:
        """Raise InputTooLargeError if the columns exceed the limit, or are bound to."""
        limit = self._limit
        if limit is None or self.num_bytes * 2 <= limit:  # assembling needs room as well
            return
        estimate = self.num_bytes / stored_share if stored_share else self.num_bytes
        if estimate * 2 <= limit:
            return
        raise InputTooLargeError(
            f"{self.path}: what is kept of it would need about {int(estimate * 2) >> 20} MiB of"
            f" memory; the limit is {limit >> 20} MiB",
            hint="Read less with --only gpu, raise the limit, or use a machine with more memory.",
        )

    def _integers(self, values: list[int]) -> npt.NDArray[np.int64]:
        try:
            return np.fromiter(values, np.int64, len(values))
        except OverflowError:
            low, high = _INT64
            fitting = [value if low <= value < high else NULL for value in values]
            self.num_unreadable += sum(a != b for a, b in zip(values, fitting, strict=True))
            return np.array(fitting, np.int64)

    def _identifiers(self, values: list[int]) -> npt.NDArray[np.int64]:
        """Integers of which a negative one means "none"."""
        found = self._integers(values)
        found[found < 0] = NULL
        return found

    def _texts_of(self, codes: dict[Any, int], keys: list[Any]) -> npt.NDArray[np.int32]:
        return np.fromiter(map(codes.__getitem__, keys), np.int32, len(keys))

    def _external(self, args: list[Args]) -> npt.NDArray[np.int64]:
        found = self._identifiers([a.external for a in args])
        for row in np.flatnonzero(found == NULL).tolist():
            older = max(args[row].external_old, args[row].external_title)
            if 0 <= older < _INT64[1]:
                found[row] = older
        return found

    def _thread(self, events: Sequence[Event]) -> npt.NDArray[np.int32]:
        return self._texts_of(self._threads, [(e.pid, e.tid) for e in events])

    def _name(self, events: Sequence[Event]) -> npt.NDArray[np.int32]:
        return self._texts_of(self._names, [e.name for e in events])

    def _gpu(self, events: Sequence[Event], args: list[Args]) -> Columns:
        stream = self._identifiers([a.stream for a in args])
        for row in np.flatnonzero(stream == NULL).tolist():
            stream[row] = _number_in(events[row].tid)
        device = self._identifiers([a.device for a in args])
        absent = np.flatnonzero(device == NULL)
        if len(absent):
            device[absent] = self._identifiers([args[i].in_device for i in absent.tolist()])
        kinds = {category: gpu_kind(category) or 0 for category in {e.cat for e in events}}
        shapes = [(bytes(a.grid), bytes(a.block)) for a in args]
        return {
            "process": self._texts_of(self._processes, [e.pid for e in events]),
            "device": device,
            "stream": stream,
            "kind": np.fromiter([kinds[e.cat] for e in events], np.int8, len(events)),
            "name": self._name(events),
            "launch_shape": self._texts_of(self._shapes, shapes),
            "correlation": self._identifiers([a.correlation for a in args]),
            "external_id": self._external(args),
            "bytes": self._identifiers([a.bytes for a in args]),
            "graph_node": self._identifiers([a.graph_node or NULL for a in args]),
            "from_device": self._identifiers([a.from_device for a in args]),
            "to_device": self._identifiers([a.to_device for a in args]),
        }

    def _host(self, events: Sequence[Event], args: list[Args]) -> Columns:
        return {
            "thread": self._thread(events),
            "category": self._texts_of(self._texts, [e.cat for e in events]),
            "name": self._name(events),
            "external_id": self._external(args),
            "sequence": self._identifiers([a.sequence for a in args]),
            "shapes": self._texts_of(self._lists, _shapes_of(args)),
        }

    def _calls(self, events: Sequence[Event], args: list[Args]) -> Columns:
        return {
            "thread": self._thread(events),
            "name": self._name(events),
            "correlation": self._identifiers([a.correlation for a in args]),
            "external_id": self._external(args),
        }

    def _syncs(self, events: Sequence[Event], args: list[Args]) -> Columns:
        device = self._identifiers([a.device for a in args])
        for row in np.flatnonzero(device == NULL).tolist():
            device[row] = _number_in(events[row].pid)
        kinds = [a.sync_kind or e.name for e, a in zip(events, args, strict=True)]
        columns = {
            "stream": self._identifiers([a.stream for a in args]),
            "correlation": self._identifiers([a.correlation for a in args]),
            "event_id": self._identifiers([a.wait_event for a in args]),
            "event_stream": self._identifiers([a.wait_stream for a in args]),
            "event_correlation": self._identifiers([a.wait_correlation for a in args]),
        }
        for column in columns.values():
            column[column == _NO_ID] = NULL
        return {"device": device, "sync_kind": self._texts_of(self._texts, kinds), **columns}

    def _add_collectives(
        self, all_args: list[Args], places: npt.NDArray[np.int64], *, on_gpu: bool
    ) -> None:
        rows = _with_metadata(all_args)
        if not rows:
            return
        args = [all_args[row] for row in rows]
        self._append(
            "collectives",
            {
                "order": places[rows],
                "on_gpu": np.full(len(rows), on_gpu),
                "name": self._texts_of(self._texts, [a.collective for a in args]),
                "in_elements": self._identifiers([a.in_elements for a in args]),
                "out_elements": self._identifiers([a.out_elements for a in args]),
                "dtype": self._texts_of(self._texts, [a.dtype for a in args]),
                "group": self._texts_of(self._texts, [a.group for a in args]),
                "group_size": self._identifiers([a.group_size for a in args]),
                "group_ranks": self._texts_of(self._lists, [bytes(a.group_ranks) for a in args]),
                "sequence": self._identifiers([a.collective_sequence for a in args]),
                "source_rank": self._identifiers([a.source_rank for a in args]),
                "destination_rank": self._identifiers([a.destination_rank for a in args]),
                "in_addresses": self._texts_of(self._lists, [bytes(a.in_addresses) for a in args]),
                "out_addresses": self._texts_of(
                    self._lists, [bytes(a.out_addresses) for a in args]
                ),
            },
        )


def _with_metadata(args: list[Args]) -> list[int]:
    """Which events tell of a collective."""
    return [
        row
        for row, a in enumerate(args)
        if a.collective is not None or a.source_rank != NULL or a.in_elements != NULL
    ]


def _shapes_of(args: list[Args]) -> list[bytes]:
    return [bytes(a.shapes) or bytes(a.shapes_old) for a in args]


def _number_in(identity: int | str) -> int:
    """The number of a track: 7 of 7, "7" and "stream 7"; NULL if there is none."""
    if isinstance(identity, int):
        return identity if 0 <= identity < _INT64[1] else NULL
    digits = re.fullmatch(r"(?:\D*\s)?(\d{1,9})\s*", identity)
    return int(digits[1]) if digits else NULL
