"""PyTorch fails in every place the agent calls it: the window says so, the job goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attach.conftest import Job
from tests.unit.agent.controller import Controller

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def jobs(start_job) -> Iterator[tuple[Job, Job]]:
    """The job that is tormented, and its twin that nobody touches: equal losses in the end."""
    tormented = start_job("faulty.py", ranks=1, agent=True)
    twin = start_job("faulty.py", ranks=1)
    tormented.pids, twin.pids  # noqa: B018 - waits
    tormented.wait_for_steps(10)
    yield tormented, twin
    tormented.wait_for_steps(100)
    tormented.finish()
    twin.wait_for_steps(100)
    twin.finish()
    compared = min(len(tormented.losses()), len(twin.losses()))
    assert tormented.losses()[:compared] == twin.losses()[:compared]
    assert compared >= 100
    assert (tormented.folder / "done.0").exists()
    assert "Traceback" not in tormented.output()


@pytest.fixture
def job(jobs: tuple[Job, Job]) -> Job:
    return jobs[0]


@pytest.fixture
def controller(job: Job) -> Iterator[Controller]:
    """A connection; in the end the job steps on, and the next window is a good one."""
    with Controller(job.sockets / f"{job.pids[0]}.sock") as controller:
        yield controller
        set_fault(job, "")
        trace = job.folder / "next.json"
        reply = record(controller, trace)
        assert reply["ok"], reply
        assert len(json.loads(trace.read_text())["traceEvents"]) > 100
        trace.unlink()
    job.more_steps(3)


def set_fault(job: Job, name: str) -> None:
    (job.folder / "fault").write_text(name)
    active = job.folder / "fault.active"
    job.wait_until(lambda: active.exists() and active.read_text() == name, 10, f"fault {name}")


def record(controller: Controller, trace: Path, steps: int = 3, **fields: Any) -> dict[str, Any]:
    armed = controller.ask("arm")
    assert armed["ok"], armed
    start = {"step": armed["marks"][-1][0] + 10}
    return controller.ask("go", start=start, steps=steps, trace=str(trace), **fields)


@pytest.mark.parametrize("place", ["create", "prepare", "start", "stop", "range"])
def test_a_failure_ends_the_window(
    job: Job, controller: Controller, tmp_path: Path, place: str
) -> None:
    set_fault(job, place)
    reply = record(controller, tmp_path / "trace.json")
    assert (reply["ok"], reply["code"]) == (False, "internal")
    assert "InjectedError: injected" in reply["error"]
    assert list(tmp_path.iterdir()) == []


def test_a_failing_export_leaves_no_file(job: Job, controller: Controller, tmp_path: Path) -> None:
    set_fault(job, "export")
    reply = record(controller, tmp_path / "trace.json")
    assert (reply["ok"], reply["code"]) == (False, "internal")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_half_way_through_the_start(
    job: Job, controller: Controller, tmp_path: Path
) -> None:
    set_fault(job, "metadata")  # torch adds some when the session runs already
    reply = record(controller, tmp_path / "trace.json")
    assert (reply["ok"], reply["code"]) == (False, "internal")
    assert list(tmp_path.iterdir()) == []


def test_a_lost_session_is_an_error_and_no_crash(
    job: Job, controller: Controller, tmp_path: Path
) -> None:
    set_fault(job, "lost")
    reply = record(controller, tmp_path / "trace.json")
    assert (reply["ok"], reply["code"]) == (False, "trace-lost")
    assert "another profiler" in reply["error"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["observer", "no observer"])
def test_a_failing_observer_costs_the_execution_trace_alone(
    job: Job, controller: Controller, tmp_path: Path, place: str
) -> None:
    set_fault(job, place)
    reply = record(controller, tmp_path / "trace.json", check_sync=str(tmp_path / "et.json"))
    assert reply["ok"], reply
    assert reply["check_sync"] == {
        "error": "InjectedError: injected",
        "events_annotated": False,
        "reason": "no-cuda",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    again_with_check(job, controller, tmp_path)


def test_failing_annotations_cost_nothing_else(
    job: Job, controller: Controller, tmp_path: Path
) -> None:
    set_fault(job, "annotations")
    reply = record(controller, tmp_path / "trace.json", check_sync=str(tmp_path / "et.json"))
    assert reply["ok"], reply
    said = reply["check_sync"]
    assert (said["events_annotated"], said["reason"]) == (False, "failed")
    assert said["bytes"] == (tmp_path / "et.json").stat().st_size
    again_with_check(job, controller, tmp_path)


@pytest.mark.parametrize("place", ["start", "stop", "range", "interrupt", "export"])
def test_a_window_that_fails_leaves_no_observer(
    job: Job, controller: Controller, tmp_path: Path, place: str
) -> None:
    set_fault(job, place)
    reply = record(controller, tmp_path / "trace.json", check_sync=str(tmp_path / "et.json"))
    assert not reply["ok"]
    assert list(tmp_path.iterdir()) == []
    again_with_check(job, controller, tmp_path)


def again_with_check(job: Job, controller: Controller, tmp_path: Path) -> None:
    """The one place that torch has for an observer is free again."""
    set_fault(job, "")
    path = tmp_path / "again.et.json"
    reply = record(controller, tmp_path / "again.json", check_sync=str(path))
    assert reply["ok"], reply
    assert reply["check_sync"]["path"] == str(path), reply
    names = {node["name"] for node in json.loads(path.read_text())["nodes"]}
    assert "aten::addmm" in names


def test_an_exception_of_the_job_itself_passes_through(
    job: Job, controller: Controller, tmp_path: Path
) -> None:
    set_fault(job, "interrupt")
    reply = record(controller, tmp_path / "trace.json")
    assert (reply["ok"], reply["code"]) == (False, "aborted")
    assert (job.folder / "interrupted").exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("beside", [{}, {"check_sync": "et.json"}])
def test_a_job_that_ends_while_it_is_recorded_ends_well(
    start_job, tmp_path: Path, beside: dict[str, str]
) -> None:
    beside = {name: str(tmp_path / file) for name, file in beside.items()}
    job = start_job("faulty.py", ranks=1, agent=True)
    with Controller(job.sockets / f"{job.pids[0]}.sock") as controller:
        step = controller.ask("arm")["marks"][-1][0]
        trace = str(tmp_path / "trace.json")
        controller.send("go", start={"step": step + 5}, steps=100_000, trace=trace, **beside)
        job.more_steps(30)
        job.finish()
    assert (job.folder / "done.0").exists()
    assert list(job.sockets.iterdir()) == []
    assert list(tmp_path.iterdir()) == []
