"""What the tools answer, except for the timeline: plain values for JSON."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from diagnose import engine
from diagnose.assistant._text import MOST_CHARACTERS, Lines, encoded, without_nulls
from diagnose.assistant.shelf import Loaded
from diagnose.errors import UsageError
from diagnose.findings import Diagnosis, Finding
from diagnose.reporters import Page
from diagnose.reporters._document import said
from diagnose.reporters._records import Record, microseconds_raw
from diagnose.reporters.json import inputs, report
from diagnose.trace import Trace

_MOST_INPUTS = 64
_MOST_NOTES = 20
_MOST_STEPS = 50
_GRAVITY = {"error": 0, "warning": 1, "info": 2}
_MOST_SPANS = 20
_WIDTH = 100
_ALWAYS_FITS = 300  # characters: to say that a section is left out takes a quarter of it
_HEAD = "head"
_HEADING = "### "
# Of the JSON report: what an assistant needs first.
_FIRST = ("headline", "quality", "findings", "stragglers", "staircase", "gpus", "collectives")


def loaded_answer(handle: str, path: str, trace: Trace) -> Record:
    """What was read, whether it can be believed, and what can be asked of it."""
    files, notes = inputs(trace), trace.notes
    steps = list(dict.fromkeys(name for name in trace.steps.texts("name") if name is not None))
    gpus = []
    for gpu in trace.gpus:
        rows = trace.on(gpu)
        start, end = trace.gpu_ops["start_ns"][rows], trace.gpu_ops["end_ns"][rows]
        gpus.append(
            {
                "rank": gpu.rank,
                "source": gpu.source,
                "device": gpu.device,
                "num_operations": len(start),
                "from_us": microseconds_raw(int(start.min())),
                "to_us": microseconds_raw(int(end.max())),
            }
        )
    return {
        "recording": handle,
        "path": path,
        "detail": trace.detail.name.lower(),
        "quality": Diagnosis(trace).quality.verdict,
        "missing_ranks": list(trace.missing_ranks),
        "inputs": [without_nulls(one) for one in files[:_MOST_INPUTS]],
        "gpus": gpus[:_MOST_INPUTS],
        "steps": steps[:_MOST_STEPS],
        "notes": [
            {"code": note.code, "severity": note.severity, "sentence": said(trace, note)}
            for note in sorted(notes, key=lambda note: _GRAVITY[note.severity])[:_MOST_NOTES]
        ],
        "left_out": {
            "inputs": max(0, len(files) - _MOST_INPUTS),
            "gpus": max(0, len(gpus) - _MOST_INPUTS),
            "steps": max(0, len(steps) - _MOST_STEPS),
            "notes": max(0, len(notes) - _MOST_NOTES),
        },
    }


def report_answer(loaded: Loaded, format: str, sections: Sequence[str] | None) -> Record:
    """The report: all sections that fit, the others by name with their length."""
    if format == "json":
        parts: dict[str, Any] = report(loaded.diagnosis)
        order = [*_FIRST, *(name for name in parts if name not in _FIRST)]
        parts = {name: parts[name] for name in order if name in parts}
    else:
        parts = _markdown_parts(loaded.diagnosis)
    chosen, left_out = _fitting(parts, sections)
    if format == "json":
        return {"format": "json", "report": chosen, "left_out": left_out}
    text = Lines(line for lines in chosen.values() for line in lines)
    return {"format": "markdown", "markdown": text, "left_out": left_out}


def _markdown_parts(diagnosis: Diagnosis) -> dict[str, Lines]:
    text = io.StringIO()
    engine.reporters()["markdown"].render(diagnosis, text, Page(_WIDTH))
    parts = {_HEAD: Lines()}
    name = _HEAD
    for line in text.getvalue().split("\n"):
        if line.startswith(_HEADING):
            name = line.removeprefix(_HEADING)
            parts[name] = Lines()
        parts[name].append(line)
    return parts


def _fitting(
    parts: dict[str, Any], sections: Sequence[str] | None
) -> tuple[dict[str, Any], list[Record]]:
    """The parts asked for as far as they fit; name and length of what does not."""
    for name in sections or ():
        if name not in parts:
            raise UsageError(
                f"the report has no section {name!r}", hint=f"its sections: {', '.join(parts)}"
            )
    wanted = parts if sections is None else {name: parts[name] for name in sections}
    chosen: dict[str, Any] = {}
    left_out: list[Record] = []
    room = MOST_CHARACTERS if sections is None else 3 * MOST_CHARACTERS
    for name, part in wanted.items():
        length = len(encoded({name: part}))
        if length <= max(room, _ALWAYS_FITS):
            chosen[name] = part
            room -= length
        else:
            left_out.append({"section": name, "characters": length})
    return chosen, left_out


def findings_answer(loaded: Loaded) -> Record:
    """Every finding in a few words, why rules were not checked, and how far some could see."""
    diagnosis = loaded.diagnosis
    full = report(diagnosis)
    return {
        "quality": full["quality"]["verdict"],
        "headline": full["headline"],
        "findings": [_short(found) for found in diagnosis.findings],
        "not_checked": [
            {"rule": one["rule"], "because": one["because"]} for one in full["not_checked"]
        ],
        "failed": [one["rule"] for one in full["failed"]],
        "num_clean": len(full["clean"]),
        "seen": full["seen"],
        "gains": "gains of several findings overlap and are never added",
    }


def _short(found: Finding) -> Record:
    gain = found.gain
    return without_nulls(
        {
            "finding": found.key,
            "rule": found.rule,
            "severity": found.severity,
            "confidence": found.confidence,
            "sentence": found.sentence,
            "saves_at_least_pct": _rounded(gain.pct(gain.low_ns)),
            "saves_likely_pct": _rounded(gain.pct(gain.likely_ns)),
            "saves_at_most_pct": _rounded(gain.pct(gain.high_ns)),
            "saves_basis": gain.basis,
            "explains": [one.key for one in found.folded] or None,
        }
    )


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 2)


def finding_answer(loaded: Loaded, key: str) -> Record:
    """One finding with evidence, thresholds, cost, gain, advice and caveats.

    The id of a rule stands for its first finding. UsageError for a key that no finding has.
    """
    rows = [one for row in report(loaded.diagnosis)["findings"] for one in (row, *row["explains"])]
    for name in ("key", "rule"):
        for row in rows:
            if row[name] == key:
                return _bounded(row)
    known = ", ".join(row["key"] for row in rows)
    raise UsageError(
        f"this recording has no finding {key!r}",
        hint=f"its findings: {known}" if known else "it has none at all",
    )


def _bounded(row: Record) -> Record:
    where = dict(row["where"])
    left_out = {}
    for name in ("gpus", "steps", "spans"):
        rows = where[name]
        where[name] = rows[:_MOST_SPANS]
        if len(rows) > _MOST_SPANS:
            left_out[name] = len(rows) - _MOST_SPANS
    explains = [{"finding": one["key"], "sentence": one["sentence"]} for one in row["explains"]]
    return {**row, "where": where, "explains": explains, "left_out": left_out}
