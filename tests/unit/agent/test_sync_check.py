"""An execution trace and annotated events beside a profile: whatever fails costs only itself."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diagnose.agent import sync_check
from diagnose.agent.profiler import Profile, read_options
from diagnose.agent.sync_check import SyncCheck

torch = pytest.importorskip("torch")
KIND = torch.profiler.ExecutionTraceObserver
REGISTER = vars(KIND)["register_callback"]


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path) -> Iterator[None]:
    """In the end torch's class is as it was, and its one place for an observer is free."""
    yield
    assert vars(KIND)["register_callback"] is REGISTER
    own = tmp_path / "own.json"
    assert trace_of(own, lambda: torch.ones(3).add(1)) >= {"aten::ones", "aten::add"}


def names_in(path: Path) -> set[str]:
    return {node["name"] for node in json.loads(path.read_text())["nodes"]}


def trace_of(path: Path, work: Callable[[], object]) -> set[str]:
    """What an observer of the job's own writes down meanwhile."""
    observer = KIND()
    observer.register_callback(str(path))
    observer.start()
    work()
    observer.stop()
    observer.unregister_callback()
    return names_in(path)


class Events:
    """Stands for the annotations, and notes what is done."""

    def __init__(self) -> None:
        self.available, self.reason = True, ""
        self.calls: list[Any] = []

    def start(self) -> None:
        self.calls.append("start")

    def stop(self, *, tell_apart: bool = True) -> None:
        self.calls.append(("stop", tell_apart))


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncCheck]:
    monkeypatch.setattr(sync_check, "EventAnnotations", Events)
    (tmp_path / "out").mkdir()
    check = SyncCheck(str(tmp_path / "out" / "et.json"))
    yield check
    check.close()
    check.close()


def calls(check: SyncCheck) -> list[Any]:
    return check._events.calls  # type: ignore[attr-defined, no-any-return]


def written(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "out").iterdir())


def test_what_runs_between_start_and_stop_is_written(check: SyncCheck, tmp_path: Path) -> None:
    torch.ones(3).add(1)
    check.start()
    torch.ones(3).mul(2)
    check.stop()
    torch.ones(3).div(2)
    assert written(tmp_path) == ["et.json.part"]
    path = tmp_path / "out" / "et.json"
    said = check.finish()
    assert said == {
        "path": str(path),
        "bytes": path.stat().st_size,
        "events_annotated": True,
        "reason": "",
    }
    assert calls(check) == ["start", ("stop", True)]
    assert written(tmp_path) == ["et.json"]
    found = names_in(path)
    assert "aten::mul" in found
    assert not found & {"aten::add", "aten::div"}
    check.close()
    assert written(tmp_path) == ["et.json"]


def test_operators_have_the_same_ids_in_the_profile(check: SyncCheck, tmp_path: Path) -> None:
    profile = Profile(read_options({"stacks": True}), {})
    profile.prepare()
    profile.start()
    check.start()
    torch.ones(3).mul(2)
    check.stop()
    profile.stop()
    trace = tmp_path / "trace.json"
    profile._profile.export_chrome_trace(str(trace))
    profile.release()
    check.finish()
    events = json.loads(trace.read_text())["traceEvents"]
    seen = {
        (e["args"]["Record function id"], e["name"]) for e in events if e.get("cat") == "cpu_op"
    }
    nodes = json.loads((tmp_path / "out" / "et.json").read_text())["nodes"]
    ids = {
        (attr["value"], node["name"])
        for node in nodes
        for attr in node["attrs"]
        if attr["name"] == "rf_id"
    }
    assert {name for _, name in seen} >= {"aten::ones", "aten::mul"}
    assert seen <= ids


def test_a_job_without_cuda_has_an_execution_trace_all_the_same(tmp_path: Path) -> None:
    check = SyncCheck(str(tmp_path / "et.json"))
    check.start()
    check.stop()
    said = check.finish()
    assert (said["events_annotated"], said["reason"]) == (False, "no-cuda")
    assert said["bytes"] > 0


def test_one_that_did_not_begin_says_so(check: SyncCheck, tmp_path: Path) -> None:
    check.stop()
    assert check.finish()["error"] == "the window did not begin"
    assert (calls(check), written(tmp_path)) == ([], [])


