"""What a file says of one event, in full: the tables keep the columns that analyses need.

The file is streamed once more and searched as bytes for the microseconds of the event's
start, which few events share; only these are decoded. Time grows with the bytes before the
event: about a second for each gigabyte of text, and the unpacking.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from diagnose.errors import InputError
from diagnose.readers import files
from diagnose.readers.containers import ByteStream, open_streams
from diagnose.readers.kineto.timestamps import nanoseconds_of

_PIECE = 1 << 20
_REACH = 128 << 10
"""Bytes of text that an event may be long, before and behind its start time."""
_MOST_BRACES = 64
_MOST_CHARACTERS = 4000
_MOST_ITEMS = 100
_DEEPEST = 5
_DIGITS = frozenset(b"0123456789")
_IDENTIFIERS = ("correlation", "external id")


@dataclass(frozen=True)
class Recorded:
    """The arguments of an event by name, as written; None: there are none, ``reason`` says why.

    Numbers with a point are texts, so that no digit is lost. Texts of more than 4,000
    characters and lists of more than 100 items are cut, and end in how much is missing.
    """

    arguments: Mapping[str, Any] | None
    reason: str = ""


def stored_bytes(path: str) -> int | None:
    """Bytes of the file that holds a source, on disk: of a zip archive all of it; None: unknown."""
    held = _held_by(path)
    return None if held is None else files.size(held)


def arguments_of(
    path: str,
    name: str,
    start_ns: int,
    *,
    correlation: int | None = None,
    external_id: int | None = None,
) -> Recorded:
    """The arguments of an event of a ``Source.path``.

    ``start_ns`` as in the tables of the trace. ``correlation`` and ``external_id`` tell
    events of one name and start apart; None: not known. Never raises for the sake of a
    file: what is missing, changed, damaged or in another format is a reason.
    """
    held = _held_by(path)
    if held is None:
        return Recorded(None, f"{path}: the file is not there any more.")
    wanted = _Wanted(name, start_ns, (correlation, external_id))
    damage = ""
    try:
        for member, stream in open_streams(held):
            if member != path:
                continue
            try:
                found = _search(stream, wanted)
            finally:
                stream.close()
            if found is not None:
                arguments = found.get("args")
                if not isinstance(arguments, dict) or not arguments:
                    return Recorded(None, "The file has no arguments for this event.")
                return Recorded(_bounded(arguments, 0))
            damage = stream.damage
            break
    except InputError as error:
        return Recorded(None, f"{error.message}.")
    except (OSError, ValueError, MemoryError) as error:
        return Recorded(None, f"{path}: reading failed ({error}).")
    reason = f"{path}: the event was not found; the file may have changed since it was read."
    if damage:
        reason = f"{path}: the event was not found before the file broke off: {damage}."
    return Recorded(None, reason)


@dataclass(frozen=True)
class _Wanted:
    name: str
    start_ns: int
    identifiers: tuple[int | None, int | None]

    def is_met_by(self, event: Mapping[str, Any]) -> bool:
        if event.get("name") != self.name:
            return False
        if nanoseconds_of(str(event.get("ts")).encode()) != self.start_ns:
            return False
        arguments = event.get("args")
        written = (
            {key.lower(): value for key, value in arguments.items()}
            if isinstance(arguments, dict)
            else {}
        )
        return not any(
            known is not None and key in written and str(written[key]) != str(known)
            for key, known in zip(_IDENTIFIERS, self.identifiers, strict=True)
        )


def _held_by(path: str) -> str | None:
    """The file itself, or the archive whose member it is."""
    try:
        if files.is_file(path):
            return path
        if not files.is_url(path):
            above = (str(one) for one in PurePath(path).parents)
            return next((one for one in above if files.is_file(one)), None)
    except (InputError, OSError, ValueError):
        pass
    return None


def _search(stream: ByteStream, wanted: _Wanted) -> dict[str, Any] | None:
    """The first event that meets what is wanted."""
    needle = str(abs(wanted.start_ns) // 1000).encode()
    window, done, ended = b"", 0, False
    while not ended:
        piece = stream.read(_PIECE)
        ended = not piece
        window += piece
        limit = len(window) if ended else max(len(window) - _REACH, 0)
        for at in _places(window, needle, done, limit):
            found = _event_around(window, at)
            if found is not None and wanted.is_met_by(found):
                return found
        cut = max(limit - _REACH, 0)
        window, done = window[cut:], limit - cut
    return None


def _places(window: bytes, needle: bytes, begin: int, end: int) -> Iterator[int]:
    """Where the digits begin between two places, as a whole number and not within a longer one."""
    at = window.find(needle, begin)
    while 0 <= at < end:
        behind = at + len(needle)
        before = at == 0 or window[at - 1] not in _DIGITS
        if before and (behind >= len(window) or window[behind] not in _DIGITS):
            yield at
        at = window.find(needle, at + 1)


_decoder = json.JSONDecoder(strict=False, parse_float=str)


def _event_around(window: bytes, at: int) -> dict[str, Any] | None:
    """The innermost object around a place that has a time."""
    begin = at
    for _ in range(_MOST_BRACES):
        begin = window.rfind(b"{", max(at - _REACH, 0), begin)
        if begin < 0:
            return None
        text = window[begin : at + _REACH].decode("utf-8", "replace")
        try:
            found, length = _decoder.raw_decode(text)
        except (ValueError, RecursionError):
            continue
        if len(text[:length].encode()) > at - begin and isinstance(found, dict) and "ts" in found:
            return found
    return None


def _bounded(value: Any, depth: int) -> Any:
    """A value with long texts and lists cut; every cut says how much is missing."""
    if isinstance(value, str):
        missing = len(value) - _MOST_CHARACTERS
        return value if missing <= 0 else f"{value[:_MOST_CHARACTERS]}… ({missing:,} more)"
    if isinstance(value, dict | list) and depth == _DEEPEST:
        return f"({len(value):,} items)"
    if isinstance(value, dict):
        kept = dict(list(value.items())[:_MOST_ITEMS])
        made = {str(key)[:_MOST_CHARACTERS]: _bounded(one, depth + 1) for key, one in kept.items()}
        missing = len(value) - len(kept)
        return made | ({"…": f"({missing:,} more)"} if missing else {})
    if isinstance(value, list):
        made_list = [_bounded(one, depth + 1) for one in value[:_MOST_ITEMS]]
        missing = len(value) - _MOST_ITEMS
        return [*made_list, f"… ({missing:,} more)"] if missing > 0 else made_list
    return value
