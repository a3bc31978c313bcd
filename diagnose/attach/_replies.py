"""An agent's answers, not trusted: the error of each refusal, the boundaries it tells."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from diagnose.attach.align import Mark
from diagnose.errors import (
    AttachError,
    NoStepsError,
    OutputError,
    ProfilerBusyError,
    RecordingError,
    StuckError,
    TorchMissingError,
    WindowLostError,
)

START_MISSED = "start-missed"
NO_STEPS = "no-steps"

_MOST_CHARACTERS = 400
_MOST = 1 << 63

_ERRORS: Mapping[str, tuple[type[RecordingError], str]] = {
    "busy": (
        AttachError,
        "another `diagnose` is attached to it; wait for that one to end",
    ),
    "profiler-busy": (
        ProfilerBusyError,
        "attach between its profiling windows, or switch the job's own profiler off",
    ),
    "main-thread-stuck": (
        StuckError,
        "it may hang in a collective or a kernel: look at the other ranks and try again",
    ),
    NO_STEPS: (
        NoStepsError,
        "is the job training? a step longer than the timeout needs a larger --timeout; without an "
        "optimizer give --seconds",
    ),
    START_MISSED: (WindowLostError, "the steps are very short; try again"),
    "torch-missing": (TorchMissingError, "attach once the job has imported torch"),
    "output": (
        OutputError,
        "give --output a folder that the job may write to, on a disk with room",
    ),
    "trace-lost": (
        WindowLostError,
        "another profiler took the session over; see that nothing else profiles the job",
    ),
    "job-profiler": (
        WindowLostError,
        "the job's own profiler wins; attach between its profiling windows",
    ),
    "aborted": (WindowLostError, "try again"),
}


def error_of(reply: Mapping[str, Any], who: str) -> RecordingError:
    """The error for a refusal. The agent's sentence is cut, not trusted."""
    code = reply.get("code")
    kind, hint = _ERRORS.get(str(code), (AttachError, "try again; if it stays, please report it"))
    sentence = str(reply.get("error") or code or "refused without a reason")[:_MOST_CHARACTERS]
    return kind(f"{who}: {sentence}", hint=hint)


def marks_of(reply: Mapping[str, Any]) -> list[Mark]:
    """The boundaries in an answer, as far as they are any."""
    marks = reply.get("marks")
    return [Mark(*mark) for mark in (marks if isinstance(marks, list) else []) if _is_mark(mark)]


def boundaries(reply: Mapping[str, Any], who: str) -> list[Mark]:
    """The boundaries in an answer, two at least, in order. Raises AttachError if they are not."""
    marks = reply.get("marks")
    found = marks_of(reply)
    in_order = all(before.step < after.step for before, after in pairwise(found))
    if not isinstance(marks, list) or len(found) < max(len(marks), 2) or not in_order:
        raise AttachError(
            f"{who}: the step boundaries that its agent told cannot be understood",
            hint="try again; if it stays, please report it",
        )
    return found


def _is_mark(mark: Any) -> bool:
    if not isinstance(mark, (list, tuple)) or len(mark) != 3:
        return False
    step, seq, unix_ns = mark
    return _is_count(step) and _is_count(unix_ns) and (seq is None or _is_count(seq))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST
