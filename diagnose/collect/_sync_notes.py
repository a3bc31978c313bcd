"""What a recording says of its check for missing synchronisation, where it is not complete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from diagnose.attach.discovery.discover import in_ranges
from diagnose.manifest import RecordingNote

KEY = "check_sync"
"""Of the protocol: in the request the file of the execution trace, in the reply what came of it."""

OVER_STORE = "it was reached over a store, which sends traces alone"
LOST = "it had not arrived when the recording was stopped"
BY_DAEMON = "it was recorded through Kineto's daemon, which knows no such check"

_Severity = Literal["info", "warning"]
_Note = tuple[str, _Severity, str]
_UNKNOWN = "its agent is of an older torch-diagnose: start the job again with this one"
_BLIND = "so what memory its operators use, and missing synchronisation, cannot be told"
_GUESSED = "so which event a stream waits for is not recorded, and fewer hazards can be told"
_REASONS = {
    "no-cuda": "the job uses no CUDA there",
    "torch-too-old": "its PyTorch cannot call back (2.4 or newer can)",
}


def sync_notes(said: Mapping[int, Any]) -> list[RecordingNote]:
    """The notes of all ranks, equal ones together.

    ``said``, by rank: the agent's own answer (None: it gave none), or a sentence why not.
    """
    ranks: dict[_Note, list[int]] = {}
    for rank, answer in said.items():
        for note in _of_rank(answer):
            ranks.setdefault(note, []).append(rank)
    notes = []
    for (code, severity, sentence), those in ranks.items():
        who = f"rank {those[0]}" if len(those) == 1 else f"ranks {in_ranges(sorted(those))}"
        notes.append(RecordingNote(code, severity, f"{who}: {sentence}"))
    return notes


def _of_rank(answer: Any) -> Iterator[_Note]:
    if isinstance(answer, str):
        yield _missing(answer)
        return
    if not isinstance(answer, dict):
        yield _missing(_UNKNOWN)
        return
    if "path" not in answer:
        yield _missing(str(answer.get("error") or "no reason was given")[:300])
    if answer.get("events_annotated") is not True:
        reason = str(answer.get("reason"))
        why = _REASONS.get(reason, "annotating them has failed")
        severity: _Severity = "info" if reason == "no-cuda" else "warning"
        yield "events-not-annotated", severity, f"{why}, {_GUESSED}"


def _missing(why: str) -> _Note:
    return "execution-trace-missing", "warning", f"no execution trace ({why}), {_BLIND}"
