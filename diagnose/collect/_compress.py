"""Compression of traces, outside of the job: writing them held its lock long enough."""

from __future__ import annotations

import gzip
import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

from diagnose.errors import OutputError

SUFFIX = ".gz"
_LEVEL = 1
_CHUNK = 1 << 20


class _StoppedError(Exception):
    """The person does not want it any more."""


def compress_all(traces: Sequence[Path], progress: Callable[[int], None]) -> list[Path]:
    """Compress each file to ``NAME.gz`` and remove it; whole or not at all.

    ``progress`` is called with the number of files done. Raises OutputError, after
    all have ended, if one could not be written; that one stays as it is.
    """
    waiting = list(enumerate(traces))[::-1]
    done: queue.SimpleQueue[tuple[int, Path | Exception]] = queue.SimpleQueue()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                number, trace = waiting.pop()
            except IndexError:
                return
            try:
                done.put((number, compress(trace, stop)))
            except Exception as error:  # noqa: BLE001 - raised again by the caller's thread
                done.put((number, error))

    # Both libraries let go of Python's lock.
    threads = [
        threading.Thread(target=work, name=f"compress-{number}", daemon=True)
        for number in range(min(len(traces), os.cpu_count() or 1))
    ]
    for thread in threads:
        thread.start()
    results: dict[int, Path] = {}
    failed: Exception | None = None
    try:
        for count in range(len(traces)):
            number, result = done.get()
            if isinstance(result, Exception):
                failed = failed or result
            else:
                results[number] = result
            progress(count + 1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if isinstance(failed, OSError):
        raise OutputError(
            f"a trace could not be compressed: {failed}",
            hint="free some space; the traces written so far are whole",
        ) from None
    if failed is not None:
        raise failed
    return [results[number] for number in range(len(traces))]


def compress(trace: Path, stop: threading.Event | None = None) -> Path:
    """Compress one file and remove it. Returns the new one's path. Raises OSError."""
    target = trace.with_name(trace.name + SUFFIX)
    partial = target.with_name(target.name + ".part")
    try:
        with open(trace, "rb") as source, _writer(partial) as packed:
            while chunk := source.read(_CHUNK):
                if stop is not None and stop.is_set():
                    raise _StoppedError
                packed.write(chunk)
        partial.replace(target)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    trace.unlink()
    return target


def _writer(path: Path) -> IO[bytes]:
    try:
        from isal import igzip
    except ImportError:
        return cast("IO[bytes]", gzip.open(path, "wb", compresslevel=_LEVEL))
    return cast("IO[bytes]", igzip.open(path, "wb", compresslevel=_LEVEL))  # type: ignore[no-untyped-call]