def test_one_that_is_given_up_leaves_no_file_and_asks_no_gpu(
    check: SyncCheck, tmp_path: Path
) -> None:
    check.start()
    assert check.open
    check.close()
    assert not check.open
    assert (calls(check), written(tmp_path)) == (["start", ("stop", False)], [])


def test_one_that_is_closed_does_not_begin_any_more(check: SyncCheck, tmp_path: Path) -> None:
    check.close()
    check.start()
    assert (calls(check), written(tmp_path)) == ([], [])


def test_the_jobs_own_observer_goes_first(check: SyncCheck, tmp_path: Path) -> None:
    def work() -> None:
        check.start()
        torch.ones(3).mul(2)
        check.stop()
        said = check.finish()
        assert said["error"] == "the job has an execution trace observer of its own"
        assert said["events_annotated"] is True
        torch.ones(3).div(2)

    assert trace_of(tmp_path / "jobs.json", work) >= {"aten::mul", "aten::div"}
    assert (calls(check), written(tmp_path)) == (["start", ("stop", True)], [])


def test_where_the_job_makes_one_meanwhile_ours_leaves(check: SyncCheck, tmp_path: Path) -> None:
    check.start()
    assert "aten::mul" in trace_of(tmp_path / "jobs.json", lambda: torch.ones(3).mul(2))
    check.stop()
    assert "which goes first" in check.finish()["error"]
    assert written(tmp_path) == []


def test_one_that_the_job_makes_behind_the_window_costs_nothing(
    check: SyncCheck, tmp_path: Path
) -> None:
    check.start()
    torch.ones(3).mul(2)
    check.stop()
    assert "aten::div" in trace_of(tmp_path / "jobs.json", lambda: torch.ones(3).div(2))
    assert "path" in check.finish()
    assert "aten::mul" in names_in(tmp_path / "out" / "et.json")


def broken(*_: object) -> Any:
    raise ValueError("broken\nin two lines")


@pytest.mark.parametrize("place", ["__init__", "register_callback", "start"])
def test_an_observer_that_fails_is_said(
    check: SyncCheck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(KIND, place, broken)
        if place == "__init__":
            patch.setattr(KIND, "__del__", lambda _: None)  # of what is not even made
        check.start()
        check.stop()
        assert check.finish() == {
            "error": "ValueError: broken",
            "events_annotated": True,
            "reason": "",
        }
    assert (calls(check), written(tmp_path)) == (["start", ("stop", True)], [])


def test_an_end_of_the_file_that_is_missing_is_said(
    check: SyncCheck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(KIND, "unregister_callback", broken)
        patch.setattr(KIND, "stop", broken)
        check.start()
        observer = check._observer._observer  # type: ignore[union-attr]
        check.stop()
        assert "incomplete" in check.finish()["error"]
    observer.unregister_callback()
    assert written(tmp_path) == []


def test_a_torch_without_an_observer(
    check: SyncCheck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.delattr(torch.profiler, "ExecutionTraceObserver")
        check.start()
        check.stop()
        assert check.finish()["error"] == "this torch has no ExecutionTraceObserver"
    assert written(tmp_path) == []


def test_a_place_that_is_taken_costs_the_execution_trace_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_check, "EventAnnotations", Events)
    path = tmp_path / "et.json"
    path.write_text("precious")
    check = SyncCheck(str(path))
    assert not check.open
    check.start()
    check.stop()
    said = check.finish()
    assert "there is a file of this name already" in said["error"]
    assert said["events_annotated"] is True
    check.close()
    assert path.read_text() == "precious"


@pytest.mark.parametrize("place", ["register_callback", "start"])
def test_an_interrupt_of_the_job_goes_on_its_way(
    check: SyncCheck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    whole = vars(KIND)[place]

    def interrupted(*arguments: object) -> None:
        whole(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(KIND, place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            check.start()
    check.close()
    assert written(tmp_path) == []


def test_a_child_of_the_process_leaves_the_file_alone(check: SyncCheck, tmp_path: Path) -> None:
    check.start()
    torch.ones(3).mul(2)
    child = os.fork()
    if child == 0:
        torch.ones(3).div(2)
        check.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    torch.ones(3).sub(2)
    check.stop()
    assert "path" in check.finish()
    found = names_in(tmp_path / "out" / "et.json")
    assert found >= {"aten::mul", "aten::sub"}
    assert "aten::div" not in found
