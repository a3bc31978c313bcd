"""Ends the process of a job whose check is done: status 0, with the other ranks of this host.

Neither ``atexit`` functions nor the rest of the program run, so nothing is saved by a job that has
not trained. Empty files in the folder, ``PID.begin`` and ``PID.end``, say how far a process is.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from .rank import place

_OTHERS_S = 30.0
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def leave(folder: str, *, finish_work: bool) -> None:
    """End this process, its data-loader workers included.

    ``finish_work``: what it has launched ends first, as collectives in which ranks elsewhere still
    take part. Not in the middle of a step: there the others may never begin theirs.
    """
    try:
        with suppress(Exception):
            _meet_others(folder)
        with suppress(Exception):
            cuda = sys.modules["torch.cuda"]
            if finish_work and cuda.is_initialized():
                cuda.synchronize()
        with suppress(Exception):
            _end_daemons()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
    finally:
        os._exit(0)


def note(folder: str, what: str) -> None:
    """Say that this process has come to its ``begin`` or ``end``. Raises OSError."""
    with open(os.path.join(folder, f"{os.getpid()}.{what}"), "w"):
        pass


def _meet_others(folder: str) -> None:
    note(folder, "end")
    ranks = _local_ranks()
    deadline = time.monotonic() + _OTHERS_S
    while time.monotonic() < deadline:
        if sum(name.endswith(".end") for name in os.listdir(folder)) >= ranks:
            return
        time.sleep(0.05)


def _local_ranks() -> int:
    """How many ranks this host has; all of them where no launcher says and each has a GPU here."""
    for name in _LOCAL_SIZE:
        text = os.environ.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 6:
            return int(text)
    with suppress(Exception):
        world = int(place()["world_size"])
        if world <= int(sys.modules["torch.cuda"].device_count()):
            return world
    return 1


def _end_daemons() -> None:
    """What multiprocessing does at exit, which does not run here."""
    multiprocessing: Any = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return
    if threading.current_thread() is threading.main_thread():
        # torch's loader raises in the main thread when one of its workers ends by a signal.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        if child.daemon:
            child.terminate()
