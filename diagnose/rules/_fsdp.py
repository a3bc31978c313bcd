"""All-gathers of FSDP2's units, as the annotations ``FSDP::all_gather (unit)`` tell them apart."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from diagnose.rules._facts import Facts
from diagnose.rules._messages import Messages, messages_on
from diagnose.rules._spans import spans_where
from diagnose.trace import Gpu, Table

_GATHER = re.compile(r"FSDP::all_gather \((.*)\)")
_PREFETCH = re.compile(r"FSDP::(?:forward|backward)_prefetch\b")


class Gather(NamedTuple):
    """One all-gather of one unit's parameters."""

    unit: str
    step_row: int
    launch_ns: int
    in_backward: bool
    prefetched: bool
    """Launched ahead of the unit that needs it, by FSDP's own prefetching."""
    bytes: int
    transfer_ns: int
    exposed_ns: int


def is_marked(facts: Facts) -> bool:
    """Whether any all-gather of FSDP2 is annotated."""
    return len(_spans(facts, _GATHER)) > 0


def gathers_on(facts: Facts, gpu: Gpu) -> list[Gather]:
    """The units' all-gathers of a GPU's timed steps, by launch."""
    messages = messages_on(facts, gpu)
    calls = facts.trace.gpu_ops["launch_row"][messages.row]
    inside = _around(facts, gpu, _spans(facts, _GATHER), messages, calls)
    ahead = _around(facts, gpu, _spans(facts, _PREFETCH), messages, calls)
    found = []
    for at in np.flatnonzero(messages.is_kind("all_gather") & (inside >= 0)).tolist():
        named = _GATHER.match(facts.trace.strings[int(inside[at])])
        if named is None:
            continue
        found.append(
            Gather(
                named[1],
                int(messages.step_row[at]),
                int(messages.launch_ns[at]),
                bool(messages.in_backward[at]),
                bool(ahead[at] >= 0),
                max(int(messages.bytes[at]), 0),
                int(messages.transfer_ns[at]),
                int(messages.exposed_ns[at]),
            )
        )
    return sorted(found, key=lambda gather: gather.launch_ns)


def _spans(facts: Facts, pattern: re.Pattern[str]) -> Table:
    return spans_where(facts, lambda text: pattern.match(text) is not None)


def _around(
    facts: Facts, gpu: Gpu, spans: Table, messages: Messages, calls: np.ndarray
) -> np.ndarray:
    """Name code of the span around each launch on its thread; -1: none. Spans do not nest."""
    found = np.full(len(calls), -1, np.int64)
    spans = spans.take(spans["source"] == gpu.source)
    threads = facts.trace.launches["thread"]
    for thread in np.unique(spans["thread"]):
        own = spans.take(spans["thread"] == thread)
        mine = np.flatnonzero(calls >= 0)
        mine = mine[threads[calls[mine]] == thread]
        at = np.searchsorted(own["start_ns"], messages.launch_ns[mine], "right") - 1
        inside = (at >= 0) & (messages.launch_ns[mine] < own["end_ns"][np.maximum(at, 0)])
        found[mine[inside]] = own["name"][at[inside]]
    return found
