"""Sending one resting thread through two calls, ``mmap`` and ``pthread_create``, and back.

Every step stands in an order chosen for the case that this process ends right there: the
frame that leads back lies on the stack before the registers change, the signal mask changes
only while that frame will restore it, and the old registers come last.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from diagnose.attach.injection._boot import FAILURE_BYTES
from diagnose.attach.injection._x86_64 import (
    NOT_YET,
    FutexWait,
    at_return,
    made_thread,
    mapped_memory,
    signal_frame,
    stub,
    waits_again,
)
from diagnose.attach.injection.ptrace import Registers, Stop, TracedThread
from diagnose.attach.injection.symbols import CLibrary, Interpreter
from diagnose.errors import AttachError, PtraceRefusedError, StuckError

_TEXT_OFFSET = 256
_TRAP = b"\xcc"
_READ_EXECUTE, _PRIVATE_ANONYMOUS = 5, 0x22
_MINUS_ONE = 2**64 - 1
_USER_CODE_64 = 0x33
_END_OF_MEMORY = 2**47
_FAULTS = (
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGSEGV,
    signal.SIGSYS,
)
# 32 and 33 are the C library's own; a thread that blocks them would hold up setuid().
_BLOCKED = _MINUS_ONE & ~sum(1 << number - 1 for number in (*_FAULTS, 32, 33))


class MovedOn(Exception):  # noqa: N818 - no error: nothing was changed, take another thread
    """The thread no longer rests where it was seen."""


@dataclass(frozen=True)
class Errand:
    """What the new thread is to do, and by which functions."""

    python: Interpreter
    libc: CLibrary
    text: bytes
    placeholder: bytes
    """Replaced in the text by ``(address, size)`` of the memory."""

    @property
    def size(self) -> int:
        """Bytes of memory to make, whole pages."""
        grown = len(self.text) + 64
        return (_TEXT_OFFSET + grown + FAILURE_BYTES + 4095) & ~4095

    def content(self, page: int) -> bytes:
        """What to write at ``page``: the code of the thread and the text."""
        code = stub(
            self.libc.own_thread,
            self.libc.detach_thread,
            self.python.is_initialized,
            self.python.ensure_gil,
            self.python.run_string,
            self.python.release_gil,
        )
        text = self.text.replace(self.placeholder, b"(%d, %d)" % (page, self.size), 1)
        return code.ljust(_TEXT_OFFSET, _TRAP) + text + b"\0"


def send(traced: TracedThread, errand: Errand, wait: FutexWait, deadline: float) -> int:
    """Stop the thread, send it, put it back. Returns the address of the memory that was made.

    ``wait``: where it was seen to rest. Raises MovedOn, and
    AttachError for all that goes wrong; ``traced.release`` has to follow in any case.
    """
    traced.interrupt()
    stop = traced.wait(deadline)
    if stop.of_group:
        raise StuckError(
            f"process {traced.pid} is stopped ({signal.Signals(stop.signal).name})",
            hint=f"let it go on with `kill -CONT {traced.pid}`",
        )
    saved = traced.registers()
    if not waits_again(saved) or saved.cs != _USER_CODE_64:
        raise MovedOn
    if (saved.rsp, saved.rip) != (wait.stack, wait.code):
        raise MovedOn
    return _Detour(traced, saved, deadline).run(errand)


class _Detour:
    """One thread on its way. ``saved``: its registers as they were."""

    def __init__(self, traced: TracedThread, saved: Registers, deadline: float) -> None:
        self.traced = traced
        self.deadline = deadline
        self.saved = saved
        self.mask = traced.signal_mask()
        self.vectors = traced.extended_state()
        self.frame = signal_frame(saved, self.mask, self.vectors)

    def run(self, errand: Errand) -> int:
        """Both calls and the return; the address of the memory."""
        libc = errand.libc
        self.traced.write(
            self.frame.stack,
            libc.signal_return.to_bytes(8, "little") + self.frame.content[8:],
        )
        self._call(
            libc.map_memory,
            (0, errand.size, _READ_EXECUTE, _PRIVATE_ANONYMOUS, _MINUS_ONE, 0),
        )
        # Only now: from here on the frame puts the old mask back.
        self.traced.set_signal_mask(_BLOCKED)
        while (page := mapped_memory(self._next_syscall())) is None:
            pass
        if page >= _END_OF_MEMORY or page & 4095:
            self._go_back()
            raise PtraceRefusedError(
                f"process {self.traced.pid} may not make memory executable"
                f" (error {2**64 - page & 0xFFFF})",
                hint="a security module such as SELinux forbids it, or its memory is used up;"
                " start the job with `diagnose run`",
            )
        self.traced.write(page, errand.content(page))
        self._call(libc.create_thread, (self.frame.spare, 0, page, page + _TEXT_OFFSET))
        if not self._go_back():
            raise AttachError(
                f"process {self.traced.pid} could not start a thread",
                hint="look at its limits of threads and memory (`ulimit -u`, its control group)",
            )
        return page

    def _call(self, function: int, arguments: tuple[int, ...]) -> None:
        names = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
        values = dict(zip(names, arguments, strict=False))
        # orig_rax: it comes from no system call, so the kernel starts none again.
        values |= {"rip": function, "rsp": self.frame.stack, "rax": 0, "orig_rax": _MINUS_ONE}
        self.traced.set_registers(self.saved.changed(**values))

    def _next_syscall(self) -> Registers:
        """Go on to the next edge of a system call, through whatever else stops the thread."""
        deliver = 0
        while True:
            self.traced.resume(to_syscall=True, deliver=deliver)
            stop = self.traced.wait(self.deadline)
            if stop.at_syscall:
                return self.traced.registers()
            deliver = self._passed_on(stop)

    def _go_back(self) -> bool:
        """Let the call end, and turn the return by the frame into the old wait itself.

        Returns whether a thread was made on the way. Left alone, the return would do the
        same; this way not even the memory that is read for it has to be right.
        """
        made = False
        while not at_return(now := self._next_syscall(), self.frame):
            made = made or made_thread(now)
        self._restore(NOT_YET)
        return made

    def _restore(self, rax: int) -> None:
        # The registers last: until then the frame still leads back.
        self.traced.set_signal_mask(self.mask)
        self.traced.set_extended_state(self.vectors)
        self.traced.set_registers(self.saved.changed(rax=rax))

    def _passed_on(self, stop: Stop) -> int:
        """The signal to deliver after a stop that is not ours. A fault ends the detour."""
        if stop.on_request or stop.at_syscall:
            return 0
        if stop.signal in _FAULTS:
            place = self.traced.registers().rip
            self._restore(self.saved.rax)
            raise AttachError(
                f"process {self.traced.pid}: {signal.Signals(stop.signal).name} at {place:#x} in a"
                " borrowed thread, which was put back",
                hint="start the job with `diagnose run`; please report this",
            )
        return stop.signal
