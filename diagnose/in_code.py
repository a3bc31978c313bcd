"""``diagnose.record``: a window recorded by the training code itself.

In the training process only the standard library and torch run: the agent's window. A
child process (``diagnose.collect.companion``) reads the sensors, compresses the trace
and writes the manifest; it ends when this process does. Nothing but wrong arguments
raises: what else goes wrong is said once, through the logger ``diagnose``.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

from diagnose.agent import rank as agent_rank
from diagnose.agent.in_process import LocalWindow
from diagnose.errors import UsageError

AFTER_BOUNDARIES = 21
"""Boundaries after the window that are waited for, where ``step()`` is called.

The trace is written after them; ``manifest.observer_of`` needs ten intervals at least.
"""
AFTER_LIMIT_S = 20.0

_WAIT_S = 120.0
_OPTIMIZER_FILE = os.path.join("torch", "optim", "optimizer.py")  # noqa: PTH118
_PACKAGE_ROOT = Path(__file__).resolve().parents[1]
_log = logging.getLogger("diagnose")


def record(
    output: str | os.PathLike[str],
    *,
    steps: int = 3,
    skip: int = 10,
    shapes: bool = True,
    stacks: bool = False,
    memory: bool = False,
    telemetry: bool = True,
    check_sync: bool = False,
) -> Recorder:
    """Record ``steps`` steps of the training loop inside, after passing over ``skip`` of them.

    ::

        with diagnose.record("out/", steps=3):
            for batch in loader:
                train(batch)               # any torch optimizer's step counts
        print(diagnose.load("out/").overlap())

    Call it on every rank with the same arguments: all write into the same folder, which
    is whole when the last one has left the block. Where no torch optimizer steps, or to
    have the trace written soon after the window (20 steps or 20 s, which show what recording
    cost) and not at the end of the block, call ``recorder.step()`` after each step; it takes
    and ignores any arguments, so it serves as a callback too.

    ``check_sync`` records what shows missing synchronisation: an execution trace and events of the
    same steps, and stacks. It makes them several times slower, and until the process ends each CUDA
    event and allocation takes 2 to 3 microseconds more.

    Raises UsageError for wrong arguments, nothing else.
    """
    if not isinstance(output, (str, os.PathLike)) or not os.fspath(output):
        raise UsageError(f"output={output!r} is no folder", hint='give a path, as record("out/")')
    for name, value, least in (("steps", steps, 1), ("skip", skip, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(
                f"{name}={value!r} is not possible", hint=f"give a whole number from {least} on"
            )
    options = {"shapes": shapes, "stacks": stacks, "memory": memory}
    for name, flag in {**options, "telemetry": telemetry, "check_sync": check_sync}.items():
        if not isinstance(flag, bool):
            raise UsageError(f"{name}={flag!r} is not possible", hint="give True or False")
    options["stacks"] = stacks or check_sync
    folder = Path(os.path.abspath(output))  # noqa: PTH100
    return Recorder(folder, steps, skip, options, telemetry, check_sync)


class Recorder:
    """One window of this process. A context manager; ``start`` and ``stop`` do the same."""

    def __init__(
        self,
        folder: Path,
        steps: int,
        skip: int,
        options: dict[str, bool],
        telemetry: bool,
        check_sync: bool = False,
    ) -> None:
        self._folder = folder
        self._steps = steps
        self._skip = skip
        self._options = options
        self._telemetry = telemetry
        self._check_sync = check_sync
        self._window: LocalWindow | None = None
        self._companion: _Companion | None = None
        self._after = 0
        self._over_at = 0.0
        self._pid = os.getpid()

    def __enter__(self) -> Recorder:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to count steps. Never raises."""
        self._pid = os.getpid()
        try:
            place = agent_rank.place()
            rank = place["rank"] or 0
            self._folder.mkdir(parents=True, exist_ok=True)
            self._refuse_other_files(rank)
            named = str(self._folder / f"rank{rank:05d}")
            window = LocalWindow(
                f"{named}.trace.json",
                steps=self._steps,
                warmup=self._skip,
                options=self._options,
                metadata={"tool": "torch-diagnose"},
                check_sync=f"{named}.execution_trace.json" if self._check_sync else None,
            )
            self._companion = _Companion(self._introduction(rank, place, window))
            window.start()
            self._window = window
            atexit.register(self.stop)
        except Exception as error:  # noqa: BLE001 - the job must not end for it
            self._warn(error)
            self._end_companion()

    def _refuse_other_files(self, rank: int) -> None:
        for path in self._folder.iterdir():
            if path.name.startswith(f"rank{rank:05d}."):
                raise FileExistsError(f"it holds a recording of rank {rank} already")
            if not path.name.startswith(("rank", "recording.json", ".recording")):
                raise FileExistsError(f"it holds {path.name}, which is no part of a recording")

    def _introduction(
        self, rank: int, place: dict[str, Any], window: LocalWindow
    ) -> dict[str, Any]:
        return {
            "folder": str(self._folder),
            "rank": rank,
            "local_rank": place["local_rank"],
            "world_size": place["world_size"],
            "pid": os.getpid(),
            "steps": self._steps,
            "telemetry": self._telemetry,
            "check_sync": self._check_sync,
            "gpu_uuid": _gpu_uuid(window.environment()),
        }

    def step(self, *_: object, **__: object) -> None:
        """A step ends here. Takes and ignores any arguments; never raises.

        Called from a hook of a torch optimizer's step it does nothing: that step counts
        already, and hooks cannot be changed while they run.
        """
        window = self._window
        if window is None or self._pid != os.getpid() or _inside_optimizer_step():
            return
        window.step()
        if window.over:
            now = time.monotonic()
            if self._after == 0:
                self._over_at = now
            self._after += 1
            if self._after >= AFTER_BOUNDARIES or now - self._over_at > AFTER_LIMIT_S:
                self._finish()

    @property
    def done(self) -> bool:
        """Whether nothing more will be recorded."""
        return self._window is None

    def stop(self) -> None:
        """End the window, write it, and wait until the folder has it. Never raises."""
        if self._pid != os.getpid():
            return
        self._finish()
        companion, self._companion = self._companion, None
        if companion is not None:
            try:
                companion.wait(_WAIT_S)
            except Exception as error:  # noqa: BLE001
                self._warn(error)

    def _finish(self) -> None:
        window, self._window = self._window, None
        if window is None:
            return
        atexit.unregister(self.stop)
        try:
            marks = [list(mark) for mark in window.marks()]
            reply = window.finish()
            environment = window.environment()
        except Exception as error:  # noqa: BLE001
            self._warn(error)
            self._end_companion()
            return
        if reply.get("ok") is not True:
            self._warn(reply.get("error", "it was lost"))
            self._end_companion()
        elif self._companion is not None:
            self._companion.finish({"reply": reply, "marks": marks, "environment": environment})

    def _end_companion(self) -> None:
        companion, self._companion = self._companion, None
        if companion is not None:
            with suppress(Exception):
                companion.wait(5.0)

    def _warn(self, reason: object) -> None:
        with suppress(Exception):
            _log.warning("no recording in %s: %s", self._folder, reason)


