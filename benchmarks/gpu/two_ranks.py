"""Starts NCCL jobs of two ranks or more: on a GPU each where there are enough, else sharing one.

Two ranks on one GPU need NCCL 2.30 or newer (``NCCL_LIBRARY`` names the file where
PyTorch ships an older one). They take turns, or run side by side under NVIDIA's MPS, each
on half of the multiprocessors. Under MPS such jobs now and then hang, so each try has a
daemon of its own, and one that shows no life in time is ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path


def end_cleanly() -> None:
    """Let SIGTERM run what ``finally`` promises, so that no job outlives its measurement."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def environment(ranks: int = 2) -> dict[str, str]:
    """What ranks need that share a GPU; empty where each has its own."""
    if num_gpus() >= ranks:
        return {}
    shared = {"ALL_ON_GPU0": "1", "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_DEBUG": "WARN"}
    library = os.environ.get("NCCL_LIBRARY")
    return {**shared, "LD_PRELOAD": library} if library else shared


@contextmanager
def job(
    script: Sequence[str],
    variables: Mapping[str, str],
    alive: Path,
    *,
    ranks: int = 2,
    side_by_side: bool = False,
    patience_s: float = 40,
    tries: int = 2,
) -> Iterator[subprocess.Popen[bytes]]:
    """A job that has begun: ``alive``, which it makes, is there.

    ``side_by_side``: under MPS, if the ranks share a GPU. Raises TimeoutError if no try got
    so far. What is left of the job is ended at the end.
    """
    for _ in range(tries):
        with ExitStack() as stack:
            given = {**environment(ranks), **variables}
            if side_by_side and "ALL_ON_GPU0" in given:
                given.update(stack.enter_context(mps()))
            alive.unlink(missing_ok=True)
            running = _start([*launcher(ranks), *script], given, alive.with_suffix(".log"))
            stack.callback(_end, running)
            if _appears(alive, running, patience_s):
                yield running
                return
            print(f"{script[0]}: no life after {patience_s:.0f} s", flush=True)
    raise TimeoutError(f"{script[0]} did not start, see {alive.with_suffix('.log')}")


def launcher(ranks: int = 2) -> list[str]:
    """The command in front of a script, with a port of its own."""
    line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    return [*line, "--master-port", str(20000 + time.time_ns() // 1000 % 20000)]


def _start(
    line: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    # A file, not a pipe: whoever reads a pipe would wait for every process that holds it.
    with open(log, "ab") as output:
        return subprocess.Popen(
            line,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _end(running: subprocess.Popen[bytes]) -> None:
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(running.pid, ending)
        with suppress(subprocess.TimeoutExpired):
            running.wait(4)
            break
    # torchrun starts its ranks in sessions of their own and may have been killed before them.
    subprocess.run(["pkill", "-9", "-f", "benchmarks/gpu/jobs/"], check=False)


def _appears(path: Path, running: subprocess.Popen[bytes], patience_s: float) -> bool:
    end_at = time.monotonic() + patience_s
    while time.monotonic() < end_at and running.poll() is None:
        if path.exists():
            return True
        time.sleep(0.1)
    return path.exists()


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """A daemon of its own; the variables that put a process on half of the multiprocessors."""
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        pipes = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        if not _mps_control(["-d"], pipes):
            raise RuntimeError("nvidia-cuda-mps-control did not start")
        try:
            yield {**pipes, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
        finally:
            _mps_control([], pipes, "quit -t 1\n")


def _mps_control(arguments: Sequence[str], pipes: Mapping[str, str], text: str = "") -> bool:
    try:
        done = subprocess.run(
            ["nvidia-cuda-mps-control", *arguments],
            env={**os.environ, **pipes},
            input=text.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=8,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def num_gpus() -> int:
    """GPUs of this machine."""
    line = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    found = subprocess.run(line, capture_output=True, text=True, timeout=20, check=False)
    return len(found.stdout.split("\n")) - 1
