"""ptrace(2) of one thread, by ctypes: x86-64 Linux.

A thread that is traced belongs to the thread that attached to it, and all calls have to
come from there. The kernel lets go of it when that thread ends, however it ends. What
the traced thread does then is up to its registers: ``PTRACE_O_EXITKILL`` is not set,
and only stops are used that are harmless to leave (single steps and breakpoints are
not: their SIGTRAP would be delivered, and end the process).
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from diagnose.errors import AttachError, AttachTimeoutError, PtraceRefusedError

_POKE_DATA, _CONTINUE, _GET_REGISTERS, _SET_REGISTERS, _DETACH, _SYSCALL = 5, 7, 12, 13, 17, 24
_GET_REGISTER_SET, _SET_REGISTER_SET = 0x4204, 0x4205
_SEIZE, _INTERRUPT, _GET_SIGNAL_MASK, _SET_SIGNAL_MASK = 0x4206, 0x4207, 0x420A, 0x420B
_MARK_SYSCALLS = 1
_EXTENDED_STATE = 0x202
_MOST_EXTENDED_BYTES = 1 << 16
_ANY_THREAD = 0x40000000
_EVENT_STOP = 128
_SYSCALL_STOP = signal.SIGTRAP | 0x80
# A stop is over in microseconds: waiting without sleeping keeps the thread away less long.
_IMPATIENT_S, _NAP_S = 0.002, 0.0002
_REGISTERS = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8"),
    *("rax", "rcx", "rdx", "rsi", "rdi", "orig_rax", "rip", "cs", "eflags", "rsp", "ss"),
    *("fs_base", "gs_base", "ds", "es", "fs", "gs"),
)


class Registers(ctypes.Structure):
    """``struct user_regs_struct``, the general registers of a stopped thread."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in _REGISTERS)
    r11: int
    rax: int
    rbx: int
    rcx: int
    rdx: int
    rsi: int
    rdi: int
    rbp: int
    r8: int
    r9: int
    r10: int
    r12: int
    r13: int
    r14: int
    r15: int
    rip: int
    rsp: int
    eflags: int
    cs: int
    ss: int
    orig_rax: int

    def changed(self, **values: int) -> Registers:
        """A copy with other values."""
        copy = Registers.from_buffer_copy(self)
        for name, value in values.items():
            setattr(copy, name, value)
        return copy


class _Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


@dataclass(frozen=True)
class Stop:
    """Why a traced thread stopped: at the edge of a system call, on request, or for a signal."""

    signal: int
    at_syscall: bool = False
    on_request: bool = False

    @property
    def of_group(self) -> bool:
        """Whether the whole process is stopped, as by SIGSTOP."""
        return self.on_request and self.signal != signal.SIGTRAP


class ThreadEndedError(AttachError):
    """The thread ended while it was traced; the process may live on."""


