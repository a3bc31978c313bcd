"""Machine code and signal frames for x86-64 Linux: pure functions of numbers and bytes.

The idea of a detour that needs nobody to end it: what the borrowed thread is sent to
returns into ``rt_sigreturn``, below a frame like the one that the kernel itself builds
for a signal handler. That call puts back every register, the vector state and the
signal mask, and makes the thread wait again, also if whoever sent it is long gone.

Layouts: ``arch/x86/include/uapi/asm/sigcontext.h`` and ``ucontext.h`` of Linux.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from diagnose.attach.injection.ptrace import Registers

FUTEX = 202
NOT_YET = 2**64 - 38
"""What stands in rax on entry of a system call."""

_MAP_MEMORY, _SIGNAL_RETURN = 9, 15
_CLONES = (56, 435)
_WAIT, _WAIT_UNTIL = 0, 9
_CONTENDED = 2
_FUTEX_FLAGS = 128 | 256  # private, by the wall clock
SIGNAL_RETURN_CODE = b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"
"""``mov rax, 15; syscall``, the end of a signal handler.

Debuggers and the unwinder of GCC know it by just these bytes, so no C library has others.
"""

_RED_ZONE = 128
_CONTEXT_BYTES = 304
_SIGNAL_BYTES = 128
_FULL_FRAME = 7  # vector state in the long form, and `ss` to be put back as it was
_INVALID_STACK_FLAGS = 7  # leaves the alternate signal stack as it is
_MAGIC_BEGIN, _MAGIC_END = 0x46505853, 0x46505845
_LEGACY_BYTES, _PKRU_BIT, _TILE_BITS = 512, 1 << 9, 3 << 17
_BYTES_WITHOUT_TILES, _BYTES_WITHOUT_PKRU = 2696, 2688
# What an interrupted system call leaves in rax for the kernel to start it again.
_RESTARTS = frozenset(2**64 - number for number in (512, 513, 514, 516))


@dataclass(frozen=True)
class Frame:
    """A signal frame below the stack of a thread. ``stack`` is rsp on entry of what is called."""

    stack: int
    content: bytes
    """What has to lie at ``stack``, with room for the return address at its beginning."""
    spare: int
    """Address of 8 bytes in it that nobody uses."""


@dataclass(frozen=True)
class FutexWait:
    """A thread in a futex: the addresses of its stack and code."""

    stack: int
    code: int
    for_condition: bool
    """For a condition or a semaphore, and surely not for a mutex such as an allocator's.

    For a mutex glibc waits without an end while the word is 2 (lowlevellock.h); all the
    rest has another value, or since 2.33 another operation (futex-internal.h).
    """


def stub(
    own_thread: int, detach: int, initialized: int, ensure: int, run: int, release: int
) -> bytes:
    """The body of the new thread: ``void *stub(const char *text)``, by addresses of functions.

    Runs the text as Python, unless the interpreter is not there yet or gone already.
    """
    work = (
        _call(ensure)
        + b"\x41\x89\xc4"  # mov r12d, eax
        + b"\x48\x89\xdf"  # mov rdi, rbx
        + _call(run)
        + b"\x44\x89\xe7"  # mov edi, r12d
        + _call(release)
    )
    return (
        b"\x53\x41\x54\x48\x83\xec\x08"  # push rbx; push r12; sub rsp, 8
        + b"\x48\x89\xfb"  # mov rbx, rdi
        + _call(own_thread)
        + b"\x48\x89\xc7"  # mov rdi, rax
        + _call(detach)
        + _call(initialized)
        + b"\x85\xc0\x74"  # test eax, eax; jz to the end
        + bytes([len(work)])
        + work
        + b"\x31\xc0\x48\x83\xc4\x08\x41\x5c\x5b\xc3"  # xor eax, eax; add rsp, 8; pop r12, rbx; ret
    )


def mapped_memory(registers: Registers) -> int | None:
    """What ``mmap`` returned, if a thread stands at its end; None elsewhere."""
    if registers.orig_rax == _MAP_MEMORY and registers.rax != NOT_YET:
        return registers.rax
    return None


def made_thread(registers: Registers) -> bool:
    """Whether a thread stands at the end of a system call that made another thread."""
    return registers.orig_rax in _CLONES and 0 < registers.rax < 2**31


def at_return(registers: Registers, frame: Frame) -> bool:
    """Whether a thread is about to go back by this frame."""
    return registers.orig_rax == _SIGNAL_RETURN and registers.rsp == frame.stack + 8


def futex_wait(call: str) -> FutexWait | None:
    """A line of ``/proc/PID/task/TID/syscall`` as a wait that can be made again; None if it is not.

    That is a futex wait without an end or until a moment; a time span would begin anew.
    """
    try:
        number, _, operation, expected, timeout, *_, stack, code = (
            int(part, 0) for part in call.split()
        )
    except ValueError:  # running, or waiting for no system call
        return None
    operation &= ~_FUTEX_FLAGS
    if number != FUTEX or not (operation == _WAIT_UNTIL or (operation == _WAIT and not timeout)):
        return None
    return FutexWait(stack, code, operation == _WAIT_UNTIL or expected != _CONTENDED)


def waits_again(registers: Registers) -> bool:
    """Whether a thread was interrupted in a wait that the kernel would start again."""
    return registers.orig_rax == FUTEX and registers.rax in _RESTARTS


def signal_frame(saved: Registers, mask: int, state: bytes) -> Frame:
    """A frame that lets a thread go back to the interrupted wait, as ``rt_sigreturn`` reads it."""
    vectors = _vectors(state)
    place = (saved.rsp - _RED_ZONE - len(vectors)) & ~63
    # On entry of a function rsp is 8 past a multiple of 16.
    stack = ((place - 8 - _CONTEXT_BYTES - _SIGNAL_BYTES) & ~15) - 8
    general = struct.pack(
        "<18Q",
        *(saved.r8, saved.r9, saved.r10, saved.r11, saved.r12, saved.r13, saved.r14, saved.r15),
        *(saved.rdi, saved.rsi, saved.rbp, saved.rbx, saved.rdx),
        *(FUTEX, saved.rcx, saved.rsp, saved.rip - 2, saved.eflags),
    )
    segments = struct.pack("<4H", saved.cs, 0, 0, saved.ss)
    context = (
        struct.pack("<QQQIIQ", _FULL_FRAME, 0, 0, _INVALID_STACK_FLAGS, 0, 0)
        + general
        + segments
        + struct.pack("<4Q", 0, 0, mask, 0)
        + struct.pack("<Q64x", place)
        + struct.pack("<Q", mask)
    )
    content = bytes(8) + context
    content = content.ljust(place - stack, b"\0") + vectors
    return Frame(stack, content, stack + 8 + _CONTEXT_BYTES)


def _vectors(state: bytes) -> bytes:
    """The image of the vector registers as a signal frame has it."""
    used = int.from_bytes(state[_LEGACY_BYTES : _LEGACY_BYTES + 8], "little")
    size = len(state)
    if size > _BYTES_WITHOUT_TILES and not used & _TILE_BITS:
        # The kernel refuses an image with room for tiles from a thread that has none.
        size = _BYTES_WITHOUT_TILES if used & _PKRU_BIT else _BYTES_WITHOUT_PKRU
    image = bytearray(state[:size] + struct.pack("<I", _MAGIC_END))
    struct.pack_into("<IIQI28x", image, 464, _MAGIC_BEGIN, size + 4, used | 3, size)
    return bytes(image)


def _call(address: int) -> bytes:
    return b"\x48\xb8" + struct.pack("<Q", address) + b"\xff\xd0"  # mov rax, address; call rax
