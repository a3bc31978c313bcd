"""The processes of a group: one, or two ranks that share a GPU under an MPS daemon of their own.

Started without torchrun, whose agent takes seconds to start and outlives a kill now and then.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.gpu import two_ranks
from benchmarks.gpu.jobs.pairs.catalogue import Group

RUN = Path(__file__).parent / "run.py"
_ROOT = Path(__file__).resolve().parents[4]
_GRACE_S = 3.0


class Ranks:
    """The running processes of a group, and what they say of their progress."""

    def __init__(self, processes: list[subprocess.Popen[bytes]], progress: Path) -> None:
        self._processes = processes
        self._progress = progress
        self._one_ended_at: float | None = None

    @classmethod
    @contextmanager
    def started(cls, group: Group, out: Path, *, dry: bool) -> Iterator[Ranks]:
        """Start them; at the end, end them. Raises RuntimeError if MPS does not start."""
        progress = out / f"{group.name}.progress"
        progress.unlink(missing_ok=True)
        with ExitStack() as stack:
            variables = _variables(group)
            if group.world > 1 and not dry:
                variables.update(two_ranks.environment())
                if "ALL_ON_GPU0" in variables:
                    variables.update(stack.enter_context(two_ranks.mps()))
            line = [sys.executable, str(RUN), "--out", str(out), "--group", group.name]
            line += group.pairs
            processes: list[subprocess.Popen[bytes]] = []
            stack.callback(_end, processes)
            for rank in range(group.world):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if group.world > 1 else {}
                log = out / "logs" / f"{group.name}.rank{rank}.log"
                processes.append(_start(line, {**variables, **own}, log))
            yield cls(processes, progress)

    def progress(self) -> str:
        """What rank 0 does: the pair, a space, what; empty before it has begun."""
        with suppress(OSError):
            return self._progress.read_text().strip("\n")
        return ""

    def status(self) -> int | None:
        """None while they run well; 0 if all have ended well, else the first bad status."""
        found = [process.poll() for process in self._processes]
        bad = [status for status in found if status]
        if bad:
            return bad[0]
        return 0 if all(status == 0 for status in found) else None


def _variables(group: Group) -> dict[str, str]:
    path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PYTHONPATH": os.pathsep.join(path), **group.environment}
    if group.world > 1:
        variables |= {
            "WORLD_SIZE": str(group.world),
            "LOCAL_WORLD_SIZE": str(group.world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(20000 + time.time_ns() // 1000 % 20000),
            # As torchrun sets it.
            "OMP_NUM_THREADS": "1",
        }
    return variables


def _start(line: list[str], variables: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    log.parent.mkdir(exist_ok=True)
    # A file, not a pipe: whoever reads a pipe would wait for every process that holds it.
    with open(log, "ab") as output:
        return subprocess.Popen(
            line,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End them and all that they started. A process in CUDA may need the hard way."""
    for ending in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, ending)
        end_at = time.monotonic() + _GRACE_S
        while time.monotonic() < end_at and any(one.poll() is None for one in processes):
            time.sleep(0.05)
