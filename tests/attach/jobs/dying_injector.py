"""Injects again and again, and each time kills itself one step later on the way.

``dying_injector.py PID TEXTFILE``: the process that injects is killed before its first call of
ptrace or write, then before its second, and so on, until one gets through. Prints how many
died. Whenever one has died, every thread of the target must soon rest as before: not traced,
with no signal blocked.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from diagnose.attach.injection import inject, ptrace

pid, text = int(sys.argv[1]), Path(sys.argv[2]).read_text()


def dying(function, step, count):
    """The function, killing this process when it is called for the ``step``-th time."""

    def called(*arguments):
        count.append(function)
        if len(count) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)

    return called


def is_well():
    """Whether no thread of the target is traced or blocks a signal."""
    texts = []
    for path in Path(f"/proc/{pid}/task").glob("*/status"):
        with suppress(OSError):  # a thread that ended meanwhile is well
            texts.append(path.read_text())
    assert texts, "the target died"
    return all("TracerPid:\t0\n" in t and "SigBlk:\t0000000000000000\n" in t for t in texts)


assert is_well()
for step in range(1, 200):
    child = os.fork()
    if not child:
        calls = []
        for name in ("_call", "write"):
            setattr(
                ptrace.TracedThread, name, dying(getattr(ptrace.TracedThread, name), step, calls)
            )
        inject.inject(pid, text)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    end = time.monotonic() + 2
    while not is_well():
        assert time.monotonic() < end, f"a thread is not well after step {step}"
        time.sleep(0.01)
    if status == 0:
        sys.stdout.write(f"{step - 1}\n")
        break
    assert os.WIFSIGNALED(status), f"step {step} ended with {status}"
