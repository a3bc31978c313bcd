"""What a recording says of its check for missing synchronisation."""

from __future__ import annotations

from typing import Any

import pytest

from diagnose.collect._sync_notes import BY_DAEMON, sync_notes

WHOLE = {"path": "/x/et.json", "bytes": 5, "events_annotated": True, "reason": ""}
BLIND = "so what memory its operators use, and missing synchronisation, cannot be told"
GUESSED = "so which event a stream waits for is not recorded, and fewer hazards can be told"


def test_what_is_whole_needs_no_word() -> None:
    assert sync_notes({0: WHOLE, 1: WHOLE}) == []


@pytest.mark.parametrize(
    ("reason", "severity", "why"),
    [
        ("no-cuda", "info", "the job uses no CUDA there"),
        ("torch-too-old", "warning", "its PyTorch cannot call back (2.4 or newer can)"),
        ("failed", "warning", "annotating them has failed"),
        (None, "warning", "annotating them has failed"),
        ("\x1b[2J", "warning", "annotating them has failed"),
    ],
)
def test_events_that_were_not_annotated(reason: Any, severity: str, why: str) -> None:
    [note] = sync_notes({3: {**WHOLE, "events_annotated": False, "reason": reason}})
    assert (note.code, note.severity) == ("events-not-annotated", severity)
    assert note.sentence == f"rank 3: {why}, {GUESSED}"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "its agent is of an older torch-diagnose: start the job again with this one"),
        (7, "its agent is of an older torch-diagnose: start the job again with this one"),
        (BY_DAEMON, "it was recorded through Kineto's daemon, which knows no such check"),
        ({"error": "no space", "events_annotated": True}, "no space"),
        ({"events_annotated": True}, "no reason was given"),
        ({"error": "x" * 999, "events_annotated": True}, "x" * 300),
    ],
)
def test_an_execution_trace_that_is_missing(answer: Any, why: str) -> None:
    [note] = sync_notes({0: answer})
    assert (note.code, note.severity) == ("execution-trace-missing", "warning")
    assert note.sentence == f"rank 0: no execution trace ({why}), {BLIND}"


def test_ranks_that_have_the_same_to_say_share_a_note() -> None:
    without = {**WHOLE, "events_annotated": False, "reason": "no-cuda"}
    notes = sync_notes({2: without, 0: without, 1: without, 5: None, 7: WHOLE})
    assert [note.sentence.partition(":")[0] for note in notes] == ["ranks 0-2", "rank 5"]
