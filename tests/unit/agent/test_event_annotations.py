"""Events as ranges of the trace, against a stand-in that calls back as torch does."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from diagnose.agent.event_annotations import FAILED, NO_CUDA, TOO_OLD, EventAnnotations
from diagnose.analyzers.hazards.annotations import TEXTS, EventCall

SIDE, OTHER_DEVICE = 0x55D0, 0x66E0
FIRST_EVENT = 0x7F10


class Registry:
    """As torch's: every callback in turn."""

    def __init__(self) -> None:
        self.callback_list: list[Callable[..., None]] = []

    def add_callback(self, callback: Callable[..., None]) -> None:
        self.callback_list.append(callback)

    def fire_callbacks(self, *handles: int) -> None:
        for callback in self.callback_list:
            callback(*handles)


class Torch:
    """The parts of torch that annotations touch; ``written`` is what a profile would hold."""

    def __init__(self, devices: int = 1) -> None:
        self.written: list[str] = []
        self.activated = 0
        self.device = 0
        self.num_events = 0
        self.trace = SimpleNamespace(
            EventRecordCallbacks=Registry(),
            EventWaitCallbacks=Registry(),
            EventSynchronizationCallbacks=Registry(),
        )
        self.cuda = SimpleNamespace(
            is_initialized=lambda: True,
            default_stream=lambda device: Stream(self, 0, device),
            ExternalStream=lambda handle, device: Stream(self, handle, device),
            Event=lambda: Event(self),
        )
        profiler = SimpleNamespace(_RecordFunctionFast=self.range_of)
        self.native = SimpleNamespace(
            _activate_gpu_trace=self.activate,
            _profiler=profiler,
            _cuda_getDeviceCount=lambda: devices,
            _cuda_getDevice=lambda: self.device,
        )
        self.torch = SimpleNamespace(_C=self.native)

    def activate(self) -> None:
        self.activated += 1

    def range_of(self, text: str) -> Any:
        torch = self

        class Range:
            def __enter__(self) -> None:
                torch.written.append(text)

            def __exit__(self, *_: object) -> None: ...

        return Range()

    def on(self, device: int, registry: Registry, *handles: int) -> None:
        """A call of torch's own: it makes the device of the stream current, and calls back."""
        before, self.device = self.device, device
        registry.fire_callbacks(*handles)
        self.device = before

    def record(self, event: int, stream: int, device: int = 0) -> None:
        self.on(device, self.trace.EventRecordCallbacks, event, stream)

    def wait(self, event: int, stream: int, device: int = 0) -> None:
        self.on(device, self.trace.EventWaitCallbacks, event, stream)

    @property
    def listeners(self) -> int:
        return sum(len(registry.callback_list) for registry in vars(self.trace).values())


class Stream:
    def __init__(self, torch: Torch, handle: int, device: int) -> None:
        self.torch, self.handle, self.device = torch, handle, device

    def wait_event(self, event: Event) -> None:
        self.torch.wait(event.handle, self.handle, self.device)


class Event:
    def __init__(self, torch: Torch) -> None:
        self.torch = torch
        torch.num_events += 1
        self.handle = FIRST_EVENT + torch.num_events

    def record(self, stream: Stream) -> None:
        self.torch.record(self.handle, stream.handle, stream.device)


Install = Callable[..., Torch]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    def install(devices: int = 1) -> Torch:
        torch = Torch(devices)
        monkeypatch.setitem(sys.modules, "torch", torch.torch)  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "torch.cuda", torch.cuda)  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "torch.cuda._gpu_trace", torch.trace)  # type: ignore[arg-type]
        return torch

    return install


def read(text: str) -> tuple[EventCall, dict[str, str]]:
    """As the analysis reads it."""
    for kind, pattern in TEXTS.items():
        if match := re.fullmatch(pattern, text):
            return kind, match.groupdict()
    raise AssertionError(f"not understood: {text}")


def test_each_call_becomes_a_text_that_the_analysis_understands(install: Install) -> None:
    torch = install()
    notes = EventAnnotations()
    notes.start()
    assert (notes.available, notes.reason, torch.activated) == (True, "", 1)
    torch.record(0x7F00, SIDE)
    torch.wait(0x7F00, 0)
    torch.trace.EventSynchronizationCallbacks.fire_callbacks(0x7F00)
    assert torch.written == [
        "diagnose: event 7f00 recorded on stream 55d0",
        "diagnose: stream 0 waits for event 7f00",
        "diagnose: host waits for event 7f00",
    ]
    assert [read(text) for text in torch.written] == [
        (EventCall.RECORDED, {"event": "7f00", "stream": "55d0"}),
        (EventCall.STREAM_WAITS, {"event": "7f00", "stream": "0"}),
        (EventCall.HOST_WAITS, {"event": "7f00"}),
    ]


def test_in_the_end_each_stream_that_never_waited_waits_for_itself(install: Install) -> None:
    torch = install()
    notes = EventAnnotations()
    notes.start()
    torch.record(0x7F00, SIDE)
    torch.wait(0x7F00, 0)
    torch.written.clear()
    notes.stop()
    assert torch.written == [
        "diagnose: event 7f11 recorded on stream 55d0",
        "diagnose: stream 55d0 waits for event 7f11",
    ]


