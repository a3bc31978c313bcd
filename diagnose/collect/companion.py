"""The child process of ``diagnose.record``: sensors, compression, manifest, for one rank.

``python -m diagnose.collect.companion`` reads two lines of JSON from its standard input:
who the rank is, and later what it recorded. If the input ends before the second, or the
parent does, nothing is left of the rank. All ranks of a job write into one folder, each
adding itself to the manifest under a lock, so the last one completes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnose import __version__, manifest
from diagnose.attach import observer
from diagnose.attach.discovery.discover import in_ranges
from diagnose.collect._compress import compress
from diagnose.collect._sensors import REFRESH_S
from diagnose.collect._sync_notes import KEY, sync_notes
from diagnose.errors import DiagnoseError, RecordingError
from diagnose.manifest import Manifest, RankFiles, RecordingNote, Window
from diagnose.telemetry import (
    Sampler,
    Source,
    TelemetryUnavailableError,
    gpu_of_rank,
    gpus_of_pid,
    open_source,
)

LOCK_NAME = ".recording.lock"
_LOOK_S = 1.0
_MOST_BYTES = 64 << 20
_LOCK_S = 60.0
_MISSING = "ranks-missing"


def main() -> int:
    """Serve one rank. Returns the exit status; what went wrong is on standard output."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(10)
    lines = _lines(os.getppid())
    try:
        introduction = next(lines, None)
        if introduction is None:
            return 0
        rank = _Rank(introduction)
        try:
            rank.start()
            said = next(lines, None)
            if said is not None:
                rank.finish(said)
        finally:
            rank.clear_up()
    except (DiagnoseError, OSError) as error:
        sys.stdout.write(f"{error}\n")
        return 1
    return 0


def _lines(parent: int) -> Iterator[dict[str, Any]]:
    """The messages of the parent, until it closes the pipe or is gone.

    A process that it forked may hold the pipe open for long, so its end alone does not tell.
    """
    data = b""
    while os.getppid() == parent and len(data) < _MOST_BYTES:
        if not select.select([0], [], [], _LOOK_S)[0]:
            continue
        piece = os.read(0, 1 << 16)
        if not piece:
            return
        data += piece
        while b"\n" in data:
            line, _, data = data.partition(b"\n")
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    yield message


