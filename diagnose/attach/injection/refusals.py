"""Why a process cannot be entered: a list of questions, each answer with its remedy.

Only ``/proc`` is read; the process is neither stopped nor signalled. What may be traced is
asked of the kernel, by opening the memory of the process: it applies the same rule there
(ptrace(2), "Ptrace access mode checking"). The rest finds the reason for a refusal.
"""

from __future__ import annotations

import os
import platform
import pwd
from contextlib import suppress

from diagnose.attach.discovery.processes import Process
from diagnose.attach.injection.symbols import Memory, c_library, gone, supported_interpreter
from diagnose.errors import (
    AttachError,
    OtherUserError,
    ProcessGoneError,
    ProcessorError,
    PtraceRefusedError,
    StuckError,
    TorchMissingError,
)

_CAP_SYS_PTRACE = 19
_MOST_THREADS = 4096
_STRICT = 1
_RUN = "start the job with `diagnose run`, which needs no tracing"
_PROCESSORS = frozenset({"x86_64", "amd64"})


def explain(
    pid: int, root: str = "/proc", *, torch: bool = True, machine: str | None = None
) -> AttachError | None:
    """Why this process cannot be entered from here; None if nothing speaks against it.

    ``torch``: whether PyTorch has to be loaded. ``machine``: the processor, by default this
    one's. The answer may be outdated a moment later: entering checks again.
    """
    process = Process(pid, root)
    try:
        status = _is_there(process, root)
        _processor(pid, machine or platform.machine())
        _not_traced(process)
        _may_be_read(process, status, root)
        _not_stopped(process)
        _no_strict_rules(pid, status)
        supported_interpreter(process)
        c_library(process)
        if torch:
            _has_torch(process)
    except AttachError as error:
        return error
    return None


def _is_there(process: Process, root: str) -> dict[str, str]:
    pid = process.pid
    status = _status(process)
    if not status:
        if root == "/proc" and _is_hidden(pid):
            raise OtherUserError(
                f"process {pid} belongs to somebody else and is hidden here (/proc with hidepid)",
                hint="run as the user of the job, or as root",
            )
        raise gone(process)
    leader = status.get("Tgid", str(pid))
    if leader != str(pid):
        raise ProcessGoneError(
            f"{pid} is a thread of process {leader}, not a process", hint=f"give {leader}"
        )
    if pid == os.getpid():
        raise AttachError(
            f"process {pid} is diagnose itself",
            hint="record from inside with `diagnose.record`",
        )
    if status.get("State", "")[:1] in ("Z", "X"):
        raise ProcessGoneError(
            f"process {pid} has ended, and its parent has not noticed yet",
            hint="look at the job's own log for the reason",
        )
    return status


def _processor(pid: int, machine: str) -> None:
    if machine.lower() not in _PROCESSORS:
        raise ProcessorError(
            f"process {pid}: processes can be entered on x86-64 only, and this is {machine}",
            hint=_RUN + ", or with KINETO_USE_DAEMON=1 in its environment",
        )


def _not_traced(process: Process) -> None:
    for thread in process.threads[:_MOST_THREADS]:
        tracer = _status(process, f"task/{thread}/status").get("TracerPid", "0")
        if tracer != "0":
            raise PtraceRefusedError(
                f"process {process.pid} is being traced by process {tracer}, a debugger or strace",
                hint=f"end process {tracer}, or let it detach",
            )


def _may_be_read(process: Process, status: dict[str, str], root: str) -> None:
    pid = process.pid
    try:
        Memory(process).close()
        return
    except PtraceRefusedError:
        pass
    own = _status(Process(pid, root), "../self/status")
    theirs, ours = _users(status), _users(own)[1:2]
    if not int(own.get("CapEff", "0"), 16) >> _CAP_SYS_PTRACE & 1:
        if ours == ["0"]:
            raise PtraceRefusedError(
                f"process {pid}: this root may not trace (it lacks CAP_SYS_PTRACE, as in most"
                " containers)",
                hint="run from the host as root, or give the container the capability (docker:"
                " --cap-add SYS_PTRACE; Kubernetes: securityContext.capabilities.add), or " + _RUN,
            )
        if other := [user for user in theirs if user not in ours]:
            raise OtherUserError(
                f"process {pid} belongs to {_name(other[:1])}, and this is {_name(ours)}",
                hint="run as the user of the job, or as root",
            )
        _yama(pid, root)
    elif _yama_scope(root) == "3":
        _yama(pid, root)
    if _namespace(process, str(pid)) != _namespace(process, "self"):
        raise PtraceRefusedError(
            f"process {pid} lives in a user namespace that this one has no rights in",
            hint="run from the host as root, or inside of the job's container, or " + _RUN,
        )
    raise PtraceRefusedError(
        f"process {pid} may not be traced: it runs under another group or with rights of its own"
        " (set-user-id, file capabilities), or a security module such as SELinux or AppArmor"
        " forbids it",
        hint="run as root, or " + _RUN,
    )


def _yama(pid: int, root: str) -> None:
    scope = _yama_scope(root)
    only, hint = {
        "1": (
            "by its own parents",
            "run as root, or set it free with `sysctl kernel.yama.ptrace_scope=0` as root, or ",
        ),
        "2": ("by root", "run as root, or "),
        "3": ("by nobody until the next boot", ""),
    }.get(scope, ("", ""))
    if only:
        raise PtraceRefusedError(
            f"process {pid}: this system lets a process be traced {only}"
            f" (kernel.yama.ptrace_scope is {scope})",
            hint=hint + _RUN,
        )


def _yama_scope(root: str) -> str:
    with suppress(OSError), open(f"{root}/sys/kernel/yama/ptrace_scope", encoding="ascii") as file:
        return file.read(16).strip()
    return ""


def _not_stopped(process: Process) -> None:
    if process.state in ("T", "t"):
        raise StuckError(
            f"process {process.pid} is stopped (SIGSTOP, or control-Z in its terminal)",
            hint=f"let it go on with `kill -CONT {process.pid}`",
        )


def _no_strict_rules(pid: int, status: dict[str, str]) -> None:
    if status.get("Seccomp") == str(_STRICT):
        raise PtraceRefusedError(
            f"process {pid} runs under strict seccomp, and would be killed for any other call",
            hint="give the process that trains",
        )
    # A shadow stack would take the return to a place that was never called for an attack.
    if "shstk" in status.get("x86_Thread_features", "").split():
        raise PtraceRefusedError(
            f"process {pid} runs with a shadow stack, which does not let a thread be borrowed",
            hint=_RUN,
        )


def _has_torch(process: Process) -> None:
    if not any(region.name.startswith("libtorch") for region in process.maps()):
        raise TorchMissingError(
            f"process {process.pid} has not loaded PyTorch",
            hint="wait until training has begun, or give the process that trains;"
            " `diagnose attach` without a process id lists them",
        )


def _status(process: Process, name: str = "status") -> dict[str, str]:
    try:
        text = (process.folder / name).read_text("utf-8", "replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.splitlines())
    return {key: value.strip() for key, _, value in lines}


def _users(status: dict[str, str]) -> list[str]:
    """The real, effective and saved user. All three count; the one of file access does not."""
    return status.get("Uid", "").split()[:3]


def _name(users: list[str]) -> str:
    number = "".join(users) or "?"
    try:
        return f"user {pwd.getpwuid(int(number)).pw_name}"
    except (KeyError, ValueError, OverflowError):
        return f"user {number}"


def _namespace(process: Process, whose: str) -> str:
    with suppress(OSError):
        return str((process.folder.parent / whose / "ns/user").readlink())
    return ""


def _is_hidden(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        pass
    return False
