"""How close two uses that nothing orders came to each other, in what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from diagnose.findings import Evidence, Span
from diagnose.rules._facts import Facts
from diagnose.rules._words import counted, duration
from diagnose.trace import Table


class Met(NamedTuple):
    """How close the two came, over all times."""

    words: str
    evidence: tuple[Evidence, ...]


def met_of(facts: Facts, hazards: Table, rows: Sequence[int]) -> Met:
    """Of all rows of ``hazards`` that are told as one."""
    ends = [_times(facts, hazards, row) for row in rows]
    gap = min(second[0] - first[1] for first, second in ends)
    if gap >= 0:
        words = f"came {duration(gap)} after it at the closest, which was luck"
        return Met(words, (Evidence("gap_ns", "closest, from end to start", gap),))
    too_early = sum(second[1] <= first[0] for first, second in ends)
    beside = [
        min(first[1], second[1]) - max(first[0], second[0])
        for first, second in ends
        if first[0] < second[1] and second[0] < first[1]
    ]
    said: list[str] = []
    evidence: list[Evidence] = []
    if too_early:
        said.append(f"was over before that began {counted(too_early, 'time')}")
        evidence.append(Evidence("num_too_early", "over before the other began", too_early))
    if beside:
        said.append(
            f"ran beside it {counted(len(beside), 'time')}, for up to {duration(max(beside))}"
        )
        evidence.append(Evidence("at_once_ns", "ran at once, longest", max(beside)))
    return Met(" and ".join(said), tuple(evidence))


def _times(facts: Facts, hazards: Table, row: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Start and end of the earlier and of the later: on the GPU, else of the host's operator."""
    trace, found = facts.trace, []
    for which in ("first", "second"):
        on_gpu = int(hazards[f"{which}_gpu_op_row"][row])
        table = trace.gpu_ops if on_gpu >= 0 else trace.host_ops
        at = on_gpu if on_gpu >= 0 else int(hazards[f"{which}_op_row"][row])
        found.append((int(table["start_ns"][at]), int(table["end_ns"][at])))
    return found[0], found[1]


def span_of(facts: Facts, hazards: Table, row: int) -> Span:
    """From the first of both to begin to the last to end."""
    first, second = _times(facts, hazards, row)
    begin, end = min(first[0], second[0]), max(first[1], second[1])
    return Span(int(hazards["source"][row]), begin, end)
