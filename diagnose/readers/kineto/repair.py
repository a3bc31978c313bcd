"""Text of one damaged JSON value to legal JSON that says the same.

Each repair is the least one: text stays legible, bytes that are lost become
U+FFFD, a number that is not finite becomes null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

# Matching a string with many escapes takes a hundred times its memory.
LARGEST_REPAIR = 1 << 20

# A quote that is not followed by what may follow a string is part of the string.
_INNER_QUOTE = r'"(?!\s*(?:[,:}\]]|$))'
_PARTS = tuple(
    re.compile(pattern + r'|[^"]+', re.DOTALL)
    for pattern in (
        r'"[^"\\]*(?:\\.[^"\\]*)*"',
        rf'"(?:[^"\\]|\\.|{_INNER_QUOTE})*"',
        rf'"(?:[^"]|{_INNER_QUOTE})*"',  # backslashes are plain: a path that ends in one
    )
)

_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|(?:.|$))', re.DOTALL)
_PAIR_OR_LONE_SURROGATE = re.compile(
    r"\\\\|(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_BACKSLASH = re.compile(r'\\(["\\])|\\', re.DOTALL)
_QUOTE = re.compile(r'\\.|"', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")
_NOT_FINITE = re.compile(
    r"(?<![\w.])[+-]?(?:nan(?:\([^()]{0,40}\))?|inf(?:inity)?|1\.#\w+)(?![\w.])", re.IGNORECASE
)
_BLANK = re.compile(r"[^\S \t\n\r]")  # blank, but not to JSON: form feeds, unbreakable spaces
_WORD = re.compile(r"(?<=:)[^\s,:{}\[\]]+|(?<=:\s)[^\s,:{}\[\]]+")
_LEGAL = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null", re.ASCII)
_NO_VALUE = re.compile(r":(?=\s*[,}\]])")
_COMMA = re.compile(r",\s*(?=[,}\]])|(?<=[{\[])\s*,")


class Repaired(NamedTuple):
    """One attempt. ``text_changed``: anything but numbers that are not finite."""

    text: bytes
    text_changed: bool
    not_finite: int


def repairs(damaged: bytes) -> Iterator[Repaired]:
    """Attempts to make JSON of ``damaged``, the most faithful first; none may succeed."""
    try:
        text, lossy = damaged.decode(), False
    except UnicodeDecodeError:
        text, lossy = damaged.decode("utf-8", "replace"), True
    for attempt, parts in enumerate(_PARTS):
        made, changed, not_finite = [], lossy, 0
        for part in parts.findall(text):
            if part[0] == '"':
                fixed = '"' + _string(part[1:-1], plain=attempt == 2) + '"'
                changed |= fixed != part
            else:
                finite, count = _NOT_FINITE.subn("null", part)
                not_finite += count
                fixed = _between_strings(finite)
                changed |= fixed != finite
            made.append(fixed)
        yield Repaired("".join(made).encode("utf-8", "replace"), changed, not_finite)


def _string(body: str, *, plain: bool) -> str:
    if "\\" in body:
        if plain:
            body = body.replace("\\", "\\\\")
        elif any(found[1] is None for found in _ESCAPE.finditer(body)):
            # One illegal escape tells that nobody escaped this text: `\n` in it is no newline.
            body = _BACKSLASH.sub(lambda found: found[0] if found[1] else "\\\\", body)
        else:
            body = _PAIR_OR_LONE_SURROGATE.sub(
                lambda found: "\\ufffd" if found[2] else found[0], body
            )
    if '"' in body:
        body = _QUOTE.sub(lambda found: '\\"' if found[0] == '"' else found[0], body)
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", body)


def _between_strings(part: str) -> str:
    part = _BLANK.sub(" ", part)
    part = _CONTROL.sub(lambda found: found[0] if found[0] in "\t\n\r" else "", part)
    part = _WORD.sub(_value, part)
    return _COMMA.sub("", _NO_VALUE.sub(": null", part))


def _value(found: re.Match[str]) -> str:
    """A bare word that JSON does not know (None, 0x10, +5) as text, for who reads the field."""
    word = found[0]
    return word if _LEGAL.fullmatch(word) else json.dumps(word)
