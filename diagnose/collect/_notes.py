"""What a recording has to say of itself: ranks left out, starts apart, no steps."""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.attach import align
from diagnose.attach.discovery.discover import in_ranges
from diagnose.attach.session import marks_of
from diagnose.collect._window import Files
from diagnose.manifest import Manifest, RecordingNote


def recording_notes(content: Manifest, files: Files) -> Iterator[RecordingNote]:
    """The notes of the window, then those that its files add up to."""
    yield from files.notes
    for error in files.failures.values():
        sentence = f"{error.message}; not recorded, figures over ranks are without it"
        yield RecordingNote("rank-not-recorded", "warning", sentence)
    elsewhere = len(content.missing_ranks) - len(files.failures)
    if elsewhere > 0:
        yield RecordingNote(
            "ranks-missing",
            "warning",
            f"of {content.world_size} ranks {in_ranges(content.missing_ranks)} were not recorded, "
            "and figures over ranks are without them: record them on their own hosts and join the "
            "folders with `diagnose merge`",
        )
    yield from _of_window(files)


def _of_window(files: Files) -> Iterator[RecordingNote]:
    if files.taken is None:
        return
    if files.taken.start.steps is None:
        yield RecordingNote(
            "no-steps",
            "warning",
            "no optimizer step was seen, so the window was taken by the clock: ranks may be at "
            "different steps, and there are no figures per step",
        )
        return
    alignment = align.check([marks_of(reply) for reply in files.taken.replies.values()])
    if alignment.aligned is False:
        yield RecordingNote(
            "ranks-not-aligned",
            "warning",
            f"{alignment.sentence}, so figures over ranks compare what does not belong together: "
            "record again",
        )
    elif alignment.aligned is None and files.taken.start.clock == "unix":
        yield RecordingNote(
            "start-by-clock",
            "info",
            f"{alignment.sentence}: they began at the same moment instead, by the clocks of their "
            "hosts, and may be a step apart",
        )
