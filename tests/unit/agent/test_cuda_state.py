"""What recording leaves alone in CUDA, against a stand-in that keeps CUDA's rules."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from diagnose.agent import window as windows
from diagnose.agent.cuda_state import CaptureWatch, is_capturing, on_device
from diagnose.agent.protocol import ABORTED, RefusalError
from diagnose.agent.start import STEP, Start
from diagnose.agent.steps import StepClock
from diagnose.agent.window import OVER, PREPARED, RECORDING, WAITING, Window


class Cuda:
    """Two devices, of which the job uses the second; the current one is a thread's own."""

    def __init__(self) -> None:
        self.contexts = {1}
        self.capturing = False
        self.initialized = True
        self._thread = threading.local()

    @property
    def current(self) -> int:
        return getattr(self._thread, "device", 0)

    def synchronize(self) -> None:
        if self.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.contexts.add(self.current)

    @contextmanager
    def device(self, index: int) -> Any:
        before, self._thread.device = self.current, index
        try:
            yield
        finally:
            self._thread.device = before

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        assert self.initialized, "CUDA would be started for it"
        return self.capturing


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    cuda = Cuda()
    native = SimpleNamespace(
        _cuda_getDeviceCount=lambda: 2, _cuda_hasPrimaryContext=lambda n: n in cuda.contexts
    )

    class CUDAGraph:
        def capture_begin(self, *, fails: bool = False) -> None:
            if fails:
                raise RuntimeError("no memory")
            cuda.capturing = True

        def capture_end(self) -> None:
            cuda.capturing = False

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=native))
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    monkeypatch.setitem(sys.modules, "torch.cuda.graphs", SimpleNamespace(CUDAGraph=CUDAGraph))
    monkeypatch.setitem(
        sys.modules,
        "torch.autograd.profiler",
        SimpleNamespace(profile=Session, record_function=Range),
    )
    monkeypatch.setattr(windows, "working", lambda: None)
    return cuda


class Session:
    def _prepare_trace(self) -> None: ...


class Range:
    def __init__(self, name: str) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class Profile:
    """Of all threads; stopping it synchronises the current device, as torch's does."""

    all_threads = True

    def __init__(self, cuda: Cuda) -> None:
        self.calls: list[str] = []
        self._cuda = cuda

    def is_session(self, _session: object) -> bool:
        return False

    def prepare(self) -> None:
        self.calls.append("prepare")

    def start(self) -> None:
        self.calls.append("start")

    def add_metadata(self, _name: str, _value: object) -> None: ...

    def stop(self) -> None:
        self._cuda.synchronize()
        self.calls.append("stop")


def on_another_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()


