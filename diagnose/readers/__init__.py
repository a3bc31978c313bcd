"""Readers: from files to one immutable ``Trace``. ``read`` is the door.

A format is a module or package here that exports ``READER`` (a
``raw.FormatReader``); it is found by being here and chosen by content. Formats
return columns (``raw.RawFile``); ``assemble`` makes a ``Trace`` of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnose.errors import InputError, InputNotFoundError, InputTooLargeError, UsageError
from diagnose.schema import Detail
from diagnose.trace import Note, Trace

if TYPE_CHECKING:
    from diagnose.readers.assemble import Part
    from diagnose.readers.load import Outcome

__all__ = ["read"]


def read(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    detail: Detail = Detail.ALL,
    classify: str | os.PathLike[str] | None = None,
    memory_limit_bytes: int | None = None,
    progress: Callable[[int], None] | None = None,
    rank: int | None = None,
) -> Trace:
    """Read everything that was given into one trace.

    ``inputs``: a trace file, a folder, a glob, a recording folder, an fsspec URL
    or a list of them. ``classify``: a TOML file that extends the classification.
    ``memory_limit_bytes`` (default: 80 % of what is free) bounds the columns kept.
    ``progress`` is called with the stored bytes read since the last call. ``rank``
    says whose a single file is that does not say so itself.

    What cannot be read, of several inputs, becomes a note of severity "error", and
    the rest is read. Raises InputError (the first one) if nothing could be read,
    InputTooLargeError if the columns would exceed the limit, and UsageError.
    """
    from diagnose.names import Classifier
    from diagnose.readers import inputs as found_inputs
    from diagnose.readers import load, memory, parallel
    from diagnose.readers.assemble import join

    found = found_inputs.find(inputs)
    if rank is not None and (rank < 0 or len(found.traces) > 1):
        raise UsageError(
            f"rank {rank} was given for {len(found.traces)} files",
            hint="give one file with its rank, from 0; or name the files rank0.json, rank1.json",
        )
    pattern_file = None if classify is None else os.fspath(classify)
    Classifier.load(pattern_file)  # a wrong file is refused before any trace is read
    limit = memory.default_limit_bytes() if memory_limit_bytes is None else memory_limit_bytes
    workers = parallel.num_workers([trace.path for trace in found.traces])
    share = None if limit is None else limit // workers
    outcomes: list[Outcome] = []
    if workers > 1:
        jobs = [load.Job(t, detail, pattern_file, share, rank) for t in found.traces]
        outcomes = parallel.load_all(jobs, workers, progress)
    else:
        for trace in found.traces:
            left = None if limit is None else max(1, limit - _kept(outcomes))
            outcomes.append(load.load(load.Job(trace, detail, pattern_file, left, rank), progress))
    parts = [part for outcome in outcomes for part in outcome.parts]
    errors = [error for outcome in outcomes for error in outcome.errors]
    skipped = [path for outcome in outcomes for path in outcome.skipped]
    outcomes.clear()
    _refuse(parts, errors, skipped, limit)
    notes = [*found.notes, *map(_note, errors), *load.describe_skipped(skipped)]
    joined = join(parts, notes=notes, detail=detail)
    return replace(joined, observer=found.observer, missing_ranks=found.missing_ranks)


def _kept(outcomes: list[Outcome]) -> int:
    return sum(part.num_bytes for outcome in outcomes for part in outcome.parts)


def _refuse(
    parts: list[Part], errors: list[InputError], skipped: list[str], limit: int | None
) -> None:
    """Raise where there is nothing to return, or more than fits."""
    from diagnose.readers.load import HINT_TOO_LARGE

    for error in errors:
        if isinstance(error, InputTooLargeError):
            raise error
    if not parts:
        if errors:
            raise errors[0]
        raise InputNotFoundError(
            f"no trace: {len(skipped)} files were found, none of them is a trace "
            f"({', '.join(skipped[:4])})",
            hint="give a trace that torch.profiler wrote (export_chrome_trace)",
        )
    needed = sum(part.num_bytes for part in parts)
    if limit is not None and needed > limit:
        raise InputTooLargeError(
            f"the columns of {len(parts)} processes need {needed / 2**20:,.0f} MiB, more than the "
            f"limit of {limit / 2**20:,.0f} MiB",
            hint=HINT_TOO_LARGE,
        )


def _note(error: InputError) -> Note:
    hint = f" ({error.hint})" if error.hint else ""
    sentence = f"{error.message}; left out, figures over ranks are without it{hint}"
    return Note(error.code, "error", sentence)
