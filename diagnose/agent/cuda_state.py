"""What a profiler must not disturb in CUDA: the device of each thread, graphs that are captured.

Starting or stopping a profile synchronises the device. While a graph is captured that is an
error, which ends the capture and so the job; and on a thread of its own, where CUDA's current
device is 0, it would make a context on the GPU of another rank (half a gigabyte of memory).
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any


def is_capturing() -> bool:
    """Whether this thread's current stream is being captured. Initialises nothing."""
    cuda: Any = sys.modules.get("torch.cuda")
    try:
        running = cuda is not None and cuda.is_initialized()
        return running and bool(cuda.is_current_stream_capturing())
    except Exception:
        return False


@contextmanager
def on_device(device: int | None) -> Iterator[None]:
    """With the job's GPU as this thread's current one; None: the first that has a context."""
    with ExitStack() as stack:
        with suppress(Exception):
            cuda: Any = sys.modules.get("torch.cuda")
            if cuda is not None and cuda.is_initialized():
                chosen = _in_use() if device is None else device
                if chosen is not None:
                    # Going back, torch makes no context where there was none.
                    stack.enter_context(cuda.device(chosen))
        yield


def _in_use() -> int | None:
    native = sys.modules["torch"]._C
    devices = range(native._cuda_getDeviceCount())
    return next((device for device in devices if native._cuda_hasPrimaryContext(device)), None)


class CaptureWatch:
    """Knows whether any thread captures a graph, and tells when none does any more.

    A capture waits at ``lock`` before it begins: who holds it may synchronise the device.
    """

    def __init__(self, lock: threading.RLock, over: Callable[[], None]) -> None:
        self._lock = lock
        self._over = over
        self._active = False
        self._pid = os.getpid()
        self._graphs: set[int] = set()
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    @property
    def underway(self) -> bool:
        """Whether a graph is being captured; of captures that began before ``install``, no word."""
        return bool(self._graphs)

    def install(self) -> None:
        """From now on. Without effect where torch's graphs are not loaded."""
        kind = getattr(sys.modules.get("torch.cuda.graphs"), "CUDAGraph", None)
        if kind is None or not {"capture_begin", "capture_end"} <= vars(kind).keys():
            return
        self._active = True
        for name, wrap in (("capture_begin", self._beginning), ("capture_end", self._ending)):
            original = vars(kind)[name]
            wrapped = wrap(original)
            setattr(kind, name, wrapped)
            self._replaced.append((kind, name, original, wrapped))

    def remove(self) -> None:
        """Until now. A wrapper that somebody else put around ours stays, and ours is passive."""
        self._active = False
        while self._replaced:
            kind, name, original, wrapped = self._replaced.pop()
            if vars(kind).get(name) is wrapped:
                setattr(kind, name, original)

    def _beginning(self, original: Any) -> Any:
        @functools.wraps(original)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            if self._active and os.getpid() == self._pid:
                with self._lock:
                    self._graphs.add(id(graph))
            try:
                return original(graph, *args, **kwargs)
            except BaseException:
                self._graphs.discard(id(graph))
                raise

        return capture_begin

    def _ending(self, original: Any) -> Any:
        @functools.wraps(original)
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(graph, *args, **kwargs)
            finally:
                self._graphs.discard(id(graph))
                if self._active and not self._graphs and os.getpid() == self._pid:
                    with suppress(Exception):
                        self._over()

        return capture_end
