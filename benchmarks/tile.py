"""Makes a big trace by repeating a real one in time.

Copy k is the original with k periods added to every time stamp and fresh
correlation, external, flow and event ids; metadata is written once and the text
keeps Kineto's layout byte for byte, so reading it costs what a real file of that
size costs. Time is whole nanoseconds: every sum of n copies is exactly n times
that of one. The original's steps are replaced by a few long ones, because big real
traces have few long steps and some readers slow down with their number.

    python -m benchmarks.tile IN.json.gz OUT.json.gz --mib 1024
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

GAP_NS = 50_000
BIG_ID = 1 << 52
"""Ids from here on are constants such as "no id", not counters: they stay."""

_FIELD = re.compile(
    rb'"ts": ?(?P<time>\d+(?:\.\d+)?)'
    rb'|"(?:correlation|Record function id|wait_on_cuda_event_id'
    rb'|wait_on_cuda_event_record_corr_id)": ?(?P<correlation>\d+)'
    rb'|"External id": ?(?P<external>\d+)'
    rb'|"id": ?(?P<flow>\d+)'
    rb'|"Ev Idx": ?(?P<event>\d+)'
)
_TIME = re.compile(rb'"ts": ?(\d+(?:\.\d+)?)')
_DURATION = re.compile(rb'"dur": ?(\d+(?:\.\d+)?)')
_STEP = re.compile(rb'"name": ?"ProfilerStep#\d+"')
_CATEGORY = re.compile(rb'"cat": ?"([^"]*)"')
_METADATA = re.compile(rb'"ph": ?"M"')


class _Field(NamedTuple):
    kind: str
    value: int
    fractional: bool


@dataclass
class _Template:
    """The events of one copy: ``literals[i]``, then ``fields[i]``, ... then ``tail``."""

    literals: list[bytes] = field(default_factory=list)
    fields: list[_Field] = field(default_factory=list)
    tail: bytes = b""
    num_events: int = 0
    num_bytes: int = 0
    start_ns: int | None = None
    end_ns: int = 0
    increments: dict[str, int] = field(default_factory=dict)

    def add(self, event: bytes) -> None:
        literal = self.tail + (b",\n  " if self.num_events else b"")
        position = 0
        for match in _FIELD.finditer(event):
            kind = match.lastgroup or ""
            text = match.group(kind)
            literal += event[position : match.start(kind)]
            position = match.end(kind)
            if kind == "time":
                value = _nanoseconds(text)
                self._cover(value, event)
            else:
                value = int(text)
                if value < BIG_ID:
                    self.increments[kind] = max(self.increments.get(kind, 0), value + 1)
            self.literals.append(literal)
            self.fields.append(_Field(kind, value, b"." in text))
            literal = b""
        self.tail = literal + event[position:]
        self.num_events += 1
        self.num_bytes += len(event) + 4

    def _cover(self, start: int, event: bytes) -> None:
        duration = _DURATION.search(event)
        end = start + (_nanoseconds(duration.group(1)) if duration else 0)
        self.start_ns = start if self.start_ns is None else min(self.start_ns, start)
        self.end_ns = max(self.end_ns, end)

    def copy(self, number: int, period_ns: int) -> bytes:
        parts = []
        for literal, (kind, value, fractional) in zip(self.literals, self.fields, strict=True):
            parts.append(literal)
            if kind == "time":
                parts.append(_microseconds(value + number * period_ns, fractional))
            elif value == 0 or value >= BIG_ID:
                parts.append(b"%d" % value)
            else:
                parts.append(b"%d" % (value + number * self.increments[kind]))
        parts.append(self.tail)
        return b"".join(parts)


def _nanoseconds(text: bytes) -> int:
    whole, _, fraction = text.partition(b".")
    if len(fraction) > 3:
        raise SystemExit(f"error: {text.decode()} us is finer than a nanosecond")
    return int(whole) * 1000 + int(fraction.ljust(3, b"0"))


def _microseconds(nanoseconds: int, fractional: bool) -> bytes:
    return b"%d.%03d" % divmod(nanoseconds, 1000) if fractional else b"%d" % (nanoseconds // 1000)


def _split(text: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Header, the text of each event, footer."""
    opening = re.search(rb'"traceEvents": ?\[\s*', text)
    if opening is None:
        raise SystemExit("error: the original holds no traceEvents")
    events = re.split(rb",\s*\n\s{0,4}(?=\{\s*\n)", text[opening.end() :])
    closing = re.search(rb'\}\s*\]\s*(,\s*"[A-Za-z]|\})', events[-1])
    if closing is None or len(events) != len(json.loads(text)["traceEvents"]):
        raise SystemExit("error: the original is not in the layout that Kineto writes")
    footer = events[-1][closing.start() + 1 :]
    events[-1] = events[-1][: closing.start() + 1]
    return text[: opening.end()], events, footer