class _Rank:
    """One rank's part of the recording."""

    def __init__(self, introduction: Mapping[str, Any]) -> None:
        self._about = introduction
        self._folder = Path(introduction["folder"])
        self._rank = int(introduction["rank"])
        self._notes: list[RecordingNote] = []
        self._source: Source | None = None
        self._sampler: Sampler | None = None
        self._gpu: int | None = None
        self._own = ["telemetry.csv", "telemetry.csv.part"]
        """What is taken away again if the rank does not come to its end."""
        self._whole = False

    def _file(self, suffix: str) -> Path:
        return self._folder / f"rank{self._rank:05d}.{suffix}"

    def start(self) -> None:
        """Begin to read the sensors, if there are any."""
        if not self._about.get("telemetry"):
            return
        try:
            self._source = open_source()
            self._gpu = self._find_gpu(self._source)
            if self._gpu is not None:
                sampler = Sampler(self._source, {self._gpu: self._file("telemetry.csv")})
                sampler.start()
                self._sampler = sampler
        except (TelemetryUnavailableError, RecordingError) as error:
            self._note("telemetry-missing", f"no telemetry: {error}")

    def _find_gpu(self, source: Source) -> int | None:
        uuid = self._about.get("gpu_uuid")
        found = gpu_of_rank(
            source.gpus(),
            gpu_uuid=uuid if isinstance(uuid, str) else None,
            cuda_device=None,
            environ=os.environ,
            computes_on=gpus_of_pid(source, int(self._about["pid"])),
            mig_devices=source.mig_devices(),
        )
        if found.device is None:
            self._note(
                "telemetry-missing",
                f"no telemetry of rank {self._rank}: which GPU it uses is unknown, {found.reason}",
            )
            return None
        return found.device.index

    def finish(self, said: Mapping[str, Any]) -> None:
        """Write all that belongs to this rank, and enter it in the manifest."""
        if self._sampler is not None:
            # The window may have ended just now: what sensors say of its end is yet to come.
            time.sleep(REFRESH_S)
            self._stop_sampling()
        environment = dict(said.get("environment") or {})
        if self._source is not None and self._gpu is not None:
            described = self._source.describe(self._gpu)
            environment["gpu"] = {**described, **(environment.get("gpu") or {})}
        env = self._write_environment(environment)
        trace = compress(self._file("trace.json"))
        reply = dict(said.get("reply") or {})
        execution_trace = self._check_of_synchronisation(reply)
        # The export came after the steps that follow the window, and held none of them up.
        marks = observer.rank_marks(said.get("marks") or (), {**reply, "export_ns": 0})
        times = observer.step_times([marks])[0] if marks is not None else None
        gpu = environment.get("gpu")
        ignored = [str(name) for name in reply.get("ignored") or ()]
        if ignored:
            self._note("option-ignored", f"this PyTorch does not know {', '.join(ignored)}")
        files = RankFiles(
            self._rank,
            trace.name,
            telemetry=self._existing("telemetry.csv"),
            env=env.name,
            execution_trace=execution_trace,
            host=socket.gethostname(),
            pid=int(self._about["pid"]),
            local_rank=self._about.get("local_rank"),
            gpu_uuid=gpu.get("uuid") if isinstance(gpu, dict) else None,
            route="in-code",
            step_times=times,
        )
        enter(self._folder, files, self._of_job(reply), self._notes)
        self._whole = True

    def _check_of_synchronisation(self, reply: Mapping[str, Any]) -> str | None:
        """The name of the execution trace, compressed; what is missing becomes a note."""
        if not self._about.get(KEY):
            return None
        answer: Any = reply.get(KEY)
        name = None
        if isinstance(answer, dict) and "path" in answer:
            try:
                name = compress(self._file("execution_trace.json")).name
            except OSError as error:
                answer = {**answer, "error": str(error)}
                del answer["path"]
        self._notes += sync_notes({self._rank: answer})
        return name

    def _write_environment(self, environment: Mapping[str, Any]) -> Path:
        """Write a new file: neither over one that is there nor through a link."""
        env = self._file("env.json")
        try:
            with open(env, "x", encoding="utf-8") as file:
                self._own.append("env.json")
                file.write(json.dumps(environment, indent=1) + "\n")
        except FileExistsError:
            raise RecordingError(
                f"{env} exists already and is not touched",
                hint="record into a new folder, which nobody else can write to",
            ) from None
        return env

    def _existing(self, suffix: str) -> str | None:
        path = self._file(suffix)
        return path.name if path.is_file() else None

    def _of_job(self, reply: Mapping[str, Any]) -> Manifest:
        marks = reply.get("marks") or [[None]]
        return Manifest(
            ranks=(),
            world_size=self._about.get("world_size"),
            started_unix_ns=reply.get("started_unix_ns"),
            tool_version=__version__,
            window=Window(steps=self._about.get("steps"), clock="step", start=marks[0][0]),
        )

    def _stop_sampling(self) -> None:
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            for sentence in sampler.stop().notes:
                self._note("telemetry", sentence)

    def _note(self, code: str, sentence: str) -> None:
        self._notes.append(RecordingNote(code, "info", sentence))

    def clear_up(self) -> None:
        """Let go of the driver; leave only what is whole."""
        self._stop_sampling()
        if self._source is not None:
            self._source.close()
        if not self._whole:
            # The trace itself stays: it can be read without the rest.
            for suffix in self._own:
                self._file(suffix).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._folder.rmdir()


def enter(folder: Path, rank: RankFiles, job: Manifest, notes: list[RecordingNote]) -> Manifest:
    """Add a rank to the folder's manifest. Returns what it is then.

    Raises InputError if the manifest that is there cannot be read, RecordingError if it
    belongs to another job, or is locked for long.
    """
    with _locked(folder):
        path = folder / manifest.FILE_NAME
        before = manifest.read(path) if path.exists() else job
        if before.world_size != job.world_size:
            raise RecordingError(
                f"{folder} holds ranks of a job of {before.world_size} processes, "
                f"and rank {rank.rank} belongs to one of {job.world_size}",
                hint="give each job a folder of its own",
            )
        ranks = sorted([*before.ranks, rank], key=lambda one: one.rank)
        if len({one.rank for one in ranks}) < len(ranks):
            raise RecordingError(
                f"{folder} holds a rank {rank.rank} already", hint="give each job a folder"
            )
        starts = [ns for ns in (before.started_unix_ns, job.started_unix_ns) if ns is not None]
        absent = manifest.missing([one.rank for one in ranks], job.world_size)
        kept = [note for note in before.notes if note.code != _MISSING]
        kept += [note for note in notes if note not in kept]
        if absent:
            sentence = (
                f"of {job.world_size} ranks {in_ranges(absent)} have not finished their recording, "
                "and figures over ranks are without them"
            )
            kept.append(RecordingNote(_MISSING, "warning", sentence))
        content = replace(
            before,
            ranks=tuple(ranks),
            started_unix_ns=min(starts, default=None),
            observer=manifest.observer_of(one.step_times for one in ranks),
            missing_ranks=absent,
            notes=tuple(kept),
        )
        manifest.write(content, folder)
        if not absent:
            (folder / LOCK_NAME).unlink(missing_ok=True)
    return content


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. Raises RecordingError after a minute."""
    deadline = time.monotonic() + _LOCK_S
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    handle = os.open(folder / LOCK_NAME, flags, 0o600)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RecordingError(
                        f"{folder / LOCK_NAME} is held by another process for {_LOCK_S:g} s",
                        hint="see which process hangs (`fuser`), then merge the traces by hand",
                    ) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(handle)


if __name__ == "__main__":
    sys.exit(main())
