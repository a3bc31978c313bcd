"""Which events of a chunk need decoding at all, told from a few of their bytes.

Kineto, and most programs that rewrite its files, begin each event on a line of
its own with the same keys: ``{ "ph": "X", "cat": "kernel", "name": ...``. In
such a chunk the starts of all events are found in one pass over the bytes, and
the phase, the category and the beginning of the name stand at fixed places.

Nothing is skipped on a guess. The pieces between the separators cover the chunk
without a rest, so that no event lies outside; a piece is skipped only if its
bytes match a list of what is never wanted; whatever else there is gets decoded.
A chunk that is laid out otherwise is not filtered (``select`` returns None).
What is damaged inside skipped events stays unseen and changes nothing; where bytes were
lost, so that two events became one, that shows in its length or in the zeros there.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.schema import Detail

_LAYOUT = re.compile(rb"(\n(?P<before>[ \t]{0,16}))?\},\r?\n(?P<indent>[ \t]{0,16})\{")
_KEYS = re.compile(rb'\{(\s*"ph": ?")X(",\s*"cat": ?")(?:[^"\\]{3,40})(",\s*"name": ?")', re.DOTALL)
_BACKSLASH = 92
# What is never wanted is short; an event this long may be two, with lost bytes in between.
_LONGEST_SKIPPED = 2 << 10
_HOLE = b"\x00" * 16
_SAMPLE = 256 << 10
_BLOCK = 128 << 10  # of the scan: small enough that its masks stay in the processor's cache

_NEWLINE, _SPACE, _QUOTE, _BRACE, _CLOSE, _COMMA, _COLON = b'\n "{},:'
_EITHER_BRACE = ord("{") | 6  # what both braces become under `| 6`; "y" and DEL do as well
_UNWANTED_PHASES = b"stfibneCISTpFPNODRcVv()"


class Selection(NamedTuple):
    """``events``: JSON texts to decode; ``places``: their places among the chunk's events."""

    events: list[bytes]
    places: npt.NDArray[np.int64]
    num_events: int


class Prefilter:
    """Selects by the level of detail and the beginnings of host operators' names."""

    def __init__(self, detail: Detail, name_prefixes: tuple[str, ...]) -> None:
        self._skip = np.zeros(1 << 16, bool)
        self._by_name = np.zeros(1 << 16, np.int8)  # length of the category, 0: not by name
        unwanted = [b"py", b"ac"]  # python_function, ac2g
        if detail < Detail.LAUNCHES:
            unwanted += [b"cu", b"hi"]  # cuda_runtime, cuda_driver, cuda_sync, hip_runtime
            self._by_name[_pair(b"us")] = len(b"user_annotation")
        self._by_name[_pair(b"cp")] = len(b"cpu_op")
        self._skip[[_pair(letters) for letters in unwanted]] = True
        # cuda_kernel and hip_memcpy, if a writer calls work so, are told by their sixth letter.
        self._of_device = np.zeros(1 << 16, bool)
        self._of_device[[_pair(b"cu"), _pair(b"hi")]] = True
        self._is_work = np.zeros(256, bool)
        self._is_work[list(b"kme")] = True
        pairs = np.arange(1 << 16)
        # A backslash may be the beginning of any letter, escaped.
        self._name_pairs = (pairs >> 8 == _BACKSLASH) | (pairs & 255 == _BACKSLASH)
        for prefix in name_prefixes:
            if len(prefix) < 2:
                self._name_pairs[:] = True
            else:
                self._name_pairs[_pair(prefix.encode()[:2])] = True
        self._skip_phase = np.zeros(256, bool)
        self._skip_phase[list(_UNWANTED_PHASES)] = True

    def select(self, chunk: bytes, length: int) -> Selection | None:
        """The events to decode of ``chunk[:length]`` (from a ``{`` to a ``}``), or None."""
        layout = _LAYOUT.search(chunk, 0, min(_SAMPLE, length))
        keys = _KEYS.search(chunk, 0, min(_SAMPLE, length))
        if not layout or not keys or chunk.find(_HOLE, 0, length) >= 0:
            return None
        text = np.frombuffer(chunk, np.uint8, length)
        pieces = _pieces(chunk, text, layout)
        if pieces is None:
            return None
        starts, ends = pieces
        places = np.flatnonzero(~self._skippable(text, starts, ends, keys))
        pairs = zip(starts[places].tolist(), ends[places].tolist(), strict=True)
        return Selection([chunk[start:end] for start, end in pairs], places, len(starts))

    def _skippable(
        self,
        text: npt.NDArray[np.uint8],
        starts: npt.NDArray[Any],
        ends: npt.NDArray[Any],
        keys: re.Match[bytes],
    ) -> npt.NDArray[np.bool_]:
        before_phase, before_category, before_name = keys.groups()
        phase = 1 + len(before_phase)
        category = phase + 1 + len(before_category)
        skip = np.zeros(len(starts), bool)
        # An event shorter than the places looked at is decoded.
        rows = np.flatnonzero(ends - starts > category + 96)
        rows = rows[_reads(text, starts[rows], 1, before_phase)]
        letters = text[phase:][starts[rows]]
        short = np.flatnonzero(ends - starts > phase + 8)
        skip[short] = self._skip_phase[text[phase:][starts[short]]]
        skip[short] &= _reads(text, starts[short], 1, before_phase + b'\0"')

        rows = rows[letters == ord("X")]
        rows = rows[_reads(text, starts[rows], phase + 1, before_category)]
        at = starts[rows] + category
        kind = _pairs(text, at)
        unwanted = self._skip[kind]
        of_device = np.flatnonzero(self._of_device[kind])
        unwanted[of_device] &= ~self._is_work[text[5:][at[of_device]]]
        unwanted |= (kind == _pair(b"gp")) & (text[4:][at] == ord("u"))
        skip[rows] = unwanted

        named = np.flatnonzero(self._by_name[kind])
        at, length = at[named], self._by_name[kind[named]]
        name = at + length + len(before_name)
        matches = text[at + length] == _QUOTE
        matches &= text[1:][at + length] == _COMMA
        matches &= text[name - 1] == _QUOTE
        matches &= ~self._name_pairs[_pairs(text, name)]
        skip[rows[named]] = matches
        skip &= ends - starts < _LONGEST_SKIPPED
        return skip


