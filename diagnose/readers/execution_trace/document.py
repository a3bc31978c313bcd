"""The JSON of an execution trace: its operators, decoded one at a time.

Versions 1.0.x to 1.1.x of the format. Those before 1.0.3 have the attributes of an
operator beside its name and flat lists of inputs; those before 1.1.0 have no strides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw

# Python refuses integers of thousands of digits with a ValueError of its own.
UNDECODABLE = (msgspec.DecodeError, ValueError, RecursionError)

# Written by older versions for floats that JSON has no word for.
_NO_NUMBER = re.compile(rb"(?<=[\[,: ])-?(?:inf|nan|Infinity|NaN)(?=[,\]} ])")


class UnreadableError(Exception):
    """Why a file cannot be used, as the middle of a sentence."""


class _Document(msgspec.Struct, gc=False):
    nodes: list[Raw]
    pid: Any = None


class _Attribute(msgspec.Struct, gc=False):
    name: str = ""
    value: Any = None


class _Node(msgspec.Struct, gc=False):
    name: str
    id: Any = 0
    ctrl_deps: Any = None
    parent: Any = None
    inputs: Any = None
    outputs: Any = None
    attrs: list[_Attribute] = []
    rf_id: Any = 0
    scope: Any = 0
    op_schema: Any = ""
    input_shapes: Any = None
    output_shapes: Any = None


@dataclass(frozen=True)
class Values:
    """Inputs or outputs of an operator: lists of equal nesting; None: not written."""

    values: list[Any] = field(default_factory=list)
    shapes: list[Any] | None = None
    strides: list[Any] | None = None


@dataclass(frozen=True)
class Node:
    """One operator or annotation. ``function_id`` 0: none; ``schema`` "": none."""

    name: str
    identity: object
    parent: object
    function_id: int
    scope: int
    schema: str
    inputs: Values
    outputs: Values


def nodes_of(data: bytes) -> tuple[str | None, Iterator[Node | None]]:
    """The process id as text (None: not said), and the nodes in file order, None where damaged.

    Raises UnreadableError if the whole is not an execution trace.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise UnreadableError("empty")
    decode = msgspec.json.Decoder(_Document).decode
    try:
        try:
            document = decode(data)
        except msgspec.ValidationError:
            raise UnreadableError('not an execution trace (no list "nodes")') from None
        except UNDECODABLE:
            document = decode(_NO_NUMBER.sub(b"null", data))
    except UNDECODABLE as error:
        raise UnreadableError(f"damaged or cut off ({str(error)[:120]})") from None
    pid = _whole(document.pid)
    return (str(pid) if pid > 0 else None), _nodes(document.nodes)


def _nodes(texts: list[Raw]) -> Iterator[Node | None]:
    decode = msgspec.json.Decoder(_Node).decode
    for text in texts:
        try:
            node = decode(text)
        except UNDECODABLE:
            yield None
            continue
        attributes = {attribute.name: attribute.value for attribute in node.attrs}
        schema = attributes.get("op_schema", node.op_schema)
        yield Node(
            node.name,
            node.id,
            node.parent if node.ctrl_deps is None else node.ctrl_deps,
            _whole(attributes.get("rf_id", node.rf_id)),
            _whole(attributes.get("scope", node.scope)),
            schema if isinstance(schema, str) else "",
            _values(node.inputs, node.input_shapes),
            _values(node.outputs, node.output_shapes),
        )


def _values(written: Any, shapes: Any) -> Values:
    strides = None
    if isinstance(written, dict):
        shapes, strides = written.get("shapes"), written.get("strides")
        written = written.get("values")
    if not isinstance(written, list):
        return Values()
    return Values(
        written,
        shapes if isinstance(shapes, list) else None,
        strides if isinstance(strides, list) else None,
    )


def _whole(value: Any) -> int:
    """An id as int64; 0 for what is none."""
    return value if type(value) is int and 0 <= value < 1 << 63 else 0
