"""Machine code and signal frames, byte for byte against listings made by hand."""

from __future__ import annotations

import struct

import pytest

from diagnose.attach.injection import _x86_64
from diagnose.attach.injection._detour import _BLOCKED, Errand
from diagnose.attach.injection.ptrace import Registers
from diagnose.attach.injection.symbols import CLibrary, Interpreter

# What an assembler makes of the listing in the comments; addresses are 0x11 to 0x16.
STUB = bytes.fromhex(
    "53"  # push rbx
    "4154"  # push r12
    "4883ec08"  # sub rsp, 8
    "4889fb"  # mov rbx, rdi
    "48b81100000000000000 ffd0"  # mov rax, pthread_self; call rax
    "4889c7"  # mov rdi, rax
    "48b81200000000000000 ffd0"  # mov rax, pthread_detach; call rax
    "48b81300000000000000 ffd0"  # mov rax, Py_IsInitialized; call rax
    "85c0"  # test eax, eax
    "742d"  # jz end, over 45 bytes
    "48b81400000000000000 ffd0"  # mov rax, PyGILState_Ensure; call rax
    "4189c4"  # mov r12d, eax
    "4889df"  # mov rdi, rbx
    "48b81500000000000000 ffd0"  # mov rax, PyRun_SimpleString; call rax
    "4489e7"  # mov edi, r12d
    "48b81600000000000000 ffd0"  # mov rax, PyGILState_Release; call rax
    "31c0"  # end: xor eax, eax
    "4883c408"  # add rsp, 8
    "415c"  # pop r12
    "5b"  # pop rbx
    "c3"  # ret
)
STACK = 0x7FFF0000F000
CODE = 0x7F0000001000


def resting(**values: int) -> Registers:
    """Registers of a thread that was interrupted in an endless futex wait."""
    return Registers(
        rip=CODE,
        rsp=STACK,
        rax=2**64 - 512,
        orig_rax=202,
        eflags=0x246,
        cs=0x33,
        ss=0x2B,
        **values,
    )


def test_stub() -> None:
    assert _x86_64.stub(0x11, 0x12, 0x13, 0x14, 0x15, 0x16) == STUB


def test_what_is_written_into_the_page() -> None:
    python = Interpreter((3, 12), False, "", 0x13, 0x14, 0x15, 0x16)
    errand = Errand(python, CLibrary(1, 2, 0x11, 0x12, 5), b"f(HERE)", b"HERE")
    content = errand.content(0x5000)
    assert errand.size == 4096
    assert content[: len(STUB)] == STUB
    assert set(content[len(STUB) : 256]) == {0xCC}  # int3: nobody runs into the text
    assert content[256:] == b"f((20480, 4096))\0"


@pytest.mark.parametrize(("length", "size"), [(3519, 4096), (3520, 4096), (3521, 8192)])
def test_the_page_has_room_for_all(length: int, size: int) -> None:
    """256 bytes of code, the text with 64 for the two numbers, 256 for word of a failure."""
    python = Interpreter((3, 12), False, "", 1, 2, 3, 4)
    assert Errand(python, CLibrary(1, 2, 3, 4, 5), bytes(length), b"-").size == size


def test_signal_frame() -> None:
    saved = resting(r8=8, r9=9, r10=10, r11=11, r12=12, r13=13, r14=14, r15=15)
    saved.rdi, saved.rsi, saved.rbp, saved.rbx, saved.rdx, saved.rcx = 1, 2, 3, 4, 5, 6
    state = bytes(range(256)) * 2 + struct.pack("<QQ", 7, 0) + bytes(48) + b"\x5a" * 256
    frame = _x86_64.signal_frame(saved, 0xAB, state)
    # 128 bytes of red zone, 836 of vector state and its end mark, down to a multiple of 64.
    vectors = 0x7FFF0000EC00
    # Below it 8 of return address, 304 of context, 128 of signal: 16 n + 8, as in a function.
    assert frame.stack == 0x7FFF0000EA38
    assert frame.stack + len(frame.content) == vectors + 832 + 4 <= STACK - 128
    assert frame.spare == frame.stack + 8 + 304

    context = frame.content[8 : 8 + 304]
    assert struct.unpack_from("<QQ", context) == (7, 0)
    assert struct.unpack_from("<I", context, 24) == (7,)  # no such flags: the stack stays
    general = struct.unpack_from("<18Q", context, 40)
    assert general[:8] == (8, 9, 10, 11, 12, 13, 14, 15)
    assert general[8:13] == (1, 2, 3, 4, 5)
    # rax is the number of the call, rip is the two bytes of `syscall` before.
    assert general[13:] == (202, 6, STACK, CODE - 2, 0x246)
    assert struct.unpack_from("<4H", context, 184) == (0x33, 0, 0, 0x2B)
    assert struct.unpack_from("<Q", context, 184 + 8 + 32) == (vectors,)
    assert struct.unpack_from("<Q", context, 296) == (0xAB,)

    image = frame.content[vectors - frame.stack :]
    assert image[:464] == state[:464]
    assert struct.unpack_from("<IIQI", image, 464) == (0x46505853, 836, 7, 832)
    assert image[512:832] == state[512:]
    assert image[832:] == struct.pack("<I", 0x46505845)


