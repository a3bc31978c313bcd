"""``*.execution_trace.json``: which memory each operator of one process reads, writes or is given.

PyTorch's execution trace observer writes these files. They hold no times: what an
operator touched is tied to when it ran by the profile of the same steps.
"""

from __future__ import annotations

import gc

from diagnose.errors import InputError
from diagnose.readers import files
from diagnose.readers.containers import open_streams
from diagnose.readers.execution_trace.document import UnreadableError, nodes_of
from diagnose.readers.execution_trace.tensors import AccessBuilder
from diagnose.readers.raw import ExecutionTrace
from diagnose.trace import Note

MAX_BYTES = 512 << 20


def read(path: str) -> tuple[ExecutionTrace | None, list[Note]]:
    """What the operators of the file touch; None with a note if it cannot be read.

    Operators that are damaged are left out and counted in a note, as are tensors that
    cannot be. Never raises for bad input.
    """
    collecting = gc.isenabled()
    gc.disable()  # no cycles are made here, and millions of small objects would be searched
    try:
        return _read(path)
    except (UnreadableError, InputError) as error:
        problem = getattr(error, "message", str(error)).removeprefix(f"{path}: ")
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
    except MemoryError:
        problem = "memory ran out"
    finally:
        if collecting:
            gc.enable()
    sentence = (
        f"{path}: {problem}; which memory operators read and write is unknown, so nothing is said "
        "about missing synchronisation (all other figures are as without the file)"
    )
    return None, [Note("execution-trace-unreadable", "info", sentence)]


def _read(path: str) -> tuple[ExecutionTrace, list[Note]]:
    process, nodes = nodes_of(_content(path))
    builder = AccessBuilder()
    num_damaged = 0
    for node in nodes:
        if node is None:
            num_damaged += 1
        else:
            builder.add(node)
    found = builder.take(path, process)
    notes = []
    if num_damaged or builder.num_unreadable:
        sentence = (
            f"{path}: operators that are damaged: {num_damaged}, tensors that cannot be: "
            f"{builder.num_unreadable}; they were left out, so synchronisation that is missing "
            "around them is not seen"
        )
        count = num_damaged + builder.num_unreadable
        notes.append(Note("execution-trace-damaged", "info", sentence, count))
    return found, notes


def _content(path: str) -> bytes:
    """The decompressed text; of a zip archive the first member."""
    if files.is_special(path):
        raise UnreadableError("a pipe or device, not a file")
    for _, stream in open_streams(path):
        try:
            data = stream.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise UnreadableError(f"larger than {MAX_BYTES >> 20} MiB")
            stream.read(1)  # only at its end does a stream know whether it is whole
            if stream.damage:
                raise UnreadableError(f"damaged or cut off ({stream.damage})")
            return data
        finally:
            stream.close()
    raise UnreadableError("an archive without a file")