def test_streams_that_cannot_be_listed_leave_nobody_listening(install: Install) -> None:
    class Changing(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise RuntimeError("dictionary changed size during iteration")

    torch = install()
    notes = EventAnnotations()
    notes.start()
    notes._devices = Changing()
    notes.stop()
    torch.record(0x7F00, SIDE)
    assert torch.written == []


def test_the_default_streams_of_two_devices_are_told_apart(install: Install) -> None:
    torch = install(devices=2)
    notes = EventAnnotations()
    notes.start()
    torch.record(0x7F00, 0, device=1)
    torch.wait(0x7F00, 0, device=0)
    torch.record(0x7F01, OTHER_DEVICE, device=1)
    assert torch.written == [
        "diagnose: event 7f00 recorded on stream 1",
        "diagnose: stream 0 waits for event 7f00",
        "diagnose: event 7f01 recorded on stream 66e0",
    ]
    made: list[tuple[int, int]] = []
    torch.cuda.default_stream = lambda device: made.append((0, device)) or Stream(torch, 0, device)
    torch.cuda.ExternalStream = lambda h, d: made.append((h, d)) or Stream(torch, h, d)
    notes.stop()
    assert made == [(0, 1), (OTHER_DEVICE, 1)]


def test_after_the_end_nobody_listens_and_others_still_do(install: Install) -> None:
    torch = install()
    heard: list[tuple[int, ...]] = []
    registry = torch.trace.EventRecordCallbacks
    registry.add_callback(lambda *handles: heard.append(handles))
    notes = EventAnnotations()
    notes.start()
    notes.stop()
    notes.stop()
    assert torch.listeners == 1
    torch.written.clear()
    torch.record(0x7F00, SIDE)
    assert (torch.written, heard) == ([], [(0x7F00, SIDE)])


@pytest.mark.parametrize("tell_apart", [True, False])
def test_nothing_is_asked_of_the_gpu_where_that_is_not_wanted(
    install: Install, tell_apart: bool
) -> None:
    torch = install()
    notes = EventAnnotations()
    notes.start()
    torch.record(0x7F00, SIDE)
    notes.stop(tell_apart=tell_apart)
    assert torch.num_events == tell_apart
    assert torch.listeners == 0


def test_a_stream_that_cannot_be_asked_costs_only_its_own_annotation(install: Install) -> None:
    torch = install()
    notes = EventAnnotations()
    notes.start()
    torch.record(0x7F00, SIDE)
    torch.record(0x7F01, SIDE + 1)
    whole = torch.cuda.ExternalStream

    def stream(handle: int, device: int) -> Stream:
        if handle == SIDE:
            raise RuntimeError("invalid resource handle")
        return whole(handle, device)

    torch.cuda.ExternalStream = stream
    torch.written.clear()
    notes.stop()
    assert torch.written == [
        "diagnose: event 7f11 recorded on stream 55d1",
        "diagnose: stream 55d1 waits for event 7f11",
    ]
    assert torch.listeners == 0


def test_what_fails_in_a_callback_does_not_reach_the_job(install: Install) -> None:
    torch = install(devices=2)
    notes = EventAnnotations()
    notes.start()

    def broken(*_: object) -> Any:
        raise RuntimeError("broken")

    torch.native._profiler._RecordFunctionFast = broken
    notes._mark = broken
    notes._current_device = broken
    torch.record(0x7F00, SIDE)
    torch.wait(0x7F00, 0)
    torch.trace.EventSynchronizationCallbacks.fire_callbacks(0x7F00)
    assert torch.written == []
    notes.stop()
    assert torch.listeners == 0


def test_a_job_without_cuda_is_left_alone(install: Install, monkeypatch: Any) -> None:
    torch = install()
    torch.cuda.is_initialized = lambda: False
    notes = EventAnnotations()
    notes.start()
    assert (notes.available, notes.reason) == (False, NO_CUDA)
    monkeypatch.delitem(sys.modules, "torch.cuda")
    notes.start()
    notes.stop()
    assert (notes.reason, torch.activated, torch.listeners) == (NO_CUDA, 0, 0)


@pytest.mark.parametrize("missing", ["module", "activation"])
def test_a_torch_that_cannot_call_back(install: Install, monkeypatch: Any, missing: str) -> None:
    torch = install()
    if missing == "module":
        monkeypatch.setitem(sys.modules, "torch.cuda._gpu_trace", None)
    else:
        del torch.native._activate_gpu_trace
    notes = EventAnnotations()
    notes.start()
    assert (notes.available, notes.reason, torch.listeners) == (False, TOO_OLD, 0)


@pytest.mark.parametrize("place", ["registry", "activation"])
def test_a_start_that_fails_half_way_leaves_nothing(install: Install, place: str) -> None:
    torch = install()

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    if place == "registry":
        torch.trace.EventWaitCallbacks.add_callback = broken
    else:
        torch.native._activate_gpu_trace = broken
    notes = EventAnnotations()
    notes.start()
    assert (notes.available, notes.reason) == (False, FAILED)
    notes.stop()
    assert torch.listeners == 0


def test_an_older_torch_without_fast_ranges_has_slow_ones(install: Install) -> None:
    torch = install()
    del torch.native._profiler._RecordFunctionFast
    torch.torch.autograd = SimpleNamespace(profiler=SimpleNamespace(record_function=torch.range_of))
    notes = EventAnnotations()
    notes.start()
    torch.record(0x7F00, 0)
    assert torch.written == ["diagnose: event 7f00 recorded on stream 0"]
    notes.stop()
