"""The sanitizer as an observer: what is written, and that nothing reaches the job."""

from __future__ import annotations

import enum
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diagnose.agent import autoload, early_end, sanitizer, server
from diagnose.agent.steps import Mark, StepClock

TORCH = "/x/site-packages/torch/__init__.py"
READS = frozenset([4096])


class Kind(enum.Enum):
    READ = 1
    WRITE = 2


class Left(BaseException):
    """Stands for the end of the process."""


def access(operator: str, stream: int, kind: Kind, line: int, *inner: str) -> Any:
    frames = [("/a/train.py", line, "main"), *((file, 1, "f") for file in inner)]
    stack = [SimpleNamespace(filename=f, lineno=n, name=w) for f, n, w in frames]
    return SimpleNamespace(
        operator=operator,
        stream=stream,
        type=kind,
        aliases=["self"],
        is_output=kind is Kind.WRITE,
        stack_trace=stack,
    )


def race(line: int = 5, *, stream: int = 7, allocated: Any = None) -> Any:
    return SimpleNamespace(
        data_ptr=4096,
        current_access=access(
            "aten::mm(Tensor self)", 0, Kind.READ, line, "/x/site-packages/torch/a.py"
        ),
        previous_access=access("aten::mul(Tensor self)", stream, Kind.WRITE, 3, sanitizer.__file__),
        allocation_stack_trace=allocated,
    )


