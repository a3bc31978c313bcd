"""What an injection calls in the process: where CPython and the C library have it.

Only exported functions are used and no structure of the interpreter is known here, so
a build with other options is entered in the same way. The version is read before
anything is touched; what is not certain is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from diagnose.attach.discovery.processes import Process, Region
from diagnose.attach.injection._elf import Image, ImageError
from diagnose.attach.injection._x86_64 import SIGNAL_RETURN_CODE
from diagnose.errors import NotPythonError, ProcessGoneError, PtraceRefusedError

OLDEST, NEWEST = (3, 9), (3, 14)
"""The versions of CPython that the agent is made for."""

_LIBPYTHON = re.compile(r"libpython3(\.\d+)?[a-z]*\.so")
# Not libc10.so, which is a part of PyTorch.
_C_LIBRARY = re.compile(r"lib(c|pthread)(-2\.\d+)?\.so(\.\d+)?")
_MOST_CODE_BYTES = 32 << 20
_RUN_WITH = "start the job with `diagnose run`, which needs none of this"


@dataclass(frozen=True)
class Interpreter:
    """The CPython of a process: its version, the file it is in, addresses of functions."""

    version: tuple[int, int]
    free_threaded: bool
    path: str
    is_initialized: int
    ensure_gil: int
    run_string: int
    release_gil: int


@dataclass(frozen=True)
class CLibrary:
    """The C library of a process: addresses of functions, and of its return from a signal."""

    map_memory: int
    create_thread: int
    own_thread: int
    detach_thread: int
    signal_return: int


class Memory:
    """The memory of a process, to be read. Opening needs the same right as tracing it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        try:
            self._handle = os.open(process.folder / "mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if not process.exists:
                raise gone(process) from None
            raise PtraceRefusedError(
                f"process {process.pid}: its memory may not be read ({error.strerror})",
                hint="run as root, or " + _RUN_WITH,
            ) from None

    def read(self, address: int, size: int) -> bytes:
        """Bytes at an address; fewer at the end of a mapping. OSError where nothing is."""
        return os.pread(self._handle, size, address)

    def close(self) -> None:
        os.close(self._handle)


@contextmanager
def memory_of(process: Process) -> Iterator[Memory]:
    """The memory of a process. Raises ProcessGoneError or PtraceRefusedError."""
    memory = Memory(process)
    try:
        yield memory
    finally:
        memory.close()


def interpreter(process: Process) -> Interpreter:
    """The CPython that runs in a process, whatever its version.

    Raises NotPythonError if there is none, PtraceRefusedError if that may not be seen.
    """
    try:
        program = str((process.folder / "exe").readlink())
    except OSError:
        program = ""
    # A program that has CPython in itself comes before a libpython that some extension
    # brought along: the linker binds everybody to the former, the latter never starts.
    files = [r for r in process.maps() if r.offset == 0 and r.path]
    files = [r for r in files if r.path == program] + [
        r for r in files if r.path != program and _LIBPYTHON.match(r.name)
    ]
    problem = ""
    with memory_of(process) as memory:
        for region in files:
            try:
                found = _interpreter_in(Image(memory.read, region.start), region, memory)
            except ImageError as error:
                problem = f"; {region.name!a}: {error}"
                continue
            if found is not None:
                return found
    if not process.exists:
        raise gone(process)
    raise NotPythonError(
        f"process {process.pid}: no CPython found in it{problem}",
        hint="give the process that trains, not a launcher, shell or container runtime above it",
    )


def supported_interpreter(process: Process) -> Interpreter:
    """As ``interpreter``, and NotPythonError if the agent is not made for what is found."""
    found = interpreter(process)
    if not OLDEST <= found.version <= NEWEST:
        older = found.version < OLDEST
        seen = "3.8 or older" if older else ".".join(map(str, found.version))
        raise NotPythonError(
            f"process {process.pid} runs CPython {seen}; this version of diagnose enters 3.9 to"
            f" {NEWEST[0]}.{NEWEST[1]}",
            hint="run the job with a newer Python" if older else "update torch-diagnose",
        )
    if found.free_threaded:
        raise NotPythonError(
            f"process {process.pid} runs a free-threaded CPython, which the agent is not made for",
            hint="run the job with the default build of Python",
        )
    return found


def c_library(process: Process) -> CLibrary:
    """The glibc of a process. Raises NotPythonError if there is none, or more than one."""
    regions = [r for r in process.maps() if _C_LIBRARY.fullmatch(r.name)]
    names = ("mmap", "pthread_create", "pthread_self", "pthread_detach")
    addresses: dict[str, set[int]] = {name: set() for name in names}
    with memory_of(process) as memory:
        for region in regions:
            if region.offset:
                continue
            try:
                image = Image(memory.read, region.start)
                for name in names:
                    address = image.address_of(name)
                    if address is not None:
                        addresses[name].add(address)
            except ImageError:
                continue
        signal_return = _find_code(memory, regions)
    # Up to 2.33 libpthread has its own copy of some; threads must come from a single one.
    if (
        len(addresses["pthread_create"]) != 1
        or signal_return is None
        or not all(addresses.values())
    ):
        seen = "two C libraries" if len(addresses["pthread_create"]) > 1 else "no glibc"
        raise NotPythonError(f"process {process.pid}: {seen} found in it", hint=_RUN_WITH)
    mapping, create, own, detach = (min(addresses[name]) for name in names)
    return CLibrary(mapping, create, own, detach, signal_return)


def _interpreter_in(image: Image, region: Region, memory: Memory) -> Interpreter | None:
    functions = [
        image.address_of(name)
        for name in (
            "Py_IsInitialized",
            "PyGILState_Ensure",
            "PyRun_SimpleString",
            "PyGILState_Release",
        )
    ]
    initialized, ensure, run, release = functions
    if initialized is None or ensure is None or run is None or release is None:
        return None
    free_threaded = image.address_of("_Py_MergeZeroLocalRefcount") is not None
    version = _version(image, memory)
    return Interpreter(version, free_threaded, region.path, initialized, ensure, run, release)


def _version(image: Image, memory: Memory) -> tuple[int, int]:
    """The version by what is exported: names of files may be anything."""
    address = image.address_of("Py_Version")  # since 3.11
    if address is not None:
        try:
            number = int.from_bytes(memory.read(address, 4), "little")
        except OSError:
            raise ImageError("its version cannot be read") from None
        return number >> 24, number >> 16 & 0xFF
    if image.address_of("Py_NewRef") is not None:
        return 3, 10
    if image.address_of("PyObject_CallNoArgs") is not None:
        return 3, 9
    return 3, 8


def _find_code(memory: Memory, regions: list[Region]) -> int | None:
    for region in regions:
        size = region.end - region.start
        if "x" not in region.permissions or size > _MOST_CODE_BYTES:
            continue
        try:
            found = memory.read(region.start, size).find(SIGNAL_RETURN_CODE)
        except OSError:
            continue
        if found >= 0:
            return region.start + found
    return None


def gone(process: Process) -> ProcessGoneError:
    """The error that says that a process is not, or no longer, there."""
    return ProcessGoneError(
        f"process {process.pid}: there is no such process, or it ended meanwhile",
        hint="`diagnose attach` without a process id lists the ranks that run",
    )
