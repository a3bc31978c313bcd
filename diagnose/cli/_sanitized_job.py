"""Starts a job under the sanitizer, and reads what its processes wrote: for ``check-sync``."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnose.agent.sanitizer import FOLDER, SECONDS, STEPS
from diagnose.attach.launching.launch import Launched, environment
from diagnose.cli._watched_job import say
from diagnose.errors import DiagnoseError, RecordingError, UsageError
from diagnose.readers.sanitizer import Race
from diagnose.readers.sanitizer_lines import Watched, read_folder

_POLL_S = 1.0
_LINGERS_S = 60.0
_LATE_S = 60.0
_LEFTOVER_S = 10.0
_OWN_END = ("steps", "seconds")


@dataclass(frozen=True)
class Checked:
    """What came of the job. ``status`` is 0 where it was ended because it was enough."""

    status: int
    processes: tuple[Watched, ...]
    races: tuple[Race, ...]

    @property
    def watched(self) -> tuple[Watched, ...]:
        """The processes that used a GPU."""
        return tuple(one for one in self.processes if one.launches)


def refuse_unwritable(output: Path | None) -> None:
    """UsageError, before hours of a job, if the file cannot be written after it."""
    if output is None:
        return
    if output.is_dir() or not os.access(output.resolve().parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"cannot write {output}",
            hint="give --output a file in a folder that exists and that you may write to",
        )


def run_sanitized(command: Sequence[str], steps: int, seconds: int) -> Checked:
    """Run the job until its ranks have made the steps or the time is over."""
    # What a process that outlives the job still writes is nobody's concern.
    with tempfile.TemporaryDirectory(prefix="diagnose-check-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        variables = {"TORCH_CUDA_SANITIZER": "1", FOLDER: name, STEPS: str(steps)}
        variables[SECONDS] = str(seconds)
        job = _start(command, variables)
        over, ended = threading.Event(), threading.Event()
        ends = threading.Thread(target=_end, args=(job, folder, seconds, over, ended), daemon=True)
        ends.start()
        try:
            status = job.wait()
        finally:
            over.set()
        processes, races = read_folder(folder)
        if ended.is_set() or any(one.ended in _OWN_END for one in processes):
            job.stop(_LEFTOVER_S)  # what its ranks would have ended themselves, or left behind
            processes, races = read_folder(folder)
        return Checked(0 if ended.is_set() else status, processes, races)


def _start(command: Sequence[str], variables: dict[str, str]) -> Launched:
    try:
        return Launched.start(command, environment(os.environ, variables))
    except UsageError as problem:
        raise UsageError(
            problem.message,
            hint="give the command after `--`, as: diagnose check-sync -- python train.py",
        ) from None


def _end(
    job: Launched, folder: Path, seconds: int, over: threading.Event, ended: threading.Event
) -> None:
    """End a job that has been watched enough and does not end by itself: something in it hangs."""
    before, quiet_s, deadline = (0, 0), 0.0, None
    while not over.wait(_POLL_S):
        now = _progress(folder)
        if deadline is None and any(folder.glob("*.begin")):
            deadline = time.monotonic() + seconds + _LATE_S
        quiet_s = quiet_s + _POLL_S if now == before and now[0] else 0.0
        before = now
        if quiet_s < _LINGERS_S and (deadline is None or time.monotonic() < deadline):
            continue
        what = "the time is over" if quiet_s < _LINGERS_S else "the check is done"
        say(f"{what}, and the job does not end by itself: it is ended")
        ended.set()
        job.stop()
        return


def _progress(folder: Path) -> tuple[int, int]:
    """How many ranks have ended, and how much all of them wrote."""
    ends = sum(1 for _ in folder.glob("*.end"))
    size = 0
    for path in folder.glob("*.jsonl"):
        try:
            size += path.stat().st_size
        except OSError:
            continue
    return ends, size


def verdict(checked: Checked, steps: int) -> DiagnoseError | None:
    """Why the check says nothing, or less than was asked for; None where it is whole."""
    if not checked.watched:
        return _unwatched(checked)
    launches = sum(one.launches for one in checked.watched)
    if sum(one.failures for one in checked.watched) >= launches:
        return RecordingError(
            f"PyTorch's sanitizer failed at all of {launches:,} operators",
            hint="try another version of PyTorch, or record with `diagnose attach --check-sync`",
        )
    if checked.status and not all(one.ended in _OWN_END for one in checked.watched):
        done = max(one.steps for one in checked.watched)
        races = "missing synchronisation was" if checked.races else "no missing synchronisation was"
        return RecordingError(
            f"the job ended with status {checked.status} after {done} of {steps} steps; {races} "
            "seen until then",
            hint="see what the job itself said above",
        )
    return None


def _unwatched(checked: Checked) -> DiagnoseError:
    unusable = {one.ended: one.torch for one in checked.processes}
    if "missing" in unusable:
        return UsageError(
            f"PyTorch {unusable['missing']} has no CUDA sanitizer", hint="use PyTorch 2 or newer"
        )
    if "unknown" in unusable:
        return RecordingError(
            f"the sanitizer of PyTorch {unusable['unknown']} is not one that this version knows",
            hint="let it stop at its first finding: TORCH_CUDA_SANITIZER=1 python train.py",
        )
    # A process that was killed does not say whether it could have used a GPU.
    said = {one.gpu_available for one in checked.processes} - {None}
    if said == {False}:
        return UsageError(
            "this machine has no GPU that PyTorch can use, and the sanitizer checks GPU work only",
            hint="run the check where the job trains",
        )
    if said:
        return UsageError(
            f"no process of the job used a GPU (it ended with status {checked.status})",
            hint="check a command that trains on one",
        )
    if checked.status:
        return RecordingError(
            f"the job ended with status {checked.status} before it used PyTorch on a GPU",
            hint="see what the job itself said above",
        )
    return RecordingError(
        f"no process of the job reported what it did (it ended with status {checked.status})",
        hint="the agent is not loaded by `python -I` or `-E`, in a container with another file "
        "system, or without PyTorch",
    )
