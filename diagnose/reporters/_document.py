"""A report's content, the same for people whatever the format: what was read, sheets, notes."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from diagnose.findings import Diagnosis, Verdict
from diagnose.reporters import _collectives, _timeline
from diagnose.reporters._figures import known_values
from diagnose.reporters._observer import observer_sentence
from diagnose.reporters._places import Places
from diagnose.reporters._sheet import Sheet
from diagnose.reporters._software import software
from diagnose.trace import Note, Severity, Source, Trace
from diagnose.wording.numbers import Scale, counted, ranges, scale_for
from diagnose.wording.plain import plain, shorten_path

ACROSS = frozenset({"ranks", "stragglers", "waiting", "waiting_steps"})
"""Tables that need several ranks: what is missing of them is one sentence."""
_PATH_WIDTH = 70
_SENTENCE_WIDTH = 600


@dataclass(frozen=True)
class Remark:
    """Notes that say the same of one or more sources, as one line."""

    severity: Severity
    code: str
    text: str

    @property
    def subject(self) -> str:
        """What was seen, without what it does to which number."""
        return self.text.split("; ", 1)[0]


@dataclass(frozen=True)
class Document:
    """A report before any format draws it."""

    about: tuple[str, ...]
    verdict: Verdict
    reasons: tuple[Remark, ...]
    across: tuple[str, ...]
    """What is said across ranks, under a heading of its own."""
    costs: tuple[str, ...]
    """What overlap and a step cost, under a heading of its own."""
    gains: tuple[str, ...]
    """What changes would gain, under a heading of its own."""
    sheets: tuple[Sheet, ...]
    missing: tuple[str, ...]
    notes: tuple[Remark, ...]


def document(diagnosis: Diagnosis, *, unicode: bool) -> Document:
    """Everything that a report for people says. Text from the trace is made printable here."""
    # The analyses behind these are most of what a small command would import.
    from diagnose.reporters._costs import cost_sentences
    from diagnose.reporters._host_steps import steps_sheet
    from diagnose.wording.replay import report_sentences

    trace = diagnosis.trace
    scale = _scale(diagnosis)
    places = Places(trace, unicode=unicode)
    sheets: list[Sheet] = []
    if len(diagnosis.tables.get("gpus", ())):
        sheets.append(_timeline.gpus(diagnosis, scale, places))
    if len(diagnosis.tables.get("steps", ())):
        sheets.append(_timeline.steps(diagnosis, scale, places))
    if len(diagnosis.tables.get("collectives", ())):
        sheets.append(_collectives.sizes(diagnosis, scale, places, unicode=unicode))
    host_steps = diagnosis.tables.get("host_steps")
    if trace.on_cpu and host_steps is not None:
        sheets.append(steps_sheet(diagnosis, host_steps))
    quality = diagnosis.quality
    return Document(
        about=about(diagnosis, unicode=unicode),
        verdict=quality.verdict,
        reasons=remarks(trace, quality.reasons, unicode=unicode),
        across=tuple(_across(diagnosis, unicode=unicode)),
        costs=tuple(
            plain(one, _SENTENCE_WIDTH, unicode=unicode) for one in cost_sentences(diagnosis)
        ),
        gains=tuple(
            plain(one, _SENTENCE_WIDTH, unicode=unicode) for one in report_sentences(diagnosis)
        ),
        sheets=tuple(sheets),
        missing=tuple(
            unavailable_sentences(diagnosis, without=_not_missed(diagnosis), unicode=unicode)
        ),
        notes=remarks(trace, trace.notes, unicode=unicode),
    )


def _not_missed(diagnosis: Diagnosis) -> frozenset[str]:
    """Tables of which nothing is said here: another section does, or the verdict."""
    from diagnose.reporters._costs import absent_costs

    without_gpu = frozenset() if diagnosis.trace.gpus else frozenset({"staircase"})
    return ACROSS | absent_costs(diagnosis) | without_gpu


def longest_window(diagnosis: Diagnosis) -> int:
    """The longest window of a GPU, 0 if no table has one."""
    gpus = diagnosis.tables.get("gpus", diagnosis.tables.get("overlap"))
    windows: Any = known_values(gpus["window_ns"]) if gpus is not None else ()
    return int(windows.max()) if len(windows) else 0


def _scale(diagnosis: Diagnosis) -> Scale:
    return scale_for(longest_window(diagnosis))


def about(diagnosis: Diagnosis, *, unicode: bool) -> tuple[str, ...]:
    """What was read, in up to five lines."""
    trace = diagnosis.trace
    lines = [_where(trace.sources, unicode=unicode), " | ".join(_counts(diagnosis))]
    ran_on = software(trace, unicode=unicode)
    if ran_on:
        lines.append(" | ".join(ran_on))
    if cost := observer_sentence(diagnosis):
        lines.append(cost)
    if trace.on_cpu:
        from diagnose.reporters._host_steps import on_cpu_sentence

        lines.append(on_cpu_sentence(diagnosis))
    return tuple(lines)


def _where(sources: tuple[Source, ...], *, unicode: bool) -> str:
    folders = {source.path.rpartition("/")[0] for source in sources}
    if len(sources) == 1 or not all(folders):
        path = sources[0].path if sources else ""
        more = f" and {len(sources) - 1:,} more" if len(sources) > 1 else ""
    else:
        path = min(folders)
        more = f" and {counted(len(folders) - 1, 'more folder')}" if len(folders) > 1 else ""
    return shorten_path(path, _PATH_WIDTH, unicode=unicode) + more


def _counts(diagnosis: Diagnosis) -> list[str]:
    trace = diagnosis.trace
    said = [counted(len({source.path for source in trace.sources}), "file")]
    ranks = [source.rank for source in trace.sources if source.rank is not None]
    worlds = {source.world_size for source in trace.sources if source.world_size is not None}
    if ranks:
        of = f" of {worlds.pop()}" if len(worlds) == 1 else ""
        said.append(f"{'rank' if len(set(ranks)) == 1 else 'ranks'} {ranges(ranks)}{of}")
    if len(ranks) < len(trace.sources):
        unknown = len(trace.sources) - len(ranks)
        said.append("rank unknown" if not ranks else f"{unknown:,} of unknown rank")
    marks = np.bincount(trace.steps["source"], minlength=len(trace.sources))
    low, high = int(marks.min()), int(marks.max())
    said.append(counted(high, "step") if low == high else f"{low:,} to {high:,} steps")
    longest, scale = longest_window(diagnosis), _scale(diagnosis)
    if longest:
        said.append(f"window {scale.show(longest)} {scale.unit}")
    return said


def remarks(trace: Trace, notes: Iterable[Note], *, unicode: bool) -> tuple[Remark, ...]:
    """Notes as lines, gravest first; the same code in several sources is one line."""
    gravity: dict[str, int] = {"error": 0, "warning": 1, "info": 2}
    groups: dict[tuple[str, Severity], list[Note]] = {}
    for note in notes:
        groups.setdefault((note.code, note.severity), []).append(note)
    lines = []
    for (code, severity), group in sorted(groups.items(), key=lambda g: gravity[g[0][1]]):
        first = group[0]
        text = plain(said(trace, first), _SENTENCE_WIDTH, unicode=unicode)
        if len(group) > 1:
            text += f" (and {len(group) - 1:,} more of this kind: see `diagnose info`)"
        lines.append(Remark(severity, code, text))
    return tuple(lines)


def said(trace: Trace, note: Note) -> str:
    """A note's sentence; the path of its file at the beginning gives way to the short label."""
    if note.source is None:
        return note.sentence
    source = trace.sources[note.source]
    return f"{source.label}: {note.sentence.removeprefix(f'{source.path}: ')}"


