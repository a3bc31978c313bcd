"""JSON text of events to typed objects.

Strict decoding is fast and fails on any value of an unexpected type; such an
event is then decoded leniently, field by field. Times stay text (``Raw``): see
``timestamps``.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
from msgspec import Raw, field

from diagnose.schema import NULL

ABSENT = Raw(b"")

# Python refuses integers of thousands of digits with a ValueError of its own.
UNDECODABLE = (msgspec.DecodeError, ValueError, RecursionError)

# Every phase of the Chrome trace format. A Literal is decoded without a new string per event.
Phase = Literal[
    "X", "B", "E", "M", "s", "t", "f", "i", "I", "C", "b", "n", "e", "S", "T", "p", "F", "P",
    "N", "O", "D", "R", "c", "V", "v", "(", ")", "a", "",
]  # fmt: skip


class Args(msgspec.Struct, gc=False):
    """What is read of an event's ``args``; the order of Kineto's kernels makes lookup fast."""

    external: int = field(name="External id", default=NULL)
    device: int = NULL
    stream: int = NULL
    correlation: int = NULL
    grid: Raw = ABSENT
    block: Raw = ABSENT
    graph_node: int = field(name="graph node id", default=NULL)
    collective: str | None = field(name="Collective name", default=None)
    in_elements: int = field(name="In msg nelems", default=NULL)
    out_elements: int = field(name="Out msg nelems", default=NULL)
    group_size: int = field(name="Group size", default=NULL)
    dtype: str | None = None
    group: str | None = field(name="Process Group Name", default=None)
    group_ranks: Raw = field(name="Process Group Ranks", default=ABSENT)
    collective_sequence: int = field(name="Seq", default=NULL)
    source_rank: int = field(name="Src Rank", default=NULL)
    destination_rank: int = field(name="Dst Rank", default=NULL)
    in_addresses: Raw = field(name="Input Tensors start", default=ABSENT)
    out_addresses: Raw = field(name="Output Tensors start", default=ABSENT)
    bytes: int = NULL
    from_device: int = field(name="fromDevice", default=NULL)
    in_device: int = field(name="inDevice", default=NULL)
    to_device: int = field(name="toDevice", default=NULL)
    sync_kind: str | None = field(name="cuda_sync_kind", default=None)
    wait_stream: int = field(name="wait_on_stream", default=NULL)
    wait_correlation: int = field(name="wait_on_cuda_event_record_corr_id", default=NULL)
    wait_event: int = field(name="wait_on_cuda_event_id", default=NULL)
    sequence: int = field(name="Sequence number", default=NULL)
    shapes: Raw = field(name="Input Dims", default=ABSENT)
    shapes_old: Raw = field(name="Input dims", default=ABSENT)
    external_old: int = field(name="external id", default=NULL)
    external_title: int = field(name="External Id", default=NULL)
    name: Raw = ABSENT
    labels: Raw = ABSENT
    function: int = field(name="Record function id", default=NULL)


class Event(msgspec.Struct, gc=False):
    """One entry of ``traceEvents``."""

    ph: Phase = ""
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: Raw = ABSENT
    dur: Raw = ABSENT
    args: Args | None = None


NO_ARGS = Args()

decode_events = msgspec.json.Decoder(list[Event]).decode
_decode_event = msgspec.json.Decoder(Event).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode

_WHOLE = re.compile(rb'"?\s*([+-]?\d{1,40})(?:\.0*)?\s*"?')
_PHASES = frozenset(Phase.__args__)  # type: ignore[attr-defined]
_INTEGERS, _TEXTS, _RAWS = (
    {
        f.encode_name: f.name
        for f in msgspec.structs.fields(Args)
        if f.type is kind or f.type == other
    }
    for kind, other in ((int, int), (str | None, str | None), (Raw, Raw))
)


def decode_event(text: bytes | memoryview) -> tuple[Event, int]:
    """One event, and how many of its values are unreadable and count as unknown.

    Raises one of ``UNDECODABLE`` unless ``text`` is one legal JSON object.
    """
    try:
        return _decode_event(text), 0
    except (msgspec.ValidationError, ValueError):
        str(text, "utf-8")  # what is no text is for repair, not for leniency
        return _lenient(text)


def is_event(text: bytes | memoryview) -> bool:
    """Whether ``text`` is one JSON object with a phase, legal as it stands."""
    try:
        return bool(decode_event(text)[0].ph)
    except UNDECODABLE:
        return False


def _lenient(text: bytes | memoryview) -> tuple[Event, int]:
    fields = {key: bytes(value) for key, value in _decode_fields(text).items()}
    unreadable = 0
    phase = _text(fields.get("ph"))
    args = None
    if fields.get("args", b"")[:1] == b"{":
        args, unreadable = _lenient_args(fields["args"])
    return (
        Event(
            ph=phase if phase in _PHASES else "",  # type: ignore[arg-type]
            cat=_text(fields.get("cat")),
            name=_text(fields.get("name")),
            pid=_identity(fields.get("pid")),
            tid=_identity(fields.get("tid")),
            ts=Raw(fields.get("ts", b"")),
            dur=Raw(fields.get("dur", b"")),
            args=args,
        ),
        unreadable,
    )


def _lenient_args(text: bytes) -> tuple[Args, int]:
    values: dict[str, Any] = {}
    unreadable = 0
    for key, raw in _decode_fields(text).items():
        value = bytes(raw)
        if key in _INTEGERS:
            whole = _WHOLE.fullmatch(value)
            if whole:
                values[_INTEGERS[key]] = int(whole[1])
            else:
                unreadable += value != b"null"
        elif key in _TEXTS:
            values[_TEXTS[key]] = None if value == b"null" else _text(value)
        elif key in _RAWS:
            values[_RAWS[key]] = Raw(value)
    return Args(**values), unreadable


def text_of(value: bytes) -> str:
    """A JSON value as text: strings without their quotes, others as written."""
    if value[:1] != b'"':
        return value.decode("utf-8", "replace")
    try:
        return str(msgspec.json.decode(value))
    except UNDECODABLE:
        return value[1:-1].decode("utf-8", "replace")


def _text(value: bytes | None) -> str:
    return "" if value is None or value == b"null" else text_of(value)


def _identity(value: bytes | None) -> int | str:
    if value is None:
        return ""
    whole = _WHOLE.fullmatch(value) if value[:1] != b'"' else None
    return int(whole[1]) if whole else _text(value)
