"""From the tensors of operators to columns: which bytes of which storage, and what is done to them.

A tensor is written as [tensor id, storage id, offset, elements, bytes an element, device]
with the offset in elements. Views of several dimensions touch less than the range
that they span: see ``span``.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from diagnose.readers.execution_trace.document import Node, Values
from diagnose.readers.execution_trace.operator_schema import NEW, READS, WRITES, Modes, modes
from diagnose.readers.raw import ACCESSES, EXECUTION_NODES, Columns, ExecutionTrace

_LARGEST = 1 << 62
_DEEPEST = 4
_PLAIN_FUNCTION = 0  # scope of a RecordFunction; autograd's nodes and annotations have others
# Known to launch nothing themselves, or told apart by name elsewhere.
_KNOWN = re.compile(
    r"record_param_comms$|c10d::|nccl:|ProfilerStep|Optimizer\.|diagnose: |## |autograd::"
    r"|torch::autograd::|torch::distributed::|torch\.distributed\.|detach$"
)

Key = tuple[int, int, int, int, bool, str]


class AccessBuilder:
    """Takes nodes in any order. ``num_unreadable``: tensors that cannot be."""

    def __init__(self) -> None:
        self.num_unreadable = 0
        self._nodes = {name: array("q") for name in EXECUTION_NODES}
        self._accesses = {name: array("q") for name in ACCESSES}
        self._codes: dict[str, int] = {}
        self._parents: set[object] = set()
        self._suspects: list[tuple[int, object]] = []
        """Operators without schema that have tensors of a device: their place and id."""

    def add(self, node: Node) -> None:
        """Append one operator and its tensors."""
        place = len(self._nodes["name"])
        done = modes(node.name, node.schema)
        touched = self._touched(node, done)
        self._nodes["function_id"].append(node.function_id)
        self._nodes["name"].append(self._code(node.name))
        self._nodes["unexplained"].append(0)
        if isinstance(node.parent, int):
            self._parents.add(node.parent)
        if not done.known and node.scope == _PLAIN_FUNCTION and not _KNOWN.match(node.name):
            self._suspects += [(place, node.identity)] * any(key[-1] != "cpu" for key in touched)
        columns = self._accesses
        for (tensor, storage, begin, end, dense, device), bits in touched.items():
            columns["node"].append(place)
            columns["tensor"].append(tensor)
            columns["storage"].append(storage)
            columns["device"].append(self._code(device))
            columns["begin"].append(begin)
            columns["end"].append(end)
            columns["dense"].append(dense)
            columns["reads"].append(bool(bits & READS))
            columns["writes"].append(bool(bits & WRITES))
            columns["new"].append(bool(bits & NEW))

    def take(self, path: str, process: str | None) -> ExecutionTrace:
        """All that was added."""
        for place, identity in self._suspects:
            # What runs within an operator explains it; ids of lists and the like are no ids.
            within = isinstance(identity, int) and identity in self._parents
            self._nodes["unexplained"][place] = not within
        return ExecutionTrace(
            path,
            process,
            list(self._codes),
            _columns(self._nodes, EXECUTION_NODES),
            _columns(self._accesses, ACCESSES),
        )

    def _code(self, text: str) -> int:
        return self._codes.setdefault(text, len(self._codes))

    def _touched(self, node: Node, done: Modes) -> dict[Key, int]:
        """Tensor -> what is done to it; the same tensor given twice is one."""
        found: dict[Key, int] = {}
        given: set[tuple[int, str]] = set()
        for place, key in self._keys(node.inputs):
            given.add((key[1], key[-1]))
            bits = done.of_input(place)
            if bits:
                found[key] = found.get(key, 0) | bits
        for place, key in self._keys(node.outputs):
            bits = done.of_output(place)
            if bits & NEW and (key[1], key[-1]) in given:
                # In memory of an input, which lives on: a view that the schema does not tell of.
                bits = 0 if done.known else bits & ~NEW
            if bits:
                found[key] = found.get(key, 0) | bits
        return found

    def _keys(self, listed: Values) -> Iterator[tuple[int, Key]]:
        for place, value in enumerate(listed.values):
            if type(value) is not list:
                continue
            shape, strides = _at(listed.shapes, place), _at(listed.strides, place)
            for tensor, own_shape, own_strides in _tensors(value, shape, strides, 0):
                if tensor[3] == 0:
                    continue
                key = _key(tensor, own_shape, own_strides)
                if key is None:
                    self.num_unreadable += 1
                else:
                    yield place, key


def span(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, bool]:
    """Elements from the first to the last one of a view, and whether all between are in it."""
    elements, dense = 1, True
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            # Copies of a run without gaps leave none if each begins within the one before
            # or right behind it; else the element behind the run is in no copy.
            dense = dense and stride <= elements
            elements += (size - 1) * stride
    return elements, dense


_span = lru_cache(maxsize=1 << 14)(span)


def _key(tensor: list[Any], shape: Any, strides: Any) -> Key | None:
    identity, storage, offset, numel, item, device = tensor
    if min(tensor[:5]) < 0 or item < 1:
        return None
    elements, dense = numel, numel == 1
    if _whole_numbers(shape) and _whole_numbers(strides) and len(shape) == len(strides):
        elements, dense = _span(tuple(shape), tuple(strides))
    begin, end = offset * item, (offset + elements) * item
    if end >= _LARGEST or max(identity, storage) >= _LARGEST:
        return None
    return identity, storage, begin, end, dense, device


def _tensors(value: list[Any], shape: Any, strides: Any, depth: int) -> Iterator[Any]:
    """The tensors of a value with their shapes and strides, out of lists as well."""
    if _is_tensor(value):
        yield value, shape, strides
    elif depth < _DEEPEST:
        for place, inner in enumerate(value):
            if type(inner) is list:
                yield from _tensors(inner, _at(shape, place), _at(strides, place), depth + 1)


def _is_tensor(value: list[Any]) -> bool:
    return len(value) == 6 and type(value[5]) is str and all(type(v) is int for v in value[:5])


def _whole_numbers(value: Any) -> bool:
    return type(value) is list and all(type(v) is int and v >= 0 for v in value)


def _at(listed: Any, place: int) -> Any:
    return listed[place] if type(listed) is list and place < len(listed) else None


def _columns(filled: dict[str, array[int]], dtypes: Any) -> Columns:
    return {
        name: np.array(filled[name], np.int64).astype(dtype, copy=False)
        for name, dtype in dtypes.items()
    }
