"""Acting on the job's threads from the agent's: the hook list, and signs of life.

torch keeps its optimizer hooks in a dict and walks it after each step. Changing it during the
walk would raise *in the job*, so a change is made only while no thread is inside that code.
The look and the change take some 20 us in which no other thread may run: a thread that has
just got the interpreter lock keeps it for the whole switch interval (5 ms, or more if the job
wants that) unless it lets go by itself. Nothing has to run on the main thread, so this also works
where training happens on another one and the main thread waits in native code for ever (Ray).
"""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType

_POLL_S = 0.002
_QUIET_S = 0.005
_SEMAPHORE_BYTES = 64  # sem_t has 32 with glibc
_FAULTS = {
    getattr(signal, f"SIG{name}") for name in ("ILL", "TRAP", "ABRT", "BUS", "FPE", "SEGV", "SYS")
}


def leave_signals_to_the_job() -> None:
    """Block signals in this thread: a job that blocks one in its own, to wait for it, gets it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)


def answers(timeout_s: float) -> bool:
    """Whether the main thread comes back to Python within the time."""
    if threading.get_ident() == threading.main_thread().ident:
        return True
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    semaphore = ctypes.c_void_p(library.malloc(ctypes.c_size_t(_SEMAPHORE_BYTES)))
    if not semaphore or library.sem_init(semaphore, 0, 0) != 0:
        return True
    # The pending call is sem_post itself: no code of ours, and no exception of a signal handler
    # of the job, can come between. It is never freed: the call may come much later.
    post = ctypes.cast(library.sem_post, ctypes.c_void_p)
    end = time.monotonic() + timeout_s
    queued = False
    while time.monotonic() < end:
        queued = queued or ctypes.pythonapi.Py_AddPendingCall(post, semaphore) == 0
        # Each wake-up asks for the interpreter lock, which makes the main thread look for
        # pending calls; before Python 3.13 queueing alone does not, from another thread.
        time.sleep(_POLL_S)
        if queued and library.sem_trywait(semaphore) == 0:
            return True
    return False


def edit_when_quiet(edit: Callable[[], None], walker: CodeType | None) -> bool:
    """Change a structure now if no thread is inside the code that walks it; else False.

    ``walker`` is that code; where torch.compile has rewritten it, its file is the same and its
    name is the old one or ``torch_dynamo_resume_in_NAME_at_534``.
    """
    interval = sys.getswitchinterval()
    collecting = False
    sys.setswitchinterval(max(interval, _QUIET_S))
    raised = sys.getswitchinterval()
    try:
        time.sleep(0)  # hand the interpreter lock over once, to have it for the whole interval
        began = time.perf_counter()
        # Asked only now: meanwhile the job may have switched it off for its own reasons.
        collecting = gc.isenabled()
        gc.disable()  # a collection could run code of the job in here
        if walker is not None and _is_anyone_in(walker):
            return False
        if time.perf_counter() - began > _QUIET_S / 2:
            return False
        edit()
        return True
    finally:
        if collecting:
            gc.enable()
        if sys.getswitchinterval() == raised:  # else the job has set one meanwhile
            sys.setswitchinterval(interval)


def edit_hooks(edit: Callable[[], None], walker: CodeType | None, timeout_s: float) -> bool:
    """Change the hooks as soon as that is safe; False if it was not within the time."""
    end = time.monotonic() + timeout_s
    while not edit_when_quiet(edit, walker):
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True


def _is_anyone_in(walker: CodeType) -> bool:
    names = (walker.co_name, f"torch_dynamo_resume_in_{walker.co_name}_at_")
    frame: FrameType | None
    for frame in sys._current_frames().values():
        while frame is not None:
            code = frame.f_code
            if code.co_filename == walker.co_filename and (
                code.co_name == names[0] or code.co_name.startswith(names[1])
            ):
                return True
            frame = frame.f_back
    return False
