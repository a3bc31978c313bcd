"""What an operator does to its arguments, told by its schema.

``aten::add_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)``: ``(a!)`` marks what is
written, ``(a)`` what the result is a view of. What has neither mark is read.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

NOTHING, READS, WRITES, NEW = 0, 1, 2, 4
"""Bits: what is done to a tensor. ``NEW``: memory that the operator was given."""

_LONGEST = 1 << 14
_ALIAS = re.compile(r"\([a-zA-Z0-9|* >!-]*\)")

# Made, but with whatever was in the memory before.
_MAKE_ONLY = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized"),
        *("new_empty", "new_empty_strided"),
    }
)
# What changes, or is asked, is how the tensor is seen, or which memory it has.
_TOUCH_NO_MEMORY = frozenset(
    {
        *("is_pinned", "is_complex", "is_floating_point", "is_signed", "is_inference", "is_conj"),
        *("is_neg", "is_same_size", "is_set_to", "is_contiguous", "size", "stride", "numel", "dim"),
        *("storage_offset", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset"),
        *("_has_compatible_shallow_copy_type", "_version", "result_type", "data_ptr"),
        *("as_strided_", "detach_", "record_stream", "rename_", "requires_grad_", "resize_"),
        *("resize_as_", "_resize_output_", "set_", "squeeze_", "swapaxes_", "swapdims_", "t_"),
        *("transpose_", "unsqueeze_"),
    }
)
# Written without a look at what was there.
_OVERWRITE = frozenset({"fill_", "zero_", "copy_", "_foreach_zero_", "_foreach_copy_"})


class Modes(NamedTuple):
    """What is done to each argument and result, by place; ``inputs``: those beyond are read."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    known: bool = True

    def of_input(self, place: int) -> int:
        return self.inputs[place] if place < len(self.inputs) else READS

    def of_output(self, place: int) -> int:
        return self.outputs[place] if place < len(self.outputs) else self._further_output

    @property
    def _further_output(self) -> int:
        return NOTHING if self.known else WRITES | NEW


_UNKNOWN = Modes((), (), known=False)


@lru_cache(maxsize=1 << 14)
def modes(name: str, schema: str) -> Modes:
    """What an operator does. Without a (legible) schema: reads its inputs, makes its outputs."""
    if name == "record_param_comms" or name.startswith("c10d::"):
        # Their outputs were there before; no schema says that they are written.
        return Modes((), (WRITES,) * 64, known=False)
    opened = schema.find("(")
    closed = _closing(schema, opened)
    arrow = schema.find("->", closed)
    if opened < 1 or closed < 0 or arrow < 0 or len(schema) > _LONGEST:
        return _UNKNOWN
    operator = schema[:opened].rpartition("::")[2].partition(".")[0]
    arguments = _split(schema[opened + 1 : closed])
    results = schema[arrow + 2 :].strip()
    if results.startswith("("):
        results = results[1:-1]
    outputs = tuple(NOTHING if _alias(one) else WRITES | NEW for one in _split(results))
    marks = [_alias(argument) for argument in arguments]
    is_view = "read" in marks and "write" not in marks
    if is_view or operator in _TOUCH_NO_MEMORY:
        return Modes((NOTHING,) * len(arguments), (NOTHING,) * len(outputs))
    if operator in _MAKE_ONLY:
        made = tuple(mode & NEW for mode in outputs)
        return Modes((NOTHING,) * (len(arguments) - arguments.count("*")), made)
    return Modes(tuple(_inputs(operator, arguments, marks)), outputs)


def _inputs(operator: str, arguments: list[str], marks: list[str]) -> list[int]:
    found: list[int] = []
    by_name_only = False
    for argument, mark in zip(arguments, marks, strict=True):
        if argument == "*":
            by_name_only = True  # what is written behind it is an ``out=``
        elif mark != "write":
            found.append(READS)
        elif by_name_only or (operator in _OVERWRITE and not found):
            found.append(WRITES)
        else:
            found.append(READS | WRITES)
    return found


def _alias(declared: str) -> str:
    """The mark of an argument or result: "write", "read" or ""."""
    mark = _ALIAS.search(declared.partition("=")[0])
    if mark is None:
        return ""
    return "write" if "!" in mark[0] else "read"


def _closing(text: str, opened: int) -> int:
    """The place of the parenthesis that closes the one at ``opened``; -1: there is none."""
    depth = 0
    for place, letter in _outside_quotes(text, max(opened, 0)):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place
    return -1


def _split(text: str) -> list[str]:
    """At the commas outside of brackets and quotes."""
    pieces, depth, begin = [], 0, 0
    for place, letter in _outside_quotes(text, 0):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            pieces.append(text[begin:place].strip())
            begin = place + 1
    last = text[begin:].strip()
    return [*pieces, last] if last else pieces


def _outside_quotes(text: str, begin: int) -> list[tuple[int, str]]:
    quoted = False
    found = []
    for place in range(begin, len(text)):
        letter = text[place]
        if letter == '"':
            quoted = not quoted
        elif not quoted:
            found.append((place, letter))
    return found
