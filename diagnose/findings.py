"""What a diagnosis is: the trace, the tables made of it, and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from diagnose.analysis import Unavailable
from diagnose.trace import Note, Table, Trace

FindingSeverity = Literal["hint", "info", "warning", "critical"]
Verdict = Literal["good", "usable with care", "not to be trusted"]

FILE_LEFT_OUT = frozenset(
    {
        "empty-file",
        "not-a-trace",
        "truncated",
        "too-large",
        "bomb",
        "not-found",
        "input",
        "internal",
    }
)
"""Notes on a file that gave nothing or only a part: the other files' numbers stand."""


@dataclass(frozen=True)
class Finding:
    """One problem that a rule found. ``sentence`` carries the number."""

    rule: str
    severity: FindingSeverity
    sentence: str


class Quality(NamedTuple):
    """Whether the numbers can be believed, and the notes that say why not."""

    verdict: Verdict
    reasons: tuple[Note, ...]


@dataclass(frozen=True)
class Diagnosis:
    """Everything a reporter or view draws; it computes nothing itself.

    ``tables`` holds the results by the name under which they were asked for
    (see ``diagnose.engine.REPORT``), ``unavailable`` why the others are missing.
    """

    trace: Trace
    tables: Mapping[str, Table] = field(default_factory=dict)
    unavailable: Mapping[str, Unavailable] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def quality(self) -> Quality:
        """The verdict that the notes add up to.

        An error is a number that cannot be right; a warning one that may be off,
        or a file that is missing from the picture. A job on the CPU has no numbers of
        GPUs that could be wrong.
        """
        reasons = tuple(note for note in self.trace.notes if note.severity != "info")
        wrong = any(n.severity == "error" and n.code not in FILE_LEFT_OUT for n in reasons)
        if wrong or not (self.trace.gpus or self.trace.on_cpu):
            return Quality("not to be trusted", reasons)
        return Quality("usable with care" if reasons else "good", reasons)
