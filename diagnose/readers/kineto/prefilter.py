"""Which events of a chunk need decoding at all, told from a few of their bytes.

Kineto, and most programs that rewrite its files, begin each event on a line of
its own with the same keys: ``{ "ph": "X", "cat": "kernel", "name": ...``. In
such a chunk the starts of all events are found in one pass over the bytes, and
the phase, the category and the beginning of the name stand at fixed places.

Nothing is skipped on a guess. The pieces between the separators cover the chunk
without a rest, so that no event lies outside; a piece is skipped only if its
bytes match a list of what is never wanted; whatever else there is gets decoded.
A chunk that is laid out otherwise is not filtered (``select`` returns None).
What is damaged inside skipped events stays unseen and changes nothing.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.schema import Detail

_LAYOUT = re.compile(rb"(\n(?P<before>[ \t]{0,16}))?\},\r?\n(?P<indent>[ \t]{0,16})\{")
_KEYS = re.compile(rb'\{(\s*"ph": ?")X(",\s*"cat": ?")(?:[^"\\]{3,40})(",\s*"name": ?")', re.DOTALL)
_SAMPLE = 256 << 10
_BLOCK = 128 << 10  # of the scan: small enough that its masks stay in the processor's cache

_NEWLINE, _BRACE, _COMMA = b"\n{,"
_EITHER_BRACE = ord("{") | 6  # of all ASCII letters also DEL and "y", "|", "~" do not: 7B, 7D only
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
        self._name_pairs = np.zeros(1 << 16, bool)
        for prefix in name_prefixes:
            if len(prefix) < 2:
                self._name_pairs[:] = True
            else:
                self._name_pairs[_pair(prefix.encode()[:2])] = True
        self.usable = detail < Detail.ALL

    def select(self, chunk: bytes) -> Selection | None:
        """The events of ``chunk`` (whole events, from ``{`` to ``}``) to decode, or None."""
        layout = _LAYOUT.search(chunk, 0, _SAMPLE)
        keys = _KEYS.search(chunk, 0, _SAMPLE)
        if not layout or not keys:
            return None
        text = np.frombuffer(chunk, np.uint8)
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
        # An event shorter than these offsets reach is decoded.
        long = np.flatnonzero(ends - starts > category + 96)
        short = np.flatnonzero(ends - starts > phase + 8)
        at = starts[short]
        letter = text[at + phase]
        has_phase = (text[at + phase - 1] == 34) & (text[at + phase + 1] == 34)
        for offset, byte in ((before_phase.index(b"p"), 112), (before_phase.index(b"h"), 104)):
            has_phase &= text[at + 1 + offset] == byte
        unwanted = np.zeros(256, bool)
        unwanted[list(_UNWANTED_PHASES)] = True
        skip[short] = has_phase & unwanted[letter]

        at = starts[long]
        usual = text[at + phase] == ord("X")
        for offset, byte in enumerate(before_phase + b"X" + before_category, start=1):
            if byte in b'"phca':
                usual &= text[at + offset] == byte
        kind = _pairs(text, at + category)
        unwanted_kind = self._skip[kind]
        unwanted_kind |= (kind == _pair(b"gp")) & (text[at + category + 4] == ord("u"))
        length = self._by_name[kind]
        name = at + category + length + len(before_name)
        by_name = (length > 0) & (text[at + category + length] == 34) & (text[name - 1] == 34)
        by_name &= text[at + category + length + 1] == _COMMA
        by_name &= ~self._name_pairs[_pairs(text, name)]
        by_name &= (text[name] != 92) & (text[name + 1] != 92)  # no escape hides the letters
        skip[long] |= usual & (unwanted_kind | by_name)
        return skip


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
    elif chunk.count(b'"ph"') != len(newlines) + 1:
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
    return np.concatenate(found) if found else np.empty(0, np.int64)