class Job:
    """A stand-in for torch and its sanitizer. ``found``: what each launch finds, or raises."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = StepClock()
        self.found: Any = []
        self.forks: dict[str, Any] = {}
        self.cuda = SimpleNamespace(
            is_initialized=lambda: False,
            is_available=lambda: True,
            is_current_stream_capturing=lambda: False,
        )

        self.ordered: list[tuple[str, int]] = []

        class EventHandler:
            def _handle_kernel_launch(handler, *_: Any) -> Any:  # noqa: N805
                if isinstance(self.found, Exception):
                    raise self.found
                return self.found

            def _handle_event_synchronization(handler, event: int) -> None:  # noqa: N805
                self.ordered.append(("event", event))

            def _handle_stream_synchronization(handler, stream: int) -> None:  # noqa: N805
                self.ordered.append(("stream", stream))

        class CUDASanitizerDispatchMode:
            def __torch_dispatch__(
                mode,  # noqa: N805
                func: Any,
                types: Any,
                args: Any = (),
                kwargs: Any = None,
            ) -> Any:
                return "checked", func(*args, **(kwargs or {}))

        self.module = SimpleNamespace(
            EventHandler=EventHandler,
            CUDASanitizerDispatchMode=CUDASanitizerDispatchMode,
            cuda_sanitizer=SimpleNamespace(dispatch=SimpleNamespace(event_handler=EventHandler())),
            enable_cuda_sanitizer=lambda: "on",
        )
        self.streams = SimpleNamespace(
            Event=type("Event", (), {"cuda_event": 5, "query": lambda one: one.done}),
            Stream=type("Stream", (), {"cuda_stream": 6, "query": lambda one: one.done}),
        )

    def launch(self, *found: Any, touched: frozenset[int] | set[int] = READS) -> None:
        self.found = list(found)
        handler = self.module.EventHandler()
        assert handler._handle_kernel_launch(0, set(touched), set(), set(), "aten::mm", {}) == []

    def step(self) -> None:
        self.clock.mark()

    def written(self, kind: str) -> list[dict[str, Any]]:
        path = self.folder / f"{os.getpid()}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [one for one in map(json.loads, lines) if one["kind"] == kind]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    job = Job(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__file__=TORCH, __version__="2.99"))
    monkeypatch.setitem(sys.modules, "torch.cuda", job.cuda)
    monkeypatch.setitem(sys.modules, "torch.cuda.streams", job.streams)
    monkeypatch.setenv(sanitizer.FOLDER, str(tmp_path))
    monkeypatch.setenv(sanitizer.STEPS, "2")
    monkeypatch.setenv(sanitizer.SECONDS, "600")
    monkeypatch.setattr(server, "prepare", lambda: SimpleNamespace(clock=job.clock))
    monkeypatch.setattr(sanitizer.atexit, "register", lambda _: None)
    monkeypatch.setattr(sanitizer.os, "register_at_fork", lambda **hooks: job.forks.update(hooks))

    def leave(_folder: str, *, finish_work: bool) -> None:
        raise Left(finish_work)

    monkeypatch.setattr(early_end, "leave", leave)
    sanitizer.watch(job.module)
    return job


def test_a_race_is_written_once_and_counted(job: Job) -> None:
    made = [SimpleNamespace(filename="/a/data.py", lineno=9, name="make")]
    job.launch(race(allocated=made))
    job.launch(race(allocated=made), race(line=6))
    job.step()
    first, other = job.written("race")
    assert (first["data_ptr"], first["step"], first["device"]) == (4096, 1, None)
    assert first["second"] == {
        "operator": "aten::mm(Tensor self)",
        "stream": 0,
        "writes": False,
        "arguments": ["self"],
        "output": False,
        "stack": [["/a/train.py", 5, "main"]],  # neither torch's frame nor ours
    }
    assert (first["first"]["writes"], first["first"]["stream"]) == (True, 7)
    assert first["first"]["stack"] == [["/a/train.py", 3, "main"]]
    assert first["allocated"] == [["/a/data.py", 9, "make"]]
    assert other["second"]["stack"] == [["/a/train.py", 6, "main"]]
    assert [(one["id"], one["count"], one["steps"]) for one in job.written("again")[-2:]] == [
        (0, 2, [1]),
        (1, 1, [1]),
    ]
    assert job.written("step")[-1]["launches"] == 2


def test_other_streams_are_another_race(job: Job) -> None:
    job.launch(race(), race(stream=8))
    assert [one["first"]["stream"] for one in job.written("race")] == [7, 8]


def test_after_the_steps_the_process_ends(job: Job) -> None:
    job.launch()
    job.step()
    job.launch(race())
    with pytest.raises(Left) as left:
        job.step()
    assert left.value.args == (True,)
    [end] = job.written("end")
    assert (end["why"], end["steps"], end["launches"]) == ("steps", 2, 2)
    assert (end["torch"], end["gpu_available"]) == ("2.99", True)
    assert [(one["count"], one["steps"]) for one in job.written("again")] == [(1, [2])]


def test_a_race_without_a_known_line_and_a_stack_of_none(job: Job) -> None:
    one = race()
    one.current_access.stack_trace = []
    one.previous_access.stack_trace = None
    job.launch(one, one)
    [written] = job.written("race")
    assert (written["second"]["stack"], written["first"]["stack"]) == ([], [])


@pytest.mark.parametrize("broken", [ValueError("no"), [object()], 7])
def test_what_the_sanitizer_fails_at_is_counted_and_the_job_goes_on(job: Job, broken: Any) -> None:
    job.found = broken
    arguments = (0, {1}, set(), set(), "aten::mm", {})
    assert job.module.EventHandler()._handle_kernel_launch(*arguments) == []
    with pytest.raises(Left):
        job.clock.listener(Mark(2, None, 0))  # type: ignore[misc]
    [end] = job.written("end")
    assert (end["failures"], end["launches"]) == (1, 1)


def test_a_folder_that_is_gone_hurts_nobody(job: Job, tmp_path: Path) -> None:
    job.folder.rename(tmp_path.with_name(f"{tmp_path.name}-away"))
    job.launch(race())
    job.step()
    with pytest.raises(Left):
        job.step()


def test_operators_without_a_tensor_of_a_gpu_are_not_counted(job: Job) -> None:
    job.launch(touched=set())
    job.launch(touched={1})
    job.step()
    assert job.written("step")[-1]["launches"] == 1


def test_after_the_time_it_ends_in_the_middle_of_a_step(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There nobody waits for what was launched: the others may never begin their part."""
    now = [1000.0]
    monkeypatch.setattr(sanitizer.time, "monotonic", lambda: now[0])
    job.launch(race())
    now[0] += 599.9  # from the first operator on, whenever that was
    job.launch()
    now[0] += 0.2
    with pytest.raises(Left) as left:
        job.launch(race())
    assert left.value.args == (False,)
    [end] = job.written("end")
    assert (end["why"], end["steps"], end["launches"]) == ("seconds", 0, 3)
    assert job.written("again")[-1]["count"] == 2


