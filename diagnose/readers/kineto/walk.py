"""Events one by one, for text in which something is wrong.

Slower than decoding a whole chunk, and used only where that failed: finds where
each event begins and ends, repairs it if it is damaged, and goes on behind it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from diagnose.readers.kineto.chunks import BOUNDARY, EVENT_START, LARGEST_EVENT
from diagnose.readers.kineto.decode import UNDECODABLE, Event, decode_event, is_event
from diagnose.readers.kineto.repair import LARGEST_REPAIR, repairs

_BLANK = re.compile(rb"[\s,\x00]*")
_SURPLUS = re.compile(rb"\x00|,[^,]*,")
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|$)|[{}\[\]]', re.DOTALL)
# An object that is no value of a key: the text before may be anything, also the rest of a hole.
_FRESH_START = re.compile(rb"(?<!:)(?<!: )" + EVENT_START.pattern)
_NO_OBJECT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[^,\]{]+', re.DOTALL)
_LIST_END = re.compile(rb'\}\s*(?:,\s*)?(?=\]\s*(?:\}|$|,\s*"))')
# How much text behind the beginning of an event is worth waiting for before it counts as damaged.
_PATIENCE = 1 << 20
# Repairing and looking for brackets may take this many times the text; what is beyond is dropped.
_SCANS = 16
_CANDIDATES = 16
_DEEPEST = 10_000
_NO_KEY = (b"", b",")
# What tells that the text of one event is that of several, with bytes lost in between.
_HOLE = 16
_NO_CONTROLS = bytes(byte for byte in range(256) if byte >= 32 or byte in b"\t\n\r")
_ONCE = re.compile(rb'"(?:ph|ts)"\s*:')


@dataclass
class Damage:
    """What was found wrong with a file's events, with the first offset in its text.

    ``num_dropped`` counts places; ``dropped_bytes`` of text there may be many events.
    """

    num_repaired: int = 0
    num_dropped: int = 0
    dropped_bytes: int = 0
    num_foreign: int = 0
    num_not_finite: int = 0
    num_unreadable: int = 0
    first_repaired: int | None = None
    first_dropped: int | None = None
    truncated_at: int | None = None

    def repaired(self, offset: int) -> None:
        self.num_repaired += 1
        if self.first_repaired is None:
            self.first_repaired = offset

    def dropped(self, offset: int, num_bytes: int) -> None:
        self.num_dropped += 1
        self.dropped_bytes += num_bytes
        if self.first_dropped is None:
            self.first_dropped = offset


@dataclass
class Walked:
    """Events of a text; ``places`` count from 0 over all events, also dropped ones.

    ``consumed`` bytes need not be looked at again; ``list_ended``: the closing
    bracket of the events was among them.
    """

    events: list[Event] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    count: int = 0
    consumed: int = 0
    list_ended: bool = False


class Walker:
    """Reads events of one text that begins at ``base`` of the file's text."""

    def __init__(self, text: bytes, base: int, damage: Damage, *, final: bool) -> None:
        self._text, self._base, self._damage, self._final = text, base, damage, final
        self._walked = Walked()
        self._left_to_scan = _SCANS * len(text)
        self._boundary: re.Match[bytes] | None = None
        self._boundary_known_from = -1

    def walk(self) -> Walked:
        text, walked = self._text, self._walked
        at = 0
        while not walked.list_ended:
            blank = _BLANK.match(text, at)
            if blank and is_hole(blank[0]):
                if blank.end() == len(text) and not self._final:
                    break  # at the end of the file it would be padding
                if blank.end() < len(text):
                    self._damage.dropped(self._base + at, blank.end() - at)
            elif blank and _SURPLUS.search(blank[0]):
                self._damage.repaired(self._base + at)
            at = blank.end() if blank else at
            if at >= len(text):
                break
            if text[at] == 0x5D:  # ]
                if blank and b"," in blank[0]:
                    self._damage.repaired(self._base + at)
                walked.list_ended = True
                at += 1
                break
            step = self._event(at) if text[at] == 0x7B else self._no_event(at)
            if step is None:
                break
            at = step
        walked.consumed = at
        return walked

    def _event(self, at: int) -> int | None:
        """Read the event at ``at``; where it ends, or None if it needs more text."""
        text = self._text
        boundary = self._next_boundary(at)
        ends = []
        failure = "truncated"
        if boundary:
            ends.append(boundary.start() + 1)
            failure = self._try(at, ends[0])
            if not failure:
                return ends[0]
        if "truncated" in failure or "trailing" in failure:
            # The boundary may lie between objects within the event, or between two further on.
            balanced = self._balanced_end(at)
            if balanced is not None and balanced not in ends:
                ends.append(balanced)
                if not self._try(at, balanced):
                    return balanced
            waiting = not boundary or len(text) - at < _PATIENCE
            if balanced is None and waiting and not self._final:
                return None
        closing = _LIST_END.search(text, at, boundary.start() if boundary else len(text))
        if closing:
            ends.insert(0, closing.start() + 1)
        inner = self._whole_event_within(at, ends[0]) if ends else None
        if inner is not None:
            self._drop(at, inner)
            return inner
        for end in ends:
            if self._repair(at, end):
                return end
        if ends:
            self._drop(at, ends[0])
            return ends[0]
        # Nothing closes it: the text ends within this event.
        self._damage.truncated_at = self._base + at
        return len(text)

    def _next_boundary(self, at: int) -> re.Match[bytes] | None:
        known = self._boundary
        if self._boundary_known_from < 0 or (known and known.start() < at):
            self._boundary = BOUNDARY.search(self._text, at)
            self._boundary_known_from = at
        return self._boundary

    def _balanced_end(self, at: int) -> int | None:
        end, seen = _balanced_end(self._text, at, self._left_to_scan)
        self._left_to_scan -= seen
        return end

    def _whole_event_within(self, at: int, end: int) -> int | None:
        """Where a sound event begins before ``end``, if this one broke off and never ended."""
        view = memoryview(self._text)
        starts = _FRESH_START.finditer(self._text, at + 1, end)
        for found in islice(starts, _CANDIDATES):
            start = found.start()
            if is_event(view[start:end]):
                return start
        return None

    def _no_event(self, at: int) -> int | None:
        """Skip an entry that is no object; where it ends, or None if it needs more text."""
        text = self._text
        end: int | None
        if text[at] == 0x5B:  # [
            end = self._balanced_end(at)
        else:
            value = _NO_OBJECT.match(text, at)
            end = value.end() if value and value.end() > at else at + 1
        if (end is None or end >= len(text)) and not self._final:
            return None
        if end is None:  # brackets that nothing closes
            found = EVENT_START.search(text, at + 1)
            end = found.start() if found else len(text)
        if _is_foreign(text[at:end]):
            self._damage.num_foreign += 1
        else:
            self._damage.dropped(self._base + at, end - at)
        return end

    def _take(self, event: Event) -> None:
        self._walked.events.append(event)
        self._walked.places.append(self._walked.count)
        self._walked.count += 1

    def _drop(self, at: int, end: int) -> None:
        self._damage.dropped(self._base + at, end - at)
        self._walked.count += 1

    def _try(self, at: int, end: int) -> str:
        """Decode and take an event; "" or why it cannot be decoded."""
        try:
            event, unreadable = decode_event(memoryview(self._text)[at:end])
        except UNDECODABLE as error:
            return str(error) or "unknown"
        self._damage.num_unreadable += unreadable
        self._take(event)
        return ""

    def _repair(self, at: int, end: int) -> bool:
        if end - at > min(LARGEST_REPAIR, self._left_to_scan):
            return False
        self._left_to_scan -= end - at
        damaged = self._text[at:end]
        if is_hole(damaged) or _is_merged(damaged):
            return False  # would become one event made of the ends of two
        for attempt in repairs(damaged):
            try:
                event, unreadable = decode_event(attempt.text)
            except UNDECODABLE:
                continue
            self._damage.num_unreadable += unreadable
            self._damage.num_not_finite += attempt.not_finite
            if attempt.text_changed:
                self._damage.repaired(self._base + at)
            self._take(event)
            return True
        return False


