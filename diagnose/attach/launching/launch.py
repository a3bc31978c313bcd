"""Start a job with the cooperative agent, as if it had been started directly.

The job is a child in a process group of its own. Terminal signals (Ctrl-C, Ctrl-Z,
a closed window, a resize) go to that group, signals sent to this process by ``kill``
go to the child alone, as they would without us in between; it may read from the
terminal; its exit status is ours. Nothing of ours runs in it but the agent.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from diagnose import agent
from diagnose.attach.discovery.processes import Process, every
from diagnose.errors import AttachError, UsageError

MARK = "DIAGNOSE_RUN"
"""In the environment of all processes of the job: the launch they belong to."""
AGENT_FOLDER = Path(agent.__path__[0]).resolve() / "launch"

_FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGWINCH,
)
# SIGTTOU is blocked so that handing the terminal over does not stop this process.
_BLOCKED = (*_FORWARDED, signal.SIGCHLD, signal.SIGCONT, signal.SIGTTOU)
_BY_THE_KERNEL = 0x80  # SI_KERNEL: from the terminal, to its whole foreground group
_LOOK_S = 1.0


def environment(base: Mapping[str, str], extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment that makes every Python process of a job load the agent."""
    own = {"DIAGNOSE_AGENT": "1", MARK: secrets.token_hex(8), **(extra or {})}
    path = [str(AGENT_FOLDER), *filter(None, [base.get("PYTHONPATH")])]
    return {**base, **own, "PYTHONPATH": os.pathsep.join(path)}


def processes(mark: str, root: str = "/proc") -> list[Process]:
    """The processes of this host that were started with this mark and can be looked at."""
    found = []
    for process in every(root):
        with suppress(AttachError):
            if process.environ.get(MARK) == mark:
                found.append(process)
    return found


class Launched:
    """A job that runs. ``start`` has to be called on the main thread, before other threads."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str, restore: set[int]) -> None:
        self.mark = mark
        self.pid = process.pid
        self._process = process
        self._restore = restore
        self._terminal = _terminal()
        self._handed_over = False

    @classmethod
    def start(cls, command: Sequence[str], variables: Mapping[str, str]) -> Launched:
        """Start the command with these variables (see ``environment``).

        Raises UsageError if there is no such command.
        """
        restore = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)

        def as_if_direct() -> None:
            os.setpgid(0, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, restore)

        try:
            # No other thread runs yet, so code between fork and exec is safe.
            process = subprocess.Popen(
                command,
                env=variables,
                preexec_fn=as_if_direct,
            )
        except OSError as problem:
            signal.pthread_sigmask(signal.SIG_SETMASK, restore)
            raise UsageError(
                f"{command[0]} cannot be started: {problem.strerror}",
                hint="give the command after `--`, as: diagnose run -- torchrun train.py",
            ) from None
        return cls(process, variables[MARK], {int(number) for number in restore})

    def wait(self) -> int:
        """Wait for the job's end and return its exit status: 128 + N after signal N."""
        try:
            while (status := self._poll()) is None:
                info = signal.sigtimedwait(_BLOCKED, _LOOK_S)
                if info is not None and info.si_signo in _FORWARDED:
                    self._forward(info)
            return status
        finally:
            self._take_terminal_back()
            signal.pthread_sigmask(signal.SIG_SETMASK, self._restore)
            if self._terminal is not None:
                os.close(self._terminal)
                self._terminal = None

    def stop(self, patience_s: float = 30.0) -> None:
        """Ask the job to end, and end what is left of it after a while. Does not wait for it."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + patience_s
        while processes(self.mark) and time.monotonic() < deadline:
            time.sleep(0.1)
        # torchrun's workers are in sessions of their own: a group is not all of it.
        for process in processes(self.mark):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)

    def _poll(self) -> int | None:
        while True:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return self._process.returncode or 0
            if not pid:
                return None
            if os.WIFSTOPPED(status):
                self._stopped(os.WSTOPSIG(status))
                continue
            code = os.waitstatus_to_exitcode(status)
            self._process.returncode = code
            return code if code >= 0 else 128 - code

    def _forward(self, info: signal.struct_siginfo) -> None:
        if info.si_code == _BY_THE_KERNEL:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, info.si_signo)
        elif not _signals_every_process(info.si_pid):
            self._signal(info.si_signo)

    def _signal(self, number: int) -> None:
        # Not reaped yet, so the id cannot be another process's.
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def _stopped(self, number: int) -> None:
        """The job was stopped: for want of the terminal, or by Ctrl-Z, which stops us too."""
        if number in (signal.SIGTTIN, signal.SIGTTOU):
            if self._hand_terminal_over():
                os.killpg(self.pid, signal.SIGCONT)
        elif number == signal.SIGTSTP:
            had_it = self._handed_over
            self._take_terminal_back()
            os.kill(os.getpid(), signal.SIGSTOP)
            if had_it:
                self._hand_terminal_over()
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGCONT)

    def _hand_terminal_over(self) -> bool:
        if self._terminal is None:
            return False
        with suppress(OSError):
            if os.tcgetpgrp(self._terminal) == os.getpgrp():
                os.tcsetpgrp(self._terminal, self.pid)
                self._handed_over = True
        return self._handed_over

    def _take_terminal_back(self) -> None:
        if self._handed_over and self._terminal is not None:
            self._handed_over = False
            with suppress(OSError):
                os.tcsetpgrp(self._terminal, os.getpgrp())


def _terminal() -> int | None:
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None


def _signals_every_process(sender: int) -> bool:
    """Whether the sender has sent it to the job as well: Slurm signals all of a step."""
    try:
        return Process(sender).name.startswith("slurmstepd") if sender else False
    except AttachError:
        return False