class _Companion:
    """The child process; told what it needs in lines of JSON. Closing its input ends it."""

    def __init__(self, introduction: dict[str, Any]) -> None:
        self._finished = False
        environ = {
            name: value
            for name, value in os.environ.items()
            # It is no part of the job: no agent, and nothing that counts steps.
            if not name.startswith("DIAGNOSE_") and name != "KINETO_USE_DAEMON"
        }
        path = [str(_PACKAGE_ROOT), *filter(None, [environ.get("PYTHONPATH")])]
        environ["PYTHONPATH"] = os.pathsep.join(path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "diagnose.collect.companion"],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the job; the companion ends with it
        )
        self._send(introduction)

    def _send(self, message: dict[str, Any]) -> None:
        pipe: IO[bytes] | None = self._process.stdin
        if pipe is not None:
            pipe.write(json.dumps(message).encode() + b"\n")
            pipe.flush()

    def finish(self, message: dict[str, Any]) -> None:
        """Let it write the rest; it works while the job goes on."""
        self._finished = True
        with suppress(OSError):
            self._send(message)
            if self._process.stdin is not None:
                self._process.stdin.close()

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended. Raises RuntimeError with what went wrong."""
        process = self._process
        with suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        process.stdin = None
        try:
            said, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise RuntimeError(f"writing it took more than {timeout_s:g} s") from None
        if self._finished and process.returncode != 0:
            reason = said.decode(errors="replace").strip()[-400:]
            raise RuntimeError(reason or f"its companion ended with status {process.returncode}")


def _inside_optimizer_step() -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith(_OPTIMIZER_FILE) and frame.f_code.co_name == "wrapper":
            return True
        frame = frame.f_back
    return False


def _gpu_uuid(environment: dict[str, Any]) -> str | None:
    gpu = environment.get("gpu")
    uuid = gpu.get("uuid") if isinstance(gpu, dict) else None
    return uuid if isinstance(uuid, str) else None