def _long_step(mark: bytes, number: int, start_ns: int, end_ns: int) -> bytes:
    time = _TIME.search(mark)
    fractional = time is not None and b"." in time.group(1)
    mark = _STEP.sub(b'"name": "ProfilerStep#%d"' % number, mark)
    mark = re.sub(rb'"ts": ?[\d.]+', b'"ts": ' + _microseconds(start_ns, fractional), mark)
    length = _microseconds(end_ns - start_ns, fractional)
    return re.sub(rb'"dur": ?[\d.]+', b'"dur": ' + length, mark)


@dataclass(frozen=True)
class Tiled:
    """What was written: copies, events in the file and bytes of text before compression."""

    num_copies: int
    num_events: int
    num_bytes: int
    period_ns: int


def tile(
    original: Path,
    target: Path,
    *,
    copies: int | None = None,
    mib: float | None = None,
    steps: int = 4,
) -> Tiled:
    """Write ``copies`` copies of ``original``, or as many as make ``mib`` MiB of text.

    ``steps`` long steps replace the original's; 0 keeps the original's, repeated.
    """
    opener = gzip.open if original.suffix == ".gz" else open
    with opener(original, "rb") as file:
        header, events, footer = _split(file.read())
    once: list[bytes] = []
    template, marks = _Template(), dict[bytes, bytes]()
    for event in events:
        if _METADATA.search(event):
            once.append(event)
        elif steps and _STEP.search(event):
            category = _CATEGORY.search(event)
            marks.setdefault(category.group(1) if category else b"", event)
        else:
            template.add(event)
    if template.start_ns is None:
        raise SystemExit("error: the original holds no event with a time")
    if copies is None:
        copies = max(1, round((mib or 1) * 2**20 / template.num_bytes))
    # Whole microseconds, so that time stamps written without a fraction stay exact.
    period_ns = -(-(template.end_ns - template.start_ns + GAP_NS) // 1000) * 1000
    begin = template.start_ns

    def pieces() -> Iterator[bytes]:
        yield header + b"".join(event + b",\n  " for event in once)
        for number in range(copies):
            yield (b",\n  " if number else b"") + template.copy(number, period_ns)
        for mark in marks.values():
            for number in range(steps):
                start = begin + period_ns * (copies * number // steps)
                end = begin + period_ns * (copies * (number + 1) // steps)
                yield b",\n  " + _long_step(mark, 10 + number, start, end)
        yield footer

    target_opener = gzip.open if target.suffix == ".gz" else open
    num_bytes = 0
    with target_opener(target, "wb") as out:
        for piece in pieces():
            num_bytes += out.write(piece)
    num_events = len(once) + copies * template.num_events + len(marks) * steps
    return Tiled(copies, num_events, num_bytes, period_ns)


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description="Repeat a trace in time to make a big one.")
    parser.add_argument("original", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--mib", type=float, default=1024, help="MiB of text (default 1024)")
    parser.add_argument("--steps", type=int, default=4, help="long steps; 0 repeats the original's")
    options = parser.parse_args()
    print(tile(options.original, options.target, mib=options.mib, steps=options.steps))


if __name__ == "__main__":
    main()
