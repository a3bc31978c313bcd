"""The symbol resolver: this very interpreter, and ELF files laid out by hand."""

from __future__ import annotations

import ctypes
import os
import random
import struct
import sys

import pytest

from diagnose.attach.discovery.processes import Process
from diagnose.attach.injection import symbols
from diagnose.attach.injection._elf import Image, ImageError
from diagnose.errors import NotPythonError, ProcessGoneError

BASE = 0x7F0000000000
SIZE = 0x400
NAMES = (b"first", b"second", b"third")


def gnu_hash(name: bytes) -> int:
    value = 5381
    for byte in name:
        value = value * 33 + byte
    return value % 2**32


def elf(kind: int = 3, machine: int = 62, *, gnu: bool, relocated: bool = True) -> bytes:
    """A library of 1 KiB whose symbols lie at 0x300, 0x310, 0x320; ``third`` is not defined."""
    base = BASE if relocated else 0
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", identity, kind, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )
    segments = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, SIZE, SIZE, 0x1000)
    segments += struct.pack("<IIQQQQQQ", 2, 6, 0x100, 0x100, 0, 64, 64, 8)
    table = struct.pack("<QQQQ", 5, base + 0x200, 6, base + 0x180)
    table += struct.pack("<QQQQ", 0x6FFFFEF5 if gnu else 4, base + 0x240, 0, 0)
    names = b"\0first\0second\0third\0"
    places = {b"first": 0x300, b"second": 0x310, b"third": 0}
    table_of_symbols = bytes(24)
    for name in NAMES:
        at, section = places[name], 1 if places[name] else 0
        table_of_symbols += struct.pack("<IBBHQQ", names.index(name), 0x12, 0, section, at, 4)
    if gnu:
        # One bucket: a chain of all three, whose last has the lowest bit set.
        hashes = struct.pack("<4IQI", 1, 1, 1, 0, 2**64 - 1, 1)
        values = [gnu_hash(name) & ~1 for name in NAMES]
        hashes += struct.pack("<3I", values[0], values[1], values[2] | 1)
    else:
        # One bucket that begins with symbol 3; 3 leads to 2, 2 to 1, 1 to the end.
        hashes = struct.pack("<2II4I", 1, 4, 3, 0, 0, 1, 2)
    image = bytearray(SIZE)
    for at, part in (
        (0, header),
        (64, segments),
        (0x100, table),
        (0x180, table_of_symbols),
        (0x200, names),
        (0x240, hashes),
    ):
        image[at : at + len(part)] = part
    return bytes(image)


def image_of(content: bytes, start: int = BASE) -> Image:
    def read(address: int, size: int) -> bytes:
        if not start <= address < start + len(content):
            raise OSError(5, "nothing is there")
        return content[address - start :][:size]

    return Image(read, start)


@pytest.mark.parametrize("relocated", [True, False])
@pytest.mark.parametrize("gnu", [True, False])
def test_both_kinds_of_table(gnu: bool, relocated: bool) -> None:
    image = image_of(elf(gnu=gnu, relocated=relocated))
    assert image.address_of("first") == BASE + 0x300
    assert image.address_of("second") == BASE + 0x310
    assert image.address_of("third") is None
    assert image.address_of("firs") is None
    assert image.address_of("first2") is None


def test_a_program_at_a_fixed_place() -> None:
    """It says where it lies; found anywhere else, nothing it says can be trusted."""
    content = bytearray(elf(kind=2, gnu=True, relocated=False))
    shift = 0x400000
    for at in (64 + 16, 64 + 56 + 16, 0x108, 0x118, 0x128, 0x180 + 24 + 8, 0x180 + 48 + 8):
        number = int.from_bytes(content[at : at + 8], "little") + shift
        content[at : at + 8] = number.to_bytes(8, "little")
    assert image_of(bytes(content), shift).address_of("second") == shift + 0x310
    with pytest.raises(ImageError, match="does not lie where it says"):
        image_of(bytes(content), shift + 0x1000)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "to its end"),
        (b"#!/bin/sh\n".ljust(64), "no 64-bit"),
        (b"\x7fELF\x01\x01".ljust(64, b"\0"), "no 64-bit"),
        (elf(machine=183, gnu=True), "processor 183"),
        (elf(kind=4, gnu=True), "neither a program nor a library"),
        (elf(gnu=True)[:100], "to its end"),
    ],
)
def test_what_is_no_image(content: bytes, problem: str) -> None:
    with pytest.raises(ImageError, match=problem):
        image_of(content)