def _across(diagnosis: Diagnosis, *, unicode: bool) -> Iterable[str]:
    """Who is late, or in one sentence why that cannot be said; nothing for a job of one rank."""
    if diagnosis.trace.on_cpu:
        from diagnose.reporters._host_steps import slowest_sentence

        if sentence := slowest_sentence(diagnosis):
            yield plain(sentence, _SENTENCE_WIDTH, unicode=unicode)
        return
    stragglers = diagnosis.tables.get("stragglers")
    if stragglers is not None:
        from diagnose.reporters._verdict import straggler_sentences

        for sentence in straggler_sentences(diagnosis.trace, stragglers):
            yield plain(sentence, _SENTENCE_WIDTH, unicode=unicode)
        return
    reason = diagnosis.unavailable.get("stragglers")
    alone = all(source.world_size == 1 for source in diagnosis.trace.sources)
    if reason is not None and diagnosis.trace.gpus and not alone:
        said = f"Not available because {reason.because}: {reason.remedy}."
        yield plain(said, _SENTENCE_WIDTH, unicode=unicode)


def unavailable_sentences(
    diagnosis: Diagnosis, *, unicode: bool, without: Container[str] = ()
) -> Iterable[str]:
    """What could not be determined, why, and how to record it."""
    for name, reason in diagnosis.unavailable.items():
        if name not in without:
            said = [_sentence(text) for text in (reason.because, reason.remedy) if text]
            text = " ".join([f"{name}: not available.", *said])
            yield plain(text, _SENTENCE_WIDTH, unicode=unicode)


def _sentence(text: str) -> str:
    """Reasons are written as parts of sentences too; here each stands alone."""
    ended = text if text.endswith(".") else f"{text}."
    return ended[:1].upper() + ended[1:]
