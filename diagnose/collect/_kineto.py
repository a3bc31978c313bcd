"""The route without an agent: Kineto's own daemon protocol, for jobs started for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diagnose.attach.discovery.discover import RankProcess
from diagnose.attach.discovery.processes import Process
from diagnose.attach.kineto import daemon
from diagnose.attach.session import Wanted
from diagnose.collect._compress import compress_all
from diagnose.collect._folder import RecordingFolder
from diagnose.collect._reach import Reach
from diagnose.collect._window import Files, Options
from diagnose.errors import AttachError, UsageError
from diagnose.manifest import RankFiles, RecordingNote


def record(
    ranks: Sequence[RankProcess],
    folder: RecordingFolder,
    wanted: Wanted,
    options: Options,
    how: Reach,
) -> Files:
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
    files = Files(failures={f"process {pid}": e for pid, e in outcome.failures.items()})
    if not outcome.traces:
        raise next(iter(outcome.failures.values()))
    began = [ns for ns in outcome.started_unix_ns.values() if ns is not None]
    files.started_unix_ns = min(began, default=None)
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
    files.notes.append(
        RecordingNote(
            "kineto-daemon",
            "info",
            "recorded through Kineto's daemon: ranks begin within milliseconds of each other, and "
            "versions, sensor readings and step times around the window are not recorded",
        )
    )
    return files


def _number(rank: RankProcess, place: int) -> int:
    return place if rank.rank is None else rank.rank


def _packed(traces: dict[int, Path], how: Reach) -> dict[int, Path]:
    done = compress_all(
        list(traces.values()), lambda n: how.say(f"compressing traces: {n} of {len(traces)}")
    )
    return dict(zip(traces, done, strict=True))
