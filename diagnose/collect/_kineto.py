"""The route without an agent: Kineto's own daemon protocol, for jobs started for it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from diagnose.attach.discovery.discover import RankProcess
from diagnose.attach.discovery.processes import Process
from diagnose.attach.kineto import daemon
from diagnose.attach.session import Wanted
from diagnose.collect._compress import compress_all
from diagnose.collect._folder import RecordingFolder
from diagnose.collect._reach import Reach
from diagnose.collect._sync_notes import BY_DAEMON, sync_notes
from diagnose.collect._window import Files, Options
from diagnose.errors import AttachError, UsageError
from diagnose.manifest import RankFiles, RecordingNote

_TAIL_BYTES = 1 << 16
_BEGIN = re.compile(rb'"name"\s*:\s*"Iteration Start[^}]*?"ts"\s*:\s*([0-9]+(?:\.[0-9]+)?)')
_END = re.compile(rb'"name"\s*:\s*"Record Window End[^}]*?"ts"\s*:\s*([0-9]+(?:\.[0-9]+)?)')


def record(
    ranks: Sequence[RankProcess],
    folder: RecordingFolder,
    wanted: Wanted,
    options: Options,
    how: Reach,
    files: Files,
) -> None:
    """One window of all ranks. Raises AttachError if none of them gave a trace."""
    if wanted.at_step is not None:
        raise UsageError("Kineto's daemon cannot begin at a step", hint="leave --at-step out")
    numbered = {rank.pid: _number(rank, place) for place, rank in enumerate(ranks)}
    targets = {Process(rank.pid): folder.file(numbered[rank.pid], "trace.json") for rank in ranks}
    for process in targets:
        if not daemon.listens(process):
            raise AttachError(
                f"process {process.pid} was not started for Kineto's daemon",
                hint="start the job with KINETO_USE_DAEMON=1, or leave --route out",
            )
    outcome = daemon.record(
        targets,
        steps=wanted.steps,
        seconds=wanted.seconds,
        options=daemon.Options(options.shapes, options.stacks, options.memory),
        timeout_s=max(how.timeout_s, 120.0),
        progress=how.say,
    )
    files.failures |= {f"process {pid}": e for pid, e in outcome.failures.items()}
    if not outcome.traces:
        raise next(iter(outcome.failures.values()))
    began = [ns for ns in outcome.started_unix_ns.values() if ns is not None]
    files.started_unix_ns = min(began, default=None)
    if wanted.steps is not None:
        lengths = {pid: window_ns(trace) for pid, trace in outcome.traces.items()}
        files.notes += apart(outcome.started_unix_ns, lengths, wanted.steps)
    packed = _packed(outcome.traces, how)
    for rank in ranks:
        if rank.pid in packed:
            files.ranks.append(
                RankFiles(
                    numbered[rank.pid],
                    packed[rank.pid].name,
                    host=rank.host,
                    pid=rank.pid,
                    local_rank=rank.local_rank,
                    route="kineto-daemon",
                )
            )
    if options.check_sync:
        files.notes += sync_notes({rank.rank: BY_DAEMON for rank in files.ranks})
    begin = "at an iteration that each counts for itself"
    if wanted.steps is None:
        begin = "within milliseconds of each other"
    files.notes.append(
        RecordingNote(
            "kineto-daemon",
            "info",
            f"recorded through Kineto's daemon: ranks begin {begin}, and versions, sensor "
            "readings and step times around the window are not recorded",
        )
    )


def apart(
    started_unix_ns: Mapping[int, int | None], lengths_ns: Mapping[int, int | None], steps: int
) -> list[RecordingNote]:
    """A warning if windows of so many steps began more than a step apart, by pid."""
    starts = [ns for ns in started_unix_ns.values() if ns is not None]
    lengths = [ns for ns in lengths_ns.values() if ns]
    if len(starts) < 2 or not lengths:
        return []
    # The shortest: a window that also waits for something is longer than its steps.
    step_ns = min(lengths) / steps
    skew_ns = max(starts) - min(starts)
    if skew_ns <= step_ns:
        return []
    sentence = (
        f"the ranks began {skew_ns / 1e6:.1f} ms apart, and a step takes {step_ns / 1e6:.1f} ms: "
        "they recorded different steps, so figures over ranks compare what does not belong "
        "together: record with --seconds, or by another route"
    )
    return [RecordingNote("ranks-not-aligned", "warning", sentence)]


def window_ns(trace: Path) -> int | None:
    """How long the window of a plain Kineto trace is, None if it does not say: both at its end."""
    with suppress(OSError), open(trace, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        tail = file.read()
        begin, end = _BEGIN.search(tail), _END.search(tail)
        if begin is not None and end is not None:
            return round((float(end[1]) - float(begin[1])) * 1000)
    return None


def _number(rank: RankProcess, place: int) -> int:
    return place if rank.rank is None else rank.rank


def _packed(traces: dict[int, Path], how: Reach) -> dict[int, Path]:
    done = compress_all(
        list(traces.values()), lambda n: how.say(f"compressing traces: {n} of {len(traces)}")
    )
    return dict(zip(traces, done, strict=True))
