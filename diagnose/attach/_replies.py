"""What an agent's refusal means for a person: the error and the remedy of each code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