def test_a_symbol_outside_of_the_file() -> None:
    content = bytearray(elf(gnu=True))
    content[0x180 + 24 + 8 : 0x180 + 24 + 16] = (SIZE + 1).to_bytes(8, "little")
    with pytest.raises(ImageError, match="first lies outside"):
        image_of(bytes(content)).address_of("first")


def test_a_chain_without_an_end() -> None:
    content = bytearray(elf(gnu=False))
    content[0x240 + 12 + 4 : 0x240 + 12 + 8] = (3).to_bytes(4, "little")  # 1 leads back to 3
    with pytest.raises(ImageError, match="without an end"):
        image_of(bytes(content)).address_of("missing")


@pytest.mark.parametrize("gnu", [True, False])
def test_damage_is_an_error_or_an_address_inside(gnu: bool) -> None:
    """Whatever bytes are wrong: no other exception, no address elsewhere, no endless search."""
    draw = random.Random(4)
    whole = elf(gnu=gnu)
    refused = 0
    for _ in range(3000):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(0x260)] = draw.randrange(256)
        del content[draw.choice([SIZE, draw.randrange(SIZE)]) :]
        try:
            address = image_of(bytes(content)).address_of("second")
        except ImageError:
            refused += 1
        else:
            # Mapped sizes can be damaged too, so inside is what the file itself claims.
            assert address is None or address >= 0
    assert 1000 < refused < 3000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_this_interpreter() -> None:
    found = symbols.supported_interpreter(Process(os.getpid()))
    assert found.version == sys.version_info[:2]
    assert not found.free_threaded
    for name, address in (
        ("Py_IsInitialized", found.is_initialized),
        ("PyGILState_Ensure", found.ensure_gil),
        ("PyRun_SimpleString", found.run_string),
        ("PyGILState_Release", found.release_gil),
    ):
        assert address == ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_this_c_library() -> None:
    found = symbols.c_library(Process(os.getpid()))
    library = ctypes.CDLL("libc.so.6")
    for name, address in (
        ("mmap", found.map_memory),
        ("pthread_create", found.create_thread),
        ("pthread_self", found.own_thread),
        ("pthread_detach", found.detach_thread),
    ):
        assert address == ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    # mov rax, 15; syscall
    assert ctypes.string_at(found.signal_return, 9) == bytes.fromhex("48c7c00f000000 0f05")


@pytest.mark.parametrize(
    ("version", "free_threaded", "message", "hint"),
    [
        ((3, 8), False, "runs CPython 3.8 or older", "newer Python"),
        ((3, 15), False, "runs CPython 3.15", "update torch-diagnose"),
        ((3, 13), True, "free-threaded", "default build"),
    ],
)
def test_versions_that_are_refused(
    version: tuple[int, int],
    free_threaded: bool,
    message: str,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = symbols.Interpreter(version, free_threaded, "/usr/bin/python3", 1, 2, 3, 4)
    monkeypatch.setattr(symbols, "interpreter", lambda process: found)
    with pytest.raises(NotPythonError, match=message) as caught:
        symbols.supported_interpreter(Process(7))
    assert hint in caught.value.hint


def test_versions_are_told_by_what_is_exported() -> None:
    """Before 3.11 there is no number to read, but each version brought a function."""

    class Exports:
        def __init__(self, *names: str) -> None:
            self.names = names

        def address_of(self, name: str) -> int | None:
            return 0x1000 if name in self.names else None

    class Number:
        def read(self, address: int, size: int) -> bytes:
            assert (address, size) == (0x1000, 4)
            return bytes.fromhex("f0010d03")  # 0x030d01f0, 3.13.1 final

    everything = ("Py_Version", "Py_NewRef", "PyObject_CallNoArgs")
    for names, version in (
        (everything, (3, 13)),
        (everything[1:], (3, 10)),
        (everything[2:], (3, 9)),
        ((), (3, 8)),
    ):
        assert symbols._version(Exports(*names), Number()) == version  # type: ignore[arg-type]


def test_no_such_process() -> None:
    with pytest.raises(ProcessGoneError):
        symbols.interpreter(Process(2**22 + 1))
