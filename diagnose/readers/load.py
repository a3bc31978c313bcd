"""One input file, read and assembled: the work that may run in another process."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from diagnose import readers
from diagnose.errors import (
    DamagedInputError,
    EmptyInputError,
    InputError,
    InputTooLargeError,
    InternalReadError,
    NotATraceError,
)
from diagnose.names import Classifier
from diagnose.readers import environment, execution_trace, inputs, telemetry_csv
from diagnose.readers.assemble import Origin, Part, assemble_file
from diagnose.readers.containers import ByteStream, open_streams
from diagnose.readers.foreign import describe_foreign
from diagnose.readers.inputs import TraceFile
from diagnose.readers.raw import Columns, ExecutionTrace, FormatReader, ReadOptions
from diagnose.schema import Detail
from diagnose.trace import Note

HINT_TOO_LARGE = (
    "keep less with `--only gpu` (or `--only launches`), give fewer ranks, or use a machine with "
    "more memory"
)

_BLANKS = b" \t\r\n\xef\xbb\xbf"  # and the mark of UTF-8


@dataclass(frozen=True)
class Job:
    """A file with what decides how it is read; picklable."""

    trace: TraceFile
    detail: Detail = Detail.ALL
    classify: str | None = None
    memory_limit_bytes: int | None = None
    user_rank: int | None = None


@dataclass
class Outcome:
    """What came of a job. ``skipped``: found, but no trace."""

    parts: list[Part] = field(default_factory=list)
    errors: list[InputError] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def load(job: Job, progress: Callable[[int], None] | None = None) -> Outcome:
    """Read all traces of one file. What cannot be read is in the outcome, not raised."""
    outcome = Outcome()
    classifier = Classifier.load(job.classify)
    options = ReadOptions(
        job.detail,
        classifier.host_prefixes,
        job.memory_limit_bytes,
        progress,
        function_ids=_wants_accesses(job),
    )
    try:
        for member, stream in _streams(job.trace.path):
            if member != job.trace.path and not inputs.could_be_trace(member):
                continue
            try:
                raw = _reader(stream, member).read(stream, member, options)
                origin = _origin(job, first=not outcome.parts)
                outcome.parts += assemble_file(raw, origin, classifier, job.detail)
            except InputError as error:
                _failed(outcome, error, member, job.trace.found or member != job.trace.path)
            except MemoryError:
                outcome.errors.append(_too_large(member))
            except Exception as error:  # noqa: BLE001 - a defect of ours costs this file only
                outcome.errors.append(_defect(member, error))
            finally:
                stream.close()
    except InputError as error:
        _failed(outcome, error, job.trace.path, job.trace.found)
    return outcome


def _streams(path: str) -> Iterator[tuple[str, ByteStream]]:
    """Streams of a file, with the system's errors as ours."""
    try:
        yield from open_streams(path)
    except MemoryError:
        raise _too_large(path) from None
    except OSError as error:
        raise InputError(
            f"{path}: reading failed ({error.strerror or error})",
            hint="check the disk or the connection, and try again",
        ) from None


def _too_large(path: str) -> InputTooLargeError:
    return InputTooLargeError(f"{path}: memory ran out", hint=HINT_TOO_LARGE)


def _defect(path: str, error: Exception) -> InternalReadError:
    failure = InternalReadError(
        f"{path}: diagnose itself failed while reading it: {type(error).__name__}: {error}",
        hint="this is a bug; please report it with the output of the same command and --debug",
    )
    failure.__cause__ = error
    return failure


def _failed(outcome: Outcome, error: InputError, path: str, found: bool) -> None:
    if found and isinstance(error, NotATraceError) and not inputs.meant_as_trace(path):
        outcome.skipped.append(path)
    else:
        outcome.errors.append(error)


def _origin(job: Job, *, first: bool) -> Origin:
    trace, notes = job.trace, list[Note]()
    content: dict[str, Any] = {}
    samples: Columns | None = None
    touched: ExecutionTrace | None = None
    if trace.environment is not None:
        content, said = environment.read(trace.environment)
        notes += said
    if trace.telemetry is not None and first:
        samples, said = telemetry_csv.read(trace.telemetry)
        notes += said
    if trace.execution_trace is not None and first and _wants_accesses(job):
        touched, said = execution_trace.read(trace.execution_trace)
        notes += said
    return Origin(
        trace.manifest_rank,
        job.user_rank,
        trace.world_size,
        content,
        samples,
        tuple(notes),
        trace.host_intervals,
        trace.gpu_uuid,
        touched,
    )


def _wants_accesses(job: Job) -> bool:
    """Operators are tied to an execution trace only where all of them are kept."""
    return job.trace.execution_trace is not None and job.detail >= Detail.ALL


def _reader(stream: ByteStream, path: str) -> FormatReader:
    head = stream.peek()
    _refuse_blank(stream, head, path)
    for reader in _format_readers():
        if reader.sniff(head):
            return reader
    foreign = describe_foreign(head)
    if foreign:
        raise NotATraceError(f"{path}: {foreign[0]}, not a trace", hint=foreign[1])
    raise NotATraceError(
        f"{path}: in no known format (it begins with {_shown(head)})",
        hint="give a trace that torch.profiler wrote (export_chrome_trace)",
    )


def _refuse_blank(stream: ByteStream, head: bytes, path: str) -> None:
    if head.strip(_BLANKS):
        return
    if stream.damage:
        raise DamagedInputError(
            f"{path}: damaged or cut off before any of its text ({stream.damage}, at byte"
            f" {stream.truncated_at_byte} of the file)",
            hint="copy the file again, or record again",
        )
    raise EmptyInputError(
        f"{path}: empty, " + ("nothing but blanks" if head else "what is packed in it has no byte"),
        hint="record again; the job may have been killed",
    )


@cache
def _format_readers() -> tuple[FormatReader, ...]:
    """Every ``READER`` in ``diagnose.readers``: being there is all a format needs."""
    modules = sorted(info.name for info in pkgutil.iter_modules(readers.__path__))
    found = [
        getattr(importlib.import_module(f"{readers.__name__}.{name}"), "READER", None)
        for name in modules
    ]
    return tuple(reader for reader in found if reader is not None)


def _shown(head: bytes) -> str:
    text = repr(head[:24])[1:]
    return text + ("..." if len(head) > 24 else "")


def describe_skipped(skipped: list[str]) -> list[Note]:
    """Files that lay beside traces and are none."""
    if not skipped:
        return []
    shown = ", ".join(skipped[:4]) + (", ..." if len(skipped) > 4 else "")
    sentence = f"files found that are no traces, left out: {len(skipped)} ({shown})"
    return [Note("not-a-trace", "info", sentence, len(skipped))]
