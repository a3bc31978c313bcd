"""Events one by one, for text in which something is wrong.

Slower than decoding a whole chunk, and used only where that failed: finds where
each event begins and ends, repairs it if it is damaged, and goes on behind it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from diagnose.readers.kineto.chunks import BOUNDARY, EVENT_START, LARGEST_EVENT
from diagnose.readers.kineto.decode import Event, decode_event
from diagnose.readers.kineto.repair import repairs

_BLANK = re.compile(rb"[\s,\x00]*")
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|$)|[{}\[\]]', re.DOTALL)
_LIST_END = re.compile(rb'\}\s*,?\s*(?=\]\s*(?:\}|$|,\s*"))')
# How much text behind the beginning of an event is worth waiting for before it counts as damaged.
_PATIENCE = 1 << 20


@dataclass
class Damage:
    """What was found wrong with a file's events, with the first offset in its text."""

    num_repaired: int = 0
    num_dropped: int = 0
    num_not_finite: int = 0
    num_unreadable: int = 0
    first_repaired: int | None = None
    first_dropped: int | None = None
    truncated_at: int | None = None

    def repaired(self, offset: int) -> None:
        self.num_repaired += 1
        if self.first_repaired is None:
            self.first_repaired = offset

    def dropped(self, offset: int) -> None:
        self.num_dropped += 1
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

    def walk(self) -> Walked:
        text, walked = self._text, self._walked
        at = 0
        while not walked.list_ended:
            blank = _BLANK.match(text, at)
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
        boundary = BOUNDARY.search(text, at)
        ends = []
        failure = "truncated"
        if boundary:
            ends.append(boundary.start() + 1)
            failure = self._try(at, ends[0])
            if not failure:
                return ends[0]
        if "truncated" in failure or "trailing" in failure:
            # The boundary may lie between objects within the event, or between two further on.
            balanced = _balanced_end(text, at)
            if balanced is not None and balanced not in ends:
                ends.append(balanced)
                if not self._try(at, balanced):
                    return balanced
            if balanced is None and not self._final:
                if len(text) - at < _PATIENCE or not boundary:
                    return None
        closing = _LIST_END.search(text, at, boundary.start() if boundary else len(text))
        if closing:
            ends.insert(0, closing.start() + 1)
        for end in ends:
            if self._repair(at, end):
                return end
        if ends:
            self._drop(at)
            return ends[0]
        # Nothing closes it: the text ends within this event.
        self._damage.truncated_at = self._base + at
        return len(text)

    def _no_event(self, at: int) -> int | None:
        found = EVENT_START.search(self._text, at)
        if not found and not self._final:
            return None
        value = re.compile(rb"[^,\]{]+").match(self._text, at)
        if found is None or (value and value.end() < found.start()):
            # A number, word or string in the list; then what follows is looked at.
            end = value.end() if value else at + 1
        else:
            end = found.start()
        self._damage.dropped(self._base + at)
        return end

    def _take(self, event: Event) -> None:
        self._walked.events.append(event)
        self._walked.places.append(self._walked.count)
        self._walked.count += 1

    def _drop(self, at: int) -> None:
        self._damage.dropped(self._base + at)
        self._walked.count += 1

    def _try(self, at: int, end: int) -> str:
        """Decode and take an event; "" or why it cannot be decoded."""
        try:
            event, unreadable = decode_event(self._text[at:end])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return str(error) or "unknown"
        self._damage.num_unreadable += unreadable
        self._take(event)
        return ""

    def _repair(self, at: int, end: int) -> bool:
        if end - at > LARGEST_EVENT:
            return False
        for attempt in repairs(self._text[at:end]):
            try:
                event, unreadable = decode_event(attempt.text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            self._damage.num_unreadable += unreadable
            self._damage.num_not_finite += attempt.not_finite
            if attempt.text_changed:
                self._damage.repaired(self._base + at)
            self._take(event)
            return True
        return False


def _balanced_end(text: bytes, at: int) -> int | None:
    """Where the brackets opened from ``at`` on are closed, strings left out; None: nowhere."""
    depth = 0
    for token in _TOKEN.finditer(text, at, at + LARGEST_EVENT):
        first = token[0][0]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
            if depth <= 0:
                return token.end()
    return None
