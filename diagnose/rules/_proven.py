"""Missing waits that an execution trace and the events of the streams prove."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from diagnose.analyzers.hazards import Hazard, MissingCall
from diagnose.analyzers.hazards.coverage import Coverage, coverage
from diagnose.analyzers.hazards.stacks import stack
from diagnose.findings import Evidence, Fix, Where
from diagnose.rules._closeness import met_of, span_of
from diagnose.rules._collective_ends import COLLECTIVE
from diagnose.rules._facts import Facts
from diagnose.rules._hazard_coverage import known_memory, unseen
from diagnose.rules._rule import Symptom
from diagnose.rules._words import counted, who
from diagnose.schema import NO_ROW
from diagnose.trace import Gpu, Table

_MOST_SPANS = 3
_MOST_FINDINGS = 50
_DEEPEST = 2
"""Functions that are told of a stack."""
_DEFAULT = 7
"""The number that CUDA's profiler gives to the default stream."""
_DOES = {
    Hazard.READ_AFTER_WRITE: ("reads what", "writes"),
    Hazard.WRITE_AFTER_READ: ("overwrites what", "reads"),
    Hazard.WRITE_AFTER_WRITE: ("overwrites what", "writes"),
    Hazard.REUSE: ("uses memory that the allocator gave out again while", "may still use it"),
}
_KINDS = {
    Hazard.READ_AFTER_WRITE: "read after write",
    Hazard.WRITE_AFTER_READ: "write after read",
    Hazard.WRITE_AFTER_WRITE: "write after write",
    Hazard.REUSE: "memory reused",
}
_SAME = "torch.cuda.current_stream().wait_stream(other)"
_HOW = {
    MissingCall.WAIT_STREAM: (
        "let its stream wait for {place}: the GPU waits, not the host",
        _SAME,
    ),
    MissingCall.WORK_WAIT: (
        "wait for the collective's work: this makes the stream wait, not the host",
        "work = dist.all_reduce(tensor, async_op=True); ...; work.wait()",
    ),
    MissingCall.SYNCHRONIZE: (
        "let the host wait for {first}, and for nothing more",
        "event = torch.cuda.Event(); event.record(); ...; event.synchronize()",
    ),
}
_GAPS = (
    "Both use this range, but maybe not the same bytes of it, as where each takes other columns of "
    "a matrix; or one of the operators works on several streams."
)


def symptoms(facts: Facts, hazards: Table) -> Iterator[Symptom]:
    """One for each pair of operators, streams and places in the program, of all ranks together."""
    covered = coverage(facts.trace)
    groups: dict[tuple[object, ...], list[int]] = {}
    for row in range(len(hazards)):
        groups.setdefault(_same(facts, hazards, row), []).append(row)
    # Certain ones first, then what is seen most often: of a job without any order there are many.
    most = sorted(groups.values(), key=lambda rows: (not hazards["certain"][rows[0]], -len(rows)))
    left_out = len(most[_MOST_FINDINGS:])
    for rows in most[:_MOST_FINDINGS]:
        yield _symptom(facts, hazards, rows, covered, left_out)


class _End(NamedTuple):
    """One of the two accesses."""

    operator: str
    place: str
    stream: int | None
    """None: the host."""
    called_from: tuple[str, ...]
    is_collective: bool

    @classmethod
    def of(cls, facts: Facts, hazards: Table, which: str, row: int) -> _End:
        """``which``: "first" or "second"."""
        known = bool(hazards.known(f"{which}_stream")[row])
        stream = int(hazards[f"{which}_stream"][row]) if known else None
        op_row = int(hazards[f"{which}_op_row"][row])
        operator = facts.trace.strings[int(facts.trace.host_ops["name"][op_row])]
        is_collective = operator == COLLECTIVE
        if is_collective:
            operator = _collective(facts, int(hazards[f"{which}_gpu_op_row"][row]))
        place = "the host" if stream is None else f"stream {stream}"
        place += " (the default)" if stream == _DEFAULT and not facts.is_amd else ""
        return cls(operator, place, stream, stack(facts.trace, op_row), is_collective)

    @property
    def within(self) -> str:
        """`` in step``: the innermost function of the user's, if one is known."""
        function = self.called_from[0].partition("): ")[2] if self.called_from else ""
        return f" in {function}" if function else ""

    @property
    def subject(self) -> str:
        """As ``aten::mm in train.py:step``: without lines, which change with the program."""
        if not self.called_from:
            return self.operator
        file, _, function = self.called_from[0].partition("): ")
        name = re.split(r"[/\\]", file.rpartition("(")[0])[-1]
        return f"{self.operator} in {name}:{function}"