@pytest.mark.parametrize(
    ("used", "length", "kept"),
    [
        (0b111, 832, 832),  # AVX
        (0xE7, 2688, 2688),  # AVX-512
        (0xE7, 11008, 2688),  # the processor has tiles, the thread none
        (0x2E7, 11008, 2696),  # the same with protection keys
        (0x602E7, 11008, 11008),  # with tiles
    ],
)
def test_size_of_the_vector_state(used: int, length: int, kept: int) -> None:
    state = bytes(512) + struct.pack("<Q", used) + bytes(length - 520)
    frame = _x86_64.signal_frame(resting(), 0, state)
    image = frame.content[-(kept + 4) :]
    assert struct.unpack_from("<IIQI", image, 464) == (0x46505853, kept + 4, used, kept)


def test_signals_that_are_blocked() -> None:
    """All but faults (ILL TRAP ABRT BUS FPE SEGV SYS) and the two of the C library."""
    open_ = {number for number in range(1, 65) if not _BLOCKED >> (number - 1) & 1}
    assert open_ == {4, 5, 6, 7, 8, 11, 31, 32, 33}


@pytest.mark.parametrize(
    ("call", "for_condition"),
    [
        ("202 0x7f 0x80 0x2 0x0 0x0 0x0 0x7ffe 0x7f01", False),  # no end, word is 2: a mutex
        ("202 0x7f 0x80 0x0 0x0 0x0 0x0 0x7ffe 0x7f01", True),  # older semaphores
        ("202 0x7f 0x80 0x0 0x7ffd 0x0 0x0 0x7ffe 0x7f01", None),  # wait for a time span
        ("202 0x7f 0x189 0x0 0x0 0x0 0xffffffff 0x7ffe 0x7f01", True),  # bit set, no end
        ("202 0x7f 0x189 0x0 0x7ffd 0x0 0xffffffff 0x7ffe 0x7f01", True),  # until a moment
        ("202 0x7f 0x86 0x0 0x0 0x0 0x0 0x7ffe 0x7f01", None),  # priority inheritance
        ("202 0x7f 0x81 0x1 0x0 0x0 0x0 0x7ffe 0x7f01", None),  # wakes others
        ("232 0x11 0x80 0x40 0x0 0x0 0x0 0x7ffe 0x7f01", None),  # epoll_wait
        ("running\n", None),
        ("-1 0x7ffe 0x7f01", None),  # stopped outside of a system call
        ("", None),
    ],
)
def test_which_waits_can_be_made_again(call: str, for_condition: bool | None) -> None:
    wait = _x86_64.futex_wait(call)
    if for_condition is None:
        assert wait is None
    else:
        assert wait == _x86_64.FutexWait(0x7FFE, 0x7F01, for_condition)


def test_where_a_thread_stands() -> None:
    assert _x86_64.waits_again(resting())
    assert not _x86_64.waits_again(resting().changed(rax=0))  # woken just before
    assert not _x86_64.waits_again(resting().changed(orig_rax=0))

    minus_enosys = 2**64 - 38
    entering = resting().changed(orig_rax=9, rax=minus_enosys)
    assert _x86_64.mapped_memory(entering) is None
    assert _x86_64.mapped_memory(entering.changed(rax=0x7F00)) == 0x7F00
    assert _x86_64.mapped_memory(entering.changed(orig_rax=10, rax=0)) is None

    for number in (56, 435):
        made = resting().changed(orig_rax=number, rax=4711)
        assert _x86_64.made_thread(made)
        assert not _x86_64.made_thread(made.changed(rax=minus_enosys))
        assert not _x86_64.made_thread(made.changed(rax=2**64 - 11))

    frame = _x86_64.Frame(0x1000, b"", 0)
    returning = resting().changed(orig_rax=15, rsp=0x1008)
    assert _x86_64.at_return(returning, frame)
    assert not _x86_64.at_return(returning.changed(rsp=0x2008), frame)  # another handler's
    assert not _x86_64.at_return(returning.changed(orig_rax=14), frame)