class Check:
    """Companions of a profile, which note when they are started and stopped."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def start(self) -> None:
        self._calls.append("check starts")

    def stop(self, *, tell_apart: bool = True) -> None:
        self._calls.append("check stops" if tell_apart else "check stops quietly")


def armed(cuda: Cuda, start: int = 3, steps: int = 2) -> tuple[StepClock, Window, Profile]:
    """A window prepared at step ``start - 1``, which records the steps after ``start``."""
    clock = StepClock()
    window, profile = Window(clock, lambda: None), Profile(cuda)
    window.arm()
    clock.cuda_device, clock.training_thread = 1, threading.get_ident()
    clock.observe_thread = lambda: None  # type: ignore[method-assign]
    window.go(Start(STEP, start, 1), steps, lambda: profile)  # type: ignore[arg-type, return-value]
    return clock, window, profile


def test_a_window_ended_by_the_agents_thread_makes_no_context_elsewhere(cuda: Cuda) -> None:
    clock, window, profile = armed(cuda)
    for _ in range(3):
        clock.mark()
    assert window.state == RECORDING
    on_another_thread(lambda: window.abort(ABORTED, "gone"))
    assert (window.state, profile.calls) == (OVER, ["prepare", "start", "stop"])
    assert cuda.contexts == {1}


def test_where_no_step_was_seen_the_device_in_use_is_taken(cuda: Cuda) -> None:
    with on_device(None):
        cuda.synchronize()
    assert (cuda.contexts, cuda.current) == ({1}, 0)
    cuda.initialized = False
    with on_device(1):
        assert cuda.current == 0


def test_nothing_is_asked_of_a_cuda_that_does_not_run(cuda: Cuda) -> None:
    cuda.initialized = False
    assert is_capturing() is False


def test_a_step_that_is_being_captured_is_not_recorded(cuda: Cuda) -> None:
    clock, window, profile = armed(cuda)
    clock.mark()
    cuda.capturing = True
    clock.mark()  # here it would be prepared
    assert (window.state, profile.calls) == (OVER, [])
    assert window.error is not None
    assert window.error.code == ABORTED
    assert "CUDA graph" in window.error.sentence


@pytest.mark.parametrize(("marks", "state"), [(2, PREPARED), (3, RECORDING), (4, RECORDING)])
def test_a_capture_is_over_before_the_window_is_ended(cuda: Cuda, marks: int, state: str) -> None:
    clock, window, profile = armed(cuda)
    for _ in range(marks):
        clock.mark()
    assert window.state == state
    cuda.capturing = True
    clock.mark()
    assert "stop" not in profile.calls
    cuda.capturing = False
    clock.mark()
    assert (window.state, profile.calls) == (OVER, ["prepare", "start", "stop"])
    with pytest.raises(RefusalError, match="CUDA graph"):
        window.export(None)  # type: ignore[arg-type]


def test_the_agents_thread_waits_for_the_end_of_a_capture(cuda: Cuda) -> None:
    clock, window, profile = armed(cuda)
    for _ in range(3):
        clock.mark()
    graph = sys.modules["torch.cuda.graphs"].CUDAGraph()
    graph.capture_begin()
    on_another_thread(lambda: window.abort(ABORTED, "gone"))
    assert (window.state, profile.calls) == (RECORDING, ["prepare", "start"])
    graph.capture_end()
    assert (window.state, profile.calls) == (OVER, ["prepare", "start", "stop"])
    assert window.error is not None
    assert window.error.sentence == "gone"


def test_a_window_of_time_waits_for_the_end_of_a_capture(cuda: Cuda) -> None:
    window, profile = Window(StepClock(), lambda: None), Profile(cuda)
    window.arm()
    graph = sys.modules["torch.cuda.graphs"].CUDAGraph()
    waits: list[float] = []

    def sleep(seconds: float) -> bool:
        waits.append(seconds)
        if seconds == 5.0:
            graph.capture_begin()
        elif len(waits) == 5:
            graph.capture_end()
        return True

    window.record_for(profile, 0, 5.0, sleep)  # type: ignore[arg-type]
    assert (window.state, window.error) == (OVER, None)
    assert profile.calls == ["prepare", "start", "stop"]
    assert waits[2:] == [5.0, 0.01, 0.01]
    assert cuda.contexts == {1}


def test_graphs_are_as_before_when_the_window_is_over(cuda: Cuda) -> None:
    kind = sys.modules["torch.cuda.graphs"].CUDAGraph
    before = dict(vars(kind))
    _, window, _ = armed(cuda)
    assert vars(kind)["capture_begin"] is not before["capture_begin"]
    assert window.state == WAITING
    window.abort(ABORTED, "gone")
    assert dict(vars(kind)) == before


def test_a_capture_that_does_not_begin_is_none(cuda: Cuda) -> None:
    watch = CaptureWatch(threading.RLock(), lambda: None)
    watch.install()
    graph = sys.modules["torch.cuda.graphs"].CUDAGraph()
    with pytest.raises(RuntimeError, match="no memory"):
        graph.capture_begin(fails=True)
    assert not watch.underway
    graph.capture_begin()
    assert watch.underway
    watch.remove()
    graph.capture_end()


def test_a_fork_does_not_wait_for_a_lock_that_nobody_holds(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the child of a fork the thread that held the lock is not there."""
    _, window, _ = armed(cuda)
    window._pid += 1  # as if this were the child
    holding, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with window._lock:
            holding.set()
            leave.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    holding.wait(5)
    on_another_thread(lambda: window.abort(ABORTED, "gone"))
    leave.set()
    holder.join()
    assert window.state == WAITING


def with_check(cuda: Cuda) -> tuple[StepClock, Window, Profile]:
    clock, window, profile = armed(cuda)
    window._check = Check(profile.calls)  # type: ignore[assignment]
    return clock, window, profile


def test_companions_run_while_the_profile_does(cuda: Cuda) -> None:
    clock, window, profile = with_check(cuda)
    for _ in range(5):
        clock.mark()
    assert window.state == OVER
    assert profile.calls == ["prepare", "start", "check starts", "check stops", "stop"]


def test_companions_of_a_window_that_is_ended_end_before_its_profile(cuda: Cuda) -> None:
    clock, window, profile = with_check(cuda)
    for _ in range(3):
        clock.mark()
    on_another_thread(lambda: window.abort(ABORTED, "gone"))
    assert profile.calls == ["prepare", "start", "check starts", "check stops quietly", "stop"]


def test_companions_ask_nothing_of_the_gpu_while_another_thread_captures(cuda: Cuda) -> None:
    clock, window, profile = with_check(cuda)
    for _ in range(4):
        clock.mark()
    on_another_thread(sys.modules["torch.cuda.graphs"].CUDAGraph().capture_begin)
    cuda.capturing = False  # on this thread
    clock.mark()
    assert window.state == OVER
    assert profile.calls[-2:] == ["check stops quietly", "stop"]