def _collective(facts: Facts, gpu_op_row: int) -> str:
    table, kind = facts.trace.collectives, ""
    at = int(np.searchsorted(table["gpu_op_row"], gpu_op_row))  # the table is in its order
    if at < len(table) and table["gpu_op_row"][at] == gpu_op_row and table.known("collective")[at]:
        kind = facts.trace.strings[int(table["collective"][at])]
    return f"{kind or 'a collective'} ({COLLECTIVE})"


def _same(facts: Facts, hazards: Table, row: int) -> tuple[object, ...]:
    """Of what is told as one, on however many ranks."""
    kind = int(hazards["hazard"][row]), bool(hazards["certain"][row]), int(hazards["missing"][row])
    ends = (_End.of(facts, hazards, which, row) for which in ("first", "second"))
    return (*kind, *((end.operator, end.place, end.called_from[:1]) for end in ends))


def _symptom(
    facts: Facts,
    hazards: Table,
    rows: Sequence[int],
    covered: Sequence[Coverage],
    left_out: int,
) -> Symptom:
    trace, row = facts.trace, rows[0]
    first, second = (_End.of(facts, hazards, which, row) for which in ("first", "second"))
    hazard, missing = Hazard(hazards["hazard"][row]), MissingCall(hazards["missing"][row])
    does, did = _DOES[hazard]
    met = met_of(facts, hazards, rows)
    gpus = _gpus(facts, hazards, rows)
    certain = bool(hazards["certain"][row])
    steps = [int(hazards["step_row"][one]) for one in rows]
    names = {trace.strings[int(trace.steps["name"][step])] for step in steps if step != NO_ROW}
    return Symptom(
        sentence=(
            f"{second.operator} on {second.place} {does if certain else f'maybe {does}'} "
            f"{first.operator} on {first.place} {did}, and nothing orders them: on "
            f"{who(trace, gpus)} it {met.words}."
        ),
        where=Where(
            gpus=gpus,
            streams=tuple(end.stream for end in (first, second) if end.stream is not None),
            steps=tuple(sorted(names)),
            spans=tuple(span_of(facts, hazards, one) for one in rows[:_MOST_SPANS]),
        ),
        evidence=(
            Evidence("kind", "kind", _KINDS[hazard]),
            *_accesses(first, second),
            Evidence("shared_bytes", "they share", _shared(hazards, row)),
            *met.evidence,
            Evidence("num_seen", "pairs seen", len(rows)),
            Evidence("known", "GPU operations with known memory", known_memory(covered)),
            Evidence("unseen", "not seen", unseen(covered, trace) or "nothing"),
        ),
        advice=(_fix(missing, first, second),),
        caveats=(
            *(() if certain else (_GAPS,)),
            *([f"{counted(left_out, 'more pair')} of operators not listed."] if left_out else []),
            "Do not use torch.cuda.synchronize() for this: it hides the race and costs overlap.",
        ),
        no_gain="it is about right results, not about time",
        confidence="high" if certain else "low",
        severity="critical" if certain else "hint",
        explains=("work-never-waited",) if certain and first.is_collective else (),
        # What a baseline accepts at one place is not accepted at another, nor as certain.
        subject=f"{'' if certain else 'maybe '}{second.subject} after {first.subject}",
    )


def _fix(missing: MissingCall, first: _End, second: _End) -> Fix:
    if missing == MissingCall.RECORD_STREAM:
        text = f"tell the allocator that {first.place} uses the tensor too"
        return Fix(f"Before its last reference goes, {text}.", "tensor.record_stream(other)")
    text, code = _HOW[missing]
    said = text.format(place=first.place, first=first.operator)
    return Fix(f"Before {second.operator}{second.within}, {said}.", code)


def _accesses(first: _End, second: _End) -> Iterator[Evidence]:
    for key, label, end in (("first", "earlier", first), ("second", "later", second)):
        yield Evidence(key, label, f"{end.operator} on {end.place}")
        places = " < ".join(map(_defined, end.called_from[:_DEEPEST]))
        yield Evidence(f"{key}_stack", "called in", places or "no stack was recorded")


def _defined(frame: str) -> str:
    """A function and where it is defined: a profile does not hold the line of a call."""
    place, _, function = frame.partition("): ")
    return f"{function} [{place.replace('(', ':')}]"


def _shared(hazards: Table, row: int) -> int:
    return int(hazards["end"][row] - hazards["begin"][row])


def _gpus(facts: Facts, hazards: Table, rows: Sequence[int]) -> tuple[Gpu, ...]:
    ops = facts.trace.gpu_ops
    on = np.concatenate([hazards[f"{which}_gpu_op_row"][rows] for which in ("first", "second")])
    on = on[on != NO_ROW]
    places = {*zip(ops["source"][on].tolist(), ops["device"][on].tolist(), strict=True)}
    return tuple(gpu for gpu in facts.trace.gpus if (gpu.source, gpu.device) in places)
