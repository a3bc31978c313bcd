"""What a person sees, as an address: recording, page, stretch of time, selection.

The address is the only state of the dashboard, so any view can be sent to a
colleague, and the browser's back button undoes a zoom. A parameter that makes no
sense is left out: an address was typed, shortened or made for another recording.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode

_MOST_LANES = 512
_MOST_CHARACTERS = 200
_TABLES = ("gpu_ops", "host_ops", "launches")
THEMES = ("light", "dark")
ALL = "all"
_NONE = "-"


@dataclass(frozen=True)
class Selected:
    """One operation: a row of a table of the trace."""

    table: str
    row: int

    def __str__(self) -> str:
        return f"{self.table}:{self.row}"


@dataclass(frozen=True, kw_only=True)
class Address:
    """Times are nanoseconds since the first event of the recording; None: all of it."""

    page: str = ""
    recording: str | None = None
    other: str | None = None
    """The recording to compare with."""
    start_ns: int | None = None
    end_ns: int | None = None
    open: tuple[str, ...] | None = None
    """Keys of the lanes that are unfolded, ``ALL`` for every one; None: as many as fit."""
    top: str | None = None
    """The key of the first lane in sight where not all are drawn at once."""
    ruler: tuple[int, ...] = ()
    """One or both ends of what is measured, in nanoseconds."""
    selected: Selected | None = None
    find: str = ""
    theme: str | None = None
    """None: as the browser prefers."""

    @property
    def search(self) -> str:
        """The part of the address after the path, with its question mark."""
        given = {
            "recording": self.recording,
            "with": self.other,
            "from": self.start_ns,
            "to": self.end_ns,
            "open": None if self.open is None else ",".join(self.open) or _NONE,
            "top": self.top,
            "ruler": ",".join(map(str, self.ruler)) or None,
            "select": self.selected,
            "find": self.find or None,
            "theme": self.theme,
        }
        known = {key: str(value) for key, value in given.items() if value is not None}
        return f"?{urlencode(known, safe=':,')}" if known else ""

    @property
    def href(self) -> str:
        return f"/{self.page}{self.search}"

    def to(self, page: str) -> Address:
        """The same recording, time and selection on another page."""
        return dataclasses.replace(self, page=page)

    def at(self, start_ns: int | None, end_ns: int | None) -> Address:
        """The same view of another stretch of time."""
        return dataclasses.replace(self, start_ns=start_ns, end_ns=end_ns)

    def replace(self, **changes: object) -> Address:
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def parse(path: str | None, search: str | None) -> Address:
    """The address of a path and what follows its question mark."""
    given = {key: values[-1] for key, values in parse_qs((search or "").lstrip("?")).items()}
    start, end = _time(given.get("from")), _time(given.get("to"))
    if start is None or end is None or start >= end:
        start = end = None
    theme = given.get("theme")
    opened = given.get("open")
    return Address(
        page=(path or "").strip("/"),
        recording=given.get("recording"),
        other=given.get("with"),
        start_ns=start,
        end_ns=end,
        open=None if opened is None else _keys(opened),
        top=given.get("top"),
        ruler=_ruler(given.get("ruler", "")),
        selected=_selected(given.get("select", "")),
        find=given.get("find", "")[:_MOST_CHARACTERS],
        theme=theme if theme in THEMES else None,
    )


def _time(text: str | None) -> int | None:
    try:
        value = int(text or "")
    except ValueError:
        return None
    return value if abs(value) < 2**62 else None


def _keys(text: str) -> tuple[str, ...]:
    return () if text == _NONE else tuple(text.split(",")[:_MOST_LANES])


def _ruler(text: str) -> tuple[int, ...]:
    ends = [_time(one) for one in text.split(",")]
    known = [one for one in ends if one is not None]
    return tuple(sorted(known)) if len(known) == len(ends) <= 2 else ()


def _selected(text: str) -> Selected | None:
    table, _, row = text.partition(":")
    if table not in _TABLES or not row.isdecimal() or len(row) > len("9223372036854775807"):
        return None
    return Selected(table, int(row))