def _reads(
    text: npt.NDArray[np.uint8], starts: npt.NDArray[Any], offset: int, expected: bytes
) -> npt.NDArray[np.bool_]:
    """Whether the letters and quotes of ``expected`` stand at ``starts + offset``."""
    same = np.ones(len(starts), bool)
    for place, byte in enumerate(expected, start=offset):
        if byte > _SPACE and byte != _COLON and byte != _COMMA:
            same &= text[place:][starts] == byte
    return same


def _pair(letters: bytes) -> int:
    return letters[0] << 8 | letters[1]


def _pairs(text: npt.NDArray[np.uint8], at: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    pairs: npt.NDArray[np.uint16] = (text[at].astype(np.uint16) << 8) | text[at + 1]
    return pairs


def _pieces(
    chunk: bytes, text: npt.NDArray[np.uint8], layout: re.Match[bytes]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """(starts, ends) of the events, if the layout holds for the whole chunk; else None."""
    indent = len(layout["indent"])
    separator = layout[0][layout[0].index(b"}") :]
    braces = _braces(text, indent)
    opening = text[braces + indent + 1] == _BRACE
    newlines = braces[opening]
    first = newlines - separator.index(b"\n")
    if not len(newlines) or first[0] < 0:
        return None
    if not all(bool((text[first + i] == byte).all()) for i, byte in enumerate(separator)):
        return None
    if layout["before"] == layout["indent"]:
        # Each event ends with a brace on a line of its own, and nothing stands beside that.
        closing = braces[~opening] + indent + 1
        if not np.array_equal(closing, np.append(first, len(text) - 1)):
            return None
    elif chunk.count(b'"ph"', 0, len(text)) != len(newlines) + 1:
        return None  # two events on one line, or something that is no event
    starts = np.concatenate([[0], newlines + indent + 1])
    return starts, np.append(first + 1, len(text))


def _braces(text: npt.NDArray[np.uint8], indent: int) -> npt.NDArray[np.int64]:
    """Newlines that are followed, ``indent`` characters on, by an opening or closing brace."""
    found = []
    reach = indent + 1
    for begin in range(0, len(text) - reach, _BLOCK):
        block = text[begin : begin + _BLOCK + reach]
        both = block[:-reach] == _NEWLINE
        both &= (block[reach:] | 6) == _EITHER_BRACE
        found.append(np.flatnonzero(both) + begin)
    newlines = np.concatenate([np.empty(0, np.int64), *found])
    letters = text[newlines + reach]
    braces: npt.NDArray[np.int64] = newlines[(letters == _BRACE) | (letters == _CLOSE)]
    return braces
