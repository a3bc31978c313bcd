"""What ``diagnose check-sync`` prints: the races, and what was watched."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rich.text import Text

from diagnose.findings import Diagnosis, Finding
from diagnose.readers.sanitizer_lines import Watched
from diagnose.reporters import Page
from diagnose.reporters._finding_records import finding_rows
from diagnose.reporters._findings import finding_lines
from diagnose.reporters._findings_markdown import markdown
from diagnose.reporters._findings_text import styled
from diagnose.reporters._records import Record, encode
from diagnose.reporters.markdown import escaped
from diagnose.reporters.text import console_for, wrapped
from diagnose.schema import TABLES
from diagnose.trace import Source, Strings, Table, Trace
from diagnose.wording.numbers import counted, ranges
from diagnose.wording.plain import plain

SCHEMA_VERSION = 1
_WIDTH = 600
_MOST_SHOWN = 50
"""Findings for people, those seen most often; JSON has all."""


@dataclass(frozen=True)
class Check:
    """What was found, in which processes (those that used a GPU), and what cannot be seen."""

    found: tuple[Finding, ...]
    watched: tuple[Watched, ...]
    not_seen: tuple[str, ...]
    steps: int
    """Optimizer steps that were asked for."""

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """Nothing was recorded: each process is a source, and no table has a row."""
        strings = Strings()
        sources = tuple(Source(f"process {one.pid}", one.rank) for one in self.watched)
        tables: dict[str, Any] = {one.name: Table(one, one.empty(), strings) for one in TABLES}
        trace = Trace(sources=sources, strings=strings, **tables)
        return Diagnosis(trace, findings=self.found)


def write(check: Check, form: str, page: Page) -> str:
    """The check as ``text``, ``markdown`` or ``json``."""
    if form == "json":
        return encode(
            {
                "schema_version": SCHEMA_VERSION,
                "num_steps_wanted": check.steps,
                "processes": [_process(one) for one in check.watched],
                "not_seen": list(check.not_seen),
                "findings": finding_rows(check.diagnosis),
            }
        )
    shown = replace(check.diagnosis, findings=check.found[:_MOST_SHOWN])
    lines = finding_lines(shown, unicode=page.unicode)
    said = [plain(one, _WIDTH, unicode=page.unicode) for one in sentences(check)]
    if form == "markdown":
        parts = ["### Missing synchronisation", *markdown(lines, escaped), ""]
        return "\n".join([*parts, *(f"{escaped(one)}  " for one in said)]) + "\n"
    out = io.StringIO()
    console = console_for(out, page)
    for line in styled(lines, page.width):
        text = Text(line.text)
        text.stylize(line.style, line.start, line.end)
        console.print(text)
    if check.found:
        console.print()
    for sentence in said:
        wrapped(console, sentence, page)
    return out.getvalue()


def sentences(check: Check) -> list[str]:
    """What was watched, what the sanitizer cannot see, and what it failed at."""
    watched = check.watched
    steps = max((one.steps for one in watched), default=0)
    launches = sum(one.launches for one in watched)
    least = "" if all(one.ended for one in watched) else "at least "  # killed before it said
    over = f"{least}{counted(launches, 'operator')} with tensors on a GPU"
    if steps:
        over = f"{counted(steps, 'step')} of {_who(watched)} ({over})"
    else:
        over = f"{over} of {_who(watched)}; no step ended"
    said = [f"Watched {over}." if check.found else f"No missing synchronisation in {over}."]
    more = len(check.found) - _MOST_SHOWN
    if more > 0:
        said.append(f"{counted(more, 'further finding')} with `--format json`.")
    behind = [one for one in watched if one.steps < check.steps]
    if behind:
        late = any(one.ended == "seconds" for one in behind)
        why = "the time was over (--seconds)" if late else "the job ended"
        of = "" if len(behind) == len(watched) else f" of {_who(behind)}"
        said.append(f"That is less than the {counted(check.steps, 'step')} wanted{of}: {why}.")
    failures = sum(one.failures for one in watched)
    if failures:
        said.append(f"It failed at {counted(failures, 'operator')}, which were not checked.")
    left_out = sum(one.races_left_out for one in watched)
    if left_out:
        said.append(f"{left_out:,} further reports were not kept: there were too many.")
    said.append(
        f"PyTorch's sanitizer does not see {', '.join(check.not_seen[:-1])} or "
        f"{check.not_seen[-1]}; `diagnose attach --check-sync` sees more."
    )
    return said


def _who(watched: Sequence[Watched]) -> str:
    ranks = sorted({one.rank for one in watched if one.rank is not None})
    if ranks:
        return f"rank{'s' * (len(ranks) > 1)} {ranges(ranks)}"
    return "one process" if len(watched) == 1 else f"{len(watched)} processes"


def _process(one: Watched) -> Record:
    return {
        "pid": one.pid,
        "rank": one.rank,
        "num_steps": one.steps,
        "num_operators": one.launches,
        "num_failures": one.failures,
        "num_races_left_out": one.races_left_out,
        "ended": one.ended or None,
        "torch": one.torch or None,
    }
