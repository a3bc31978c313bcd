"""Small traces as text, in the layouts that real writers use."""

from __future__ import annotations

import io
import json
import re
from typing import Any

from diagnose.readers.kineto.reader import KinetoReader
from diagnose.readers.raw import GROUPS, RawFile, ReadOptions
from diagnose.schema import Detail

PREFIXES = ("record_param_comms", "symm_mem::")
_NAMES = "process name launch_shape thread category shapes sync_kind dtype group group_ranks"
_ADDRESSES = ("in_addresses", "out_addresses")
TEXT_COLUMNS = frozenset((*_NAMES.split(), *_ADDRESSES))


def literal(text: str) -> str:
    """A value that ``dumps`` writes as these characters, without quotes: digits stay as given."""
    return f"@{text}@"


def dumps(value: Any, **options: Any) -> str:
    return re.sub(r'"@([^"@]*)@"', r"\1", json.dumps(value, **options))


def kernel(number: int, start: str = "", duration: str = "10.000", **args: Any) -> dict[str, Any]:
    """Kernel ``number`` on stream 7, at 100 us times its number unless told otherwise."""
    return {
        "ph": "X",
        "cat": "kernel",
        "name": f"kernel_{number}",
        "pid": 0,
        "tid": 7,
        "ts": literal(start or f"{5277830926000 + 100 * number}.125"),
        "dur": literal(duration),
        "args": {"External id": 10 + number, "device": 0, "stream": 7, "correlation": number}
        | args,
    }


def operator(number: int, name: str = "aten::mm", category: str = "cpu_op") -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 42,
        "tid": 43,
        "ts": literal(f"{5277830926000 + 100 * number}.001"),
        "dur": literal("5.250"),
        "args": {"External id": 10 + number, "Sequence number": number, "Input Dims": [[4, 8], []]},
    }


def call(number: int, category: str = "cuda_runtime") -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": "cudaLaunchKernel",
        "pid": 42,
        "tid": 43,
        "ts": literal(f"{5277830926001 + 100 * number}.000"),
        "dur": literal("3.000"),
        "args": {"External id": 10 + number, "cbid": 211, "correlation": number},
    }


def flow(number: int, phase: str = "s") -> dict[str, Any]:
    return {
        "ph": phase,
        "id": number,
        "pid": 42,
        "tid": 43,
        "ts": literal(f"{5277830926001 + 100 * number}.000"),
        "cat": "ac2g",
        "name": "ac2g",
    }


def process(pid: int, labels: str) -> list[dict[str, Any]]:
    start = literal("5277830926000.000")
    return [
        {"name": "process_name", "ph": "M", "ts": start, "pid": pid, "tid": 0}
        | {"args": {"name": "python3"}},
        {"name": "process_labels", "ph": "M", "ts": start, "pid": pid, "tid": 0}
        | {"args": {"labels": labels}},
    ]


def as_kineto(events: list[dict[str, Any]], head: dict[str, Any] | None = None) -> bytes:
    """Kineto's own layout: two spaces, phase and category on the first line of an event."""
    written = []
    for event in events:
        lines: list[str] = []
        line: list[str] = []
        for key, value in event.items():
            if key in ("ts", "args") and line:
                lines.append(", ".join(line))
                line = []
            shown = dumps(value)
            if isinstance(value, dict):
                shown = "{\n      " + shown[1:-1] + "\n    }"
            line.append(f'"{key}": {shown}')
        lines.append(", ".join(line))
        written.append("{\n    " + ",\n    ".join(lines) + "\n  }")
    top = "".join(f"  {dumps(key)}: {dumps(value)},\n" for key, value in (head or {}).items())
    body = ",\n  ".join(written)
    return f'{{\n{top}  "traceEvents": [\n  {body}\n  ],\n  "traceName": "a.json"\n}}\n'.encode()


def layouts(events: list[dict[str, Any]]) -> dict[str, bytes]:
    """The same events in every layout; all objects end with the same metadata."""
    document = {"traceEvents": events, "traceName": "a.json"}
    reversed_keys = [dict(reversed(event.items())) for event in events]
    lines = b",\n  ".join(dumps(event).encode() for event in events)
    return {
        "kineto": as_kineto(events),
        "compact": dumps(document, separators=(",", ":")).encode(),
        "indent 2": dumps(document, indent=2).encode(),
        "indent 0": dumps(document, indent=0).encode(),
        "other key order": dumps(
            {"traceName": "a.json", "traceEvents": reversed_keys}, indent=1
        ).encode(),
        "an event a line": b'{"traceEvents": [\n  ' + lines + b'\n], "traceName": "a.json"}',
        "windows line ends": as_kineto(events).replace(b"\n", b"\r\n"),
    }


def read(
    text: bytes,
    detail: Detail = Detail.ALL,
    chunk_bytes: int = 4 << 20,
    *,
    prefilter: bool = True,
) -> RawFile:
    reader = KinetoReader(chunk_bytes, prefilter=prefilter)
    return reader.read(io.BytesIO(text), "a.json", ReadOptions(detail, PREFIXES))


def table(raw: RawFile, group: str) -> dict[str, list[Any]]:
    """A group's columns as lists, texts decoded."""
    return {
        name: [raw.strings[code] if code >= 0 else None for code in column.tolist()]
        if name in TEXT_COLUMNS
        else column.tolist()
        for name, column in getattr(raw, group).items()
    }


def content(raw: RawFile) -> dict[str, Any]:
    """Everything a file says, in a form that two readings can be compared by."""
    found: dict[str, Any] = {group: table(raw, group) for group in GROUPS}
    found["metadata"], found["processes"] = raw.metadata, raw.process_names
    found["num_events"], found["complete"] = raw.num_events, raw.complete
    found["notes"] = [(note.code, note.count) for note in raw.notes]
    return found


def codes(raw: RawFile) -> dict[str, int]:
    return {note.code: note.count for note in raw.notes}
