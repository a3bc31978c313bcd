"""Which event a stream waits for, written into the trace: the profiler itself does not say it.

PyTorch calls back whenever it records an event, or lets a stream or the host wait for one, its
own libraries (NCCL's process groups) included. Each time a short range is recorded right behind
the call into the GPU runtime (in front of it for waits of the host)::

    diagnose: event 7f10 recorded on stream 55d0
    diagnose: stream 0 waits for event 7f10
    diagnose: host waits for event 7f10

Numbers are handles in hexadecimal; stream 0 is the default one. ``stop`` lets each stream seen
wait for an event of its own: the trace then says which of its streams has which handle.

PyTorch has no way to end the calling back: after ``stop`` nobody listens, which leaves under a
microsecond for each event. So this happens on request only.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, Callable

RECORDED = "diagnose: event {event:x} recorded on stream {stream:x}"
STREAM_WAITS = "diagnose: stream {stream:x} waits for event {event:x}"
HOST_WAITS = "diagnose: host waits for event {event:x}"


class EventAnnotations:
    """Annotates from ``start`` to ``stop``; never raises. ``available``: torch can do it."""

    def __init__(self) -> None:
        self.available = False
        self._streams: set[int] = set()
        self._registered: list[tuple[list[Any], Any]] = []
        self._mark: Callable[[str], Any] | None = None

    def start(self) -> None:
        """Annotate from now on; while a profile records."""
        with suppress(Exception):
            torch = sys.modules["torch"]
            mark = getattr(torch._C._profiler, "_RecordFunctionFast", None)
            self._mark = mark or torch.autograd.profiler.record_function
            trace = _callbacks()
            if trace is None:
                return
            self._register(trace.EventRecordCallbacks, self._recorded)
            self._register(trace.EventWaitCallbacks, self._stream_waits)
            self._register(trace.EventSynchronizationCallbacks, self._host_waits)
            torch._C._activate_gpu_trace()
            self.available = True

    def _register(self, registry: Any, callback: Any) -> None:
        registry.add_callback(callback)
        self._registered.append((registry.callback_list, callback))

    def stop(self) -> None:
        """Tell the streams apart, then annotate no more; while the profile still records."""
        for handle in sorted(self._streams):
            with suppress(Exception):
                _let_wait_for_itself(handle)
        while self._registered:
            callbacks, callback = self._registered.pop()
            with suppress(ValueError):
                callbacks.remove(callback)

    # ---- called by torch, on any thread ----

    def _recorded(self, event: int, stream: int) -> None:
        self._streams.add(stream)
        self._note(RECORDED.format(event=event, stream=stream))

    def _stream_waits(self, event: int, stream: int) -> None:
        self._streams.add(stream)
        self._note(STREAM_WAITS.format(event=event, stream=stream))

    def _host_waits(self, event: int) -> None:
        self._note(HOST_WAITS.format(event=event))

    def _note(self, text: str) -> None:
        with suppress(Exception):
            if self._mark is not None:
                with self._mark(text):
                    pass


def _callbacks() -> Any:
    """torch's registries, if this build can call back and the job uses CUDA already."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return None
    import torch.cuda._gpu_trace as trace

    return trace


def _let_wait_for_itself(handle: int) -> None:
    cuda: Any = sys.modules["torch.cuda"]
    stream = cuda.ExternalStream(handle) if handle else cuda.default_stream()
    event = cuda.Event()
    event.record(stream)
    stream.wait_event(event)