class TracedThread:
    """A thread under ptrace. Made by ``seize``; ``release`` has to follow."""

    def __init__(self, pid: int, thread: int) -> None:
        self.pid = pid
        self.thread = thread

    @classmethod
    def seize(cls, pid: int, thread: int) -> TracedThread:
        """Begin to trace a thread, without stopping it."""
        traced = cls(pid, thread)
        traced._call(_SEIZE, 0, _MARK_SYSCALLS)
        return traced

    def interrupt(self) -> None:
        """Ask it to stop; ``wait`` for it."""
        self._call(_INTERRUPT)

    def wait(self, deadline: float) -> Stop:
        """Wait until it stops, at most until a time of ``time.monotonic``."""
        impatient = time.monotonic() + _IMPATIENT_S
        while True:
            try:
                thread, status = os.waitpid(self.thread, os.WNOHANG | _ANY_THREAD)
            except ChildProcessError:
                raise self._ended() from None
            if thread:
                break
            now = time.monotonic()
            if now > deadline:
                raise AttachTimeoutError(f"process {self.pid}: thread {self.thread} does not stop")
            if now > impatient:
                time.sleep(_NAP_S)
        if not os.WIFSTOPPED(status):
            raise self._ended()
        number = os.WSTOPSIG(status)
        return Stop(number, number == _SYSCALL_STOP, status >> 16 == _EVENT_STOP)

    def resume(self, *, to_syscall: bool = False, deliver: int = 0) -> None:
        """Let it go on, if wanted only to the next edge of a system call."""
        self._call(_SYSCALL if to_syscall else _CONTINUE, 0, deliver)

    def registers(self) -> Registers:
        registers = Registers()
        self._call(_GET_REGISTERS, 0, ctypes.addressof(registers))
        return registers

    def set_registers(self, registers: Registers) -> None:
        self._call(_SET_REGISTERS, 0, ctypes.addressof(registers))

    def extended_state(self) -> bytes:
        """Floating-point and vector registers, as XSAVE lays them out."""
        buffer = ctypes.create_string_buffer(_MOST_EXTENDED_BYTES)
        span = _Span(ctypes.addressof(buffer), len(buffer))
        self._call(_GET_REGISTER_SET, _EXTENDED_STATE, ctypes.addressof(span))
        return buffer.raw[: span.size]

    def set_extended_state(self, state: bytes) -> None:
        buffer = ctypes.create_string_buffer(state, len(state))
        span = _Span(ctypes.addressof(buffer), len(state))
        self._call(_SET_REGISTER_SET, _EXTENDED_STATE, ctypes.addressof(span))

    def signal_mask(self) -> int:
        """The signals it blocks; bit n-1 is signal n."""
        mask = ctypes.c_uint64()
        self._call(_GET_SIGNAL_MASK, 8, ctypes.addressof(mask))
        return mask.value

    def set_signal_mask(self, mask: int) -> None:
        value = ctypes.c_uint64(mask)
        self._call(_SET_SIGNAL_MASK, 8, ctypes.addressof(value))

    def write(self, address: int, data: bytes) -> None:
        """Write into its memory, also where the process itself may only read."""
        try:
            # By way of the thread: hardened kernels ask for the very one that is traced.
            with open(f"/proc/{self.pid}/task/{self.thread}/mem", "r+b", buffering=0) as memory:
                memory.seek(address)
                if memory.write(data) == len(data):
                    return
        except OSError:
            pass  # forbidden by some kernels (proc_mem.force_override)
        padded = data + bytes(-len(data) % 8)
        for offset in range(0, len(padded), 8):
            word = int.from_bytes(padded[offset : offset + 8], "little")
            self._call(_POKE_DATA, address + offset, word)

    def release(self) -> None:
        """Stop tracing it, wherever it is. Never raises: the end of this thread does the rest."""
        with suppress(AttachError):
            try:
                self._call(_DETACH)
            except ThreadEndedError:  # running, or gone
                self.interrupt()
                self.wait(time.monotonic() + 1)
                self._call(_DETACH)

    def _call(self, request: int, address: int = 0, data: int = 0) -> None:
        ctypes.set_errno(0)
        if _ptrace()(request, self.thread, address, data) != -1:
            return
        number = ctypes.get_errno()
        if number == errno.ESRCH:
            raise self._ended()
        raise PtraceRefusedError(
            f"process {self.pid}: the system refused to trace thread {self.thread}"
            f" ({os.strerror(number)}, request {request:#x})",
            hint="run as root, or start the job with `diagnose run`, which needs no tracing",
        )

    def _ended(self) -> ThreadEndedError:
        return ThreadEndedError(f"process {self.pid}: thread {self.thread} has ended")


@cache
def _ptrace() -> ctypes._NamedFuncPointer:
    # PyDLL keeps the lock of this interpreter: a call takes a microsecond, taking the lock
    # again from a busy thread of ours could take milliseconds, with the other side stopped.
    function = ctypes.PyDLL(None, use_errno=True).ptrace
    function.restype = ctypes.c_long
    function.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    return function
