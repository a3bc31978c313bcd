"""Which event a stream waits for, written into the trace: the profiler itself does not say it.

PyTorch calls back whenever it records an event, or lets a stream or the host wait for one, its
own libraries (NCCL's process groups) included. Each time a short range is recorded right behind
the call into the GPU runtime (in front of it for waits of the host)::

    diagnose: event 7f10 recorded on stream 55d0
    diagnose: stream 0 waits for event 7f10
    diagnose: host waits for event 7f10

Numbers are handles in hexadecimal; a default stream, which has none, is named by the number of
its device. ``stop`` lets each stream seen wait for an event of its own: the trace then says which
of its streams has which handle.

PyTorch has no way to end the calling back: after ``stop`` nobody listens, and each event and each
allocation of the process still takes 2 to 3 microseconds more. So this happens on request only.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from typing import Any, Callable

RECORDED = "diagnose: event {event:x} recorded on stream {stream:x}"
STREAM_WAITS = "diagnose: stream {stream:x} waits for event {event:x}"
HOST_WAITS = "diagnose: host waits for event {event:x}"

NO_CUDA = "no-cuda"
TOO_OLD = "torch-too-old"
FAILED = "failed"


class EventAnnotations:
    """Annotates from ``start`` to ``stop``; never raises.

    ``available``: torch can do it, and does; else ``reason`` is one of the words above.
    """

    def __init__(self) -> None:
        self.available = False
        self.reason = FAILED
        self._devices: dict[int, int] = {}
        self._told_apart: set[int] = set()
        self._registered: list[tuple[list[Any], Any]] = []
        self._mark: Callable[[str], Any] | None = None
        self._current_device: Callable[[], int] = _first_device

    def start(self) -> None:
        """Annotate from now on; while a profile records."""
        with suppress(Exception):
            torch = sys.modules["torch"]
            cuda = sys.modules.get("torch.cuda")
            if cuda is None or not cuda.is_initialized():
                self.reason = NO_CUDA
                return
            trace = _registries()
            activate = getattr(torch._C, "_activate_gpu_trace", None)
            if trace is None or activate is None:
                self.reason = TOO_OLD
                return
            mark = getattr(torch._C._profiler, "_RecordFunctionFast", None)
            self._mark = mark or torch.autograd.profiler.record_function
            if torch._C._cuda_getDeviceCount() > 1:
                self._current_device = torch._C._cuda_getDevice
            self._register(trace.EventRecordCallbacks, self._recorded)
            self._register(trace.EventWaitCallbacks, self._stream_waits)
            self._register(trace.EventSynchronizationCallbacks, self._host_waits)
            activate()
            self.available, self.reason = True, ""

    def _register(self, registry: Any, callback: Any) -> None:
        # In this order: an interrupt in between leaves nothing that `stop` does not know.
        self._registered.append((registry.callback_list, callback))
        registry.add_callback(callback)

    def stop(self, *, tell_apart: bool = True) -> None:
        """Tell the streams apart, then annotate no more; while the profile still records.

        Not ``tell_apart``: nothing is asked of the GPU, where the recording is given up or a
        graph is captured.
        """
        try:
            with suppress(RuntimeError):  # another thread may be using a stream for the first time
                for number, device in sorted(self._devices.items()) if tell_apart else ():
                    # Of one that has waited the profile says which it is: leave it alone.
                    with suppress(Exception):
                        if number not in self._told_apart:
                            _let_wait_for_itself(number, device)
        finally:
            for callbacks, callback in self._registered:
                with suppress(ValueError):  # an interrupt may have come in between: once more then
                    callbacks.remove(callback)
            self._registered = []

    # ---- called by torch, on any thread; also while a graph is captured: nothing is asked of CUDA
    # ---- but which device is current, which torch makes the stream's own for its call

    def _recorded(self, event: int, stream: int) -> None:
        with suppress(Exception):
            self._note(RECORDED.format(event=event, stream=self._number(stream)))

    def _stream_waits(self, event: int, stream: int) -> None:
        with suppress(Exception):
            number = self._number(stream)
            self._told_apart.add(number)
            self._note(STREAM_WAITS.format(event=event, stream=number))

    def _host_waits(self, event: int) -> None:
        with suppress(Exception):
            self._note(HOST_WAITS.format(event=event))

    def _number(self, handle: int) -> int:
        number = handle or self._current_device()  # far below any handle, which is an address
        if number not in self._devices:
            self._devices[number] = self._current_device() if handle else number
        return number

    def _note(self, text: str) -> None:
        if self._mark is not None:
            with self._mark(text):
                pass


def _first_device() -> int:
    return 0


def _registries() -> Any:
    """Where torch keeps whom it calls back; None if this one has no such place."""
    try:
        return importlib.import_module("torch.cuda._gpu_trace")
    except ImportError:
        return None


def _let_wait_for_itself(number: int, device: int) -> None:
    cuda: Any = sys.modules["torch.cuda"]
    default = number == device
    stream = cuda.default_stream(device) if default else cuda.ExternalStream(number, device)
    event = cuda.Event()
    event.record(stream)
    stream.wait_event(event)