def is_hole(text: bytes) -> bool:
    """Whether so many control characters are in it that they replace what was written."""
    return len(text.translate(None, _NO_CONTROLS)) >= _HOLE


def _is_merged(text: bytes) -> bool:
    keys = [found[0].rstrip(b": \t\r\n") for found in islice(_ONCE.finditer(text), 3)]
    return len(set(keys)) < len(keys)


def _is_foreign(text: bytes) -> bool:
    """Whether an entry of the list is legal JSON and holds no event."""
    try:
        msgspec.json.decode(text)
    except UNDECODABLE:
        return False
    return not _ONCE.search(text)


def _balanced_end(text: bytes, at: int, limit: int) -> tuple[int | None, int]:
    """(where the brackets opened from ``at`` on are closed, None: nowhere; bytes looked at).

    Stops where an object stands among another one's keys: the brackets before are
    not closed there, and what follows is the next event.
    """
    opened: list[bytes] = []
    before = -1  # where the last bracket ended
    reach = min(limit, LARGEST_EVENT)
    for token in _TOKEN.finditer(text, at, at + reach):
        bracket = token[0]
        if bracket[0] == 34:
            continue
        if bracket == b"{" or bracket == b"[":
            if (
                bracket == b"{"
                and opened[-1:] == [b"{"]
                and text[before : token.start()].strip() in _NO_KEY
            ):
                return None, token.end() - at
            opened.append(bracket)
            if len(opened) > _DEEPEST:
                return None, token.end() - at
        else:
            opened.pop()
            if not opened:
                return token.end(), token.end() - at
        before = token.end()
    return None, min(reach, len(text) - at)
