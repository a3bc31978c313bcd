"""The top level of a trace file: where its list of events is, and what stands around it.

``traceEvents`` counts only as a key of the outermost object; the same word
inside a string or a nested value does not. Values that nobody asked for
(memory snapshots, stack tables) are skipped in bounded memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from diagnose.readers.kineto.chunks import EVENT_START, Window
from diagnose.readers.kineto.decode import UNDECODABLE, text_of
from diagnose.readers.kineto.repair import LARGEST_REPAIR, repairs
from diagnose.readers.kineto.walk import Damage

LARGEST_VALUE = 4 << 20
LARGEST_OTHER_VALUE = 64 << 10
LARGEST_HEADER = 16 << 20
_LARGEST_KEY = 1 << 20
_MOST_KEYS = 1000
_MOST_LISTS = 1000
_MOST_DECOYS = 8
_WANTED = frozenset(("distributedInfo", "deviceProperties"))

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_PHASE_OR_EVENTS_KEY = re.compile(rb'"ph"\s*:\s*"(?P<phase>)|' + _EVENTS_KEY.pattern)
_ANOTHER_DOCUMENT = re.compile(rb"[\s\x00]*(?:\[|(?!" + EVENT_START.pattern + rb")\{)")
_LONGEST_BEFORE_PHASE = 64 << 10
_BLANK = re.compile(rb"[\s,]*")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_STRING_REST = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_SCALAR = re.compile(rb"[^,\]}\s]*")
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)


class Document:
    """Walks the top level of a file, keeps its metadata and calls back at the events."""

    def __init__(self, window: Window, damage: Damage, read_events: Callable[[], None]) -> None:
        self.window = window
        self.metadata: dict[str, Any] = {}
        self.is_object = False
        self.has_events = False
        self.complete = False
        """Whether the document was closed as it should be."""
        self.damaged_at: int | None = None
        """Offset at which the text around the events made no sense any more."""
        self.surplus = 0
        """Bytes behind the end that are no blanks."""
        self._damage = damage
        self._lists = 0
        self._read_events = read_events

    def read(self) -> None:
        """Read the whole document. What is wrong with it is told by the attributes."""
        first = self._next_byte()
        if first == ord("["):
            self.window.at += 1
            self.has_events = True
            self._read_events()
            self.complete = True
        elif first == ord("{"):
            self.is_object = True
            if not self._read_header():
                self.window.at += 1
            self._read_keys()
        while self._events_go_on():
            self._read_events()
            if self.is_object:
                self._read_keys()

    def _next_byte(self) -> int | None:
        """The next byte that is neither blank nor a comma; None at the end of the text."""
        window = self.window
        while True:
            blank = _BLANK.match(window.data, window.at)
            window.at = blank.end() if blank else window.at
            if window.at < len(window.data):
                return window.data[window.at]
            if not window.more():
                return None

    def _read_header(self) -> bool:
        """The usual case: decode all that stands before the events in one go.

        Proven by decoding: closed right after the list's bracket, the header is a
        legal object only if that bracket belongs to its outermost level.
        """
        window = self.window
        tried = decoys = 0
        while True:
            for found in _EVENTS_KEY.finditer(window.data, window.at + tried):
                fields = _decode_header(window.data[window.at : found.end()] + b"]}")
                if fields is not None:
                    window.at = found.end()
                    for key, raw in fields.items():
                        self._keep(key, raw)
                    self.has_events = True
                    self._read_events()
                    return True
                decoys += 1
                if decoys > _MOST_DECOYS or found.end() - window.at > LARGEST_HEADER:
                    return False
            tried = max(0, len(window.data) - window.at - 64)
            if tried > LARGEST_HEADER or not window.more():
                return False

    def _read_keys(self) -> None:
        """Keys and values, from inside the object to its end."""
        while True:
            first = self._next_byte()
            if first is None:
                return
            if first == ord("}"):
                self.window.at += 1
                self.complete = True
                return
            key = self._string(_LARGEST_KEY) if first == ord('"') else None
            if key is None or not self._colon():
                if not self._resynchronise():
                    return
                continue
            name = text_of(key)
            if name == "traceEvents" and self._next_byte() == ord("["):
                self._lists += 1
                if self._lists > _MOST_LISTS:
                    self.damaged_at = self.window.offset
                    return
                self.window.at += 1
                self.has_events = True
                self._read_events()
                continue
            value, whole = self._value(LARGEST_VALUE if name in _WANTED else LARGEST_OTHER_VALUE)
            if not whole:
                return
            if value is not None:
                self._keep(name, value)

    def _resynchronise(self) -> bool:
        """After text that makes no sense: go to the events, if they are still to come."""
        window = self.window
        if self.damaged_at is None:
            self.damaged_at = window.offset
        if self.has_events:
            return False
        while True:
            found = _EVENTS_KEY.search(window.data, window.at)
            if found:
                window.at = found.start()
                return True
            window.at = max(window.at, len(window.data) - 64)
            if not window.more():
                return False

    def _events_go_on(self) -> bool:
        """Go to the next event behind what looked like the end; False: there is none.

        A closing bracket too early, or lost bytes, do not end a trace. What begins as a
        document of its own does not belong to it and is left alone.
        """
        window = self.window
        begin = window.offset
        sought = self.has_events and self._lists < _MOST_LISTS
        if self.complete and sought:
            self._next_byte()
            sought = not _ANOTHER_DOCUMENT.match(window.data, window.at)
        while True:
            found = _PHASE_OR_EVENTS_KEY.search(window.data, window.at) if sought else None
            if found and found["phase"] is not None:
                starts = list(EVENT_START.finditer(window.data, window.at, found.end()))
                at = starts[-1].start() if starts else found.start()
                self._damage.dropped(begin, window.base + at - begin)
                window.at = at
                self._lists += 1
                self.complete, self.damaged_at, self.surplus = not self.is_object, None, 0
                return True
            sought &= found is None
            left = 0 if window.ended else _LONGEST_BEFORE_PHASE * sought
            passed = max(window.at, len(window.data) - left)
            self.surplus += len(window.data[window.at : passed].strip(b" \t\r\n\x00"))
            window.at = passed
            if not window.more() and window.at >= len(window.data):
                return False

    def _colon(self) -> bool:
        if self._next_byte() != ord(":"):
            return False
        self.window.at += 1
        return self._next_byte() is not None

    def _string(self, limit: int) -> bytes | None:
        window = self.window
        while True:
            found = _STRING.match(window.data, window.at)
            if found:
                window.at = found.end()
                return found[0]
            if len(window.data) - window.at > limit or not window.more():
                return None

    def _value(self, limit: int) -> tuple[bytes | None, bool]:
        """(the value's text, or None if longer than ``limit``; whether it was complete)."""
        first = self._next_byte()
        if first is None:
            return None, False
        if first not in b'{["':
            return self._scalar()
        window = self.window
        parts: list[bytes] = []
        size = depth = 0
        inside = False
        while True:
            start = window.at
            depth, inside = self._advance(depth, inside=inside)
            size += window.at - start
            if size <= limit:
                parts.append(window.data[start : window.at])
            if depth <= 0 and not inside:
                return (b"".join(parts) if size <= limit else None), True
            if not window.more():
                return None, False

    def _scalar(self) -> tuple[bytes | None, bool]:
        window = self.window
        while True:
            scalar = _SCALAR.match(window.data, window.at)
            end = scalar.end() if scalar else window.at
            if end < len(window.data):
                break
            if len(window.data) - window.at > LARGEST_OTHER_VALUE or not window.more():
                return None, False
        text = window.data[window.at : end]
        window.at = end
        return text or None, True

    def _advance(self, depth: int, *, inside: bool) -> tuple[int, bool]:
        """Move on to where the value or the window ends: open brackets; whether in a string."""
        data, at = self.window.data, self.window.at
        if inside:
            at = _string_end(data, at)
            if data[at : at + 1] != b'"':
                self.window.at = at
                return depth, True
            at += 1
            if depth <= 0:
                self.window.at = at
                return depth, False
        for token in _TOKEN.finditer(data, at):
            letter = token[0][0]
            if letter == 34 and len(token[0]) == 1:  # nothing in the window closes it
                self.window.at = _string_end(data, token.end())
                return depth, True
            depth += (letter in b"{[") - (letter in b"}]")
            if depth <= 0:
                self.window.at = token.end()
                return depth, False
        self.window.at = len(data)
        return depth, False

    def _keep(self, key: str, raw: bytes | msgspec.Raw) -> None:
        text = bytes(raw)
        if key == "traceEvents" or len(self.metadata) >= _MOST_KEYS:
            return
        if len(text) <= (LARGEST_VALUE if key in _WANTED else LARGEST_OTHER_VALUE):
            value = _decode_value(text)
            if value is not None:
                self.metadata[key] = value


def _string_end(data: bytes, at: int) -> int:
    """Offset of the quote that closes a string, from inside of it; else as far as it is sure."""
    rest = _STRING_REST.match(data, at)
    return rest.end() if rest else at


def _decode_header(text: bytes) -> dict[str, msgspec.Raw] | None:
    try:
        return _decode_fields(text)
    except UNDECODABLE:
        for attempt in repairs(text) if len(text) <= LARGEST_REPAIR else ():
            with suppress(*UNDECODABLE):
                return _decode_fields(attempt.text)
    return None


_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _decode_value(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except UNDECODABLE:
        for attempt in repairs(text) if len(text) <= LARGEST_REPAIR else ():
            with suppress(*UNDECODABLE):
                return json.loads(attempt.text)
    return None