def test_what_was_watched_is_known_of_a_process_that_is_killed(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes how far it is once a second, without a step as well."""
    now = [1000.0]
    monkeypatch.setattr(sanitizer.time, "monotonic", lambda: now[0])
    for _ in range(31):
        job.launch(race())
        now[0] += 0.1
    assert [one["launches"] for one in job.written("step")] == [1, 11, 21, 31]
    assert [one["count"] for one in job.written("again")] == [1, 11, 21, 31]


def test_a_query_that_returns_true_orders_as_waiting_does(job: Job) -> None:
    event, stream = job.streams.Event(), job.streams.Stream()
    event.done, stream.done = False, False
    assert (event.query(), stream.query()) == (False, False)
    assert job.ordered == []
    event.done, stream.done = True, True
    assert (event.query(), stream.query()) == (True, True)
    assert job.ordered == [("event", 5), ("stream", 6)]


def test_a_sanitizer_of_another_make_stays_off_and_is_told_of(job: Job) -> None:
    """Left on it would end the job at the first race, with nobody to hear of it."""
    other = SimpleNamespace(enable_cuda_sanitizer=lambda: "on", EventHandler=object)
    sanitizer.watch(other)
    assert other.enable_cuda_sanitizer() is None
    [said] = job.written("unusable")
    assert (said["why"], said["torch"]) == ("unknown", "2.99")


def test_a_torch_without_a_sanitizer_is_told_of(job: Job, tmp_path: Path) -> None:
    cuda = SimpleNamespace(__file__=str(tmp_path / "__init__.py"))
    (tmp_path / "_sanitizer.py").touch()
    sanitizer.note_if_missing(cuda)
    assert job.written("unusable") == []
    (tmp_path / "_sanitizer.py").unlink()
    sanitizer.note_if_missing(cuda)
    assert job.written("unusable")[0]["why"] == "missing"


def test_a_fork_that_computes_on_the_cpu_is_not_ended(job: Job) -> None:
    job.launch()
    job.forks["after_in_child"]()
    job.cuda.is_available = lambda: False  # as in a fork of a process that uses CUDA
    for _ in range(5):
        job.step()
    assert job.written("end") == []
    assert job.written("step")[-1]["launches"] == 0


def test_without_a_gpu_it_ends_after_one_step(job: Job) -> None:
    job.cuda.is_available = lambda: False
    with pytest.raises(Left):
        job.step()
    [end] = job.written("end")
    assert (end["steps"], end["launches"], end["gpu_available"]) == (1, 0, False)


def test_where_cuda_does_not_run_operators_are_left_alone(job: Job) -> None:
    mode = job.module.CUDASanitizerDispatchMode()

    def operator(*_: Any, **kwargs: Any) -> str:
        return "done"

    assert mode.__torch_dispatch__(operator, ()) == "done"
    assert mode.__torch_dispatch__(operator, (), (), {"device": "cpu"}) == "done"
    job.cuda.is_initialized = lambda: True
    assert mode.__torch_dispatch__(operator, ()) == "done"  # of higher order, as cond
    operator._schema = "aten::mm"  # type: ignore[attr-defined]
    assert mode.__torch_dispatch__(operator, ()) == ("checked", "done")
    # The operator that starts CUDA already touches memory of a GPU.
    job.cuda.is_initialized = lambda: False
    on_gpu = {"device": "cuda:1"}
    assert mode.__torch_dispatch__(operator, (), (), on_gpu) == ("checked", "done")
    job.cuda.is_initialized = lambda: True
    # Its class is asked, and the operators on what it wraps come by.
    wrapper = type("DTensor", (), {"__tensor_flatten__": None})
    assert mode.__torch_dispatch__(operator, (wrapper,)) is NotImplemented
    assert mode.__torch_dispatch__(operator, (type("FakeTensor", (), {}),)) == "done"
    assert mode.__torch_dispatch__(operator, (type("Own", (), {}),)) == ("checked", "done")
    # What a graph captures does not run, and would look unordered to all that comes after it.
    job.cuda.is_current_stream_capturing = lambda: True
    assert mode.__torch_dispatch__(operator, ()) == "done"


def test_only_a_job_that_is_checked_loads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(autoload.CHECK_SYNC, raising=False)
    assert "torch.cuda._sanitizer" not in autoload._TorchFinder()._actions
    monkeypatch.setenv(autoload.CHECK_SYNC, "/x")
    assert "torch.cuda._sanitizer" in autoload._TorchFinder()._actions
    assert autoload.CHECK_SYNC == sanitizer.FOLDER
