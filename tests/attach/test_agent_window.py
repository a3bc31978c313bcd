"""Windows of the cooperative agent in a real job of two ranks: one job serves all tests."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attach.conftest import Job
from tests.unit.agent.controller import Controller

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def job(start_job, untouched_losses) -> Iterator[Job]:
    """Two ranks of about 8 ms a step. In the end: all losses are those of an untouched run."""
    job = start_job("train.py", env={"SLEEP": "0.005"}, agent=True)
    job.pids  # noqa: B018 - waits
    job.wait_for_steps(20)
    yield job
    job.finish()
    for rank in range(2):
        losses = job.losses(rank)
        compared = min(len(losses), len(untouched_losses[rank]))
        assert compared >= 200
        assert losses[:compared] == untouched_losses[rank][:compared]
    assert list(job.sockets.iterdir()) == []


@pytest.fixture
def ranks(job: Job) -> Iterator[list[Controller]]:
    """A connection to each rank; in the end each is idle, alive and without a leftover."""
    threads = [_threads(pid) for pid in job.pids]
    controllers = [_connect(job, pid) for pid in job.pids]
    yield controllers
    for controller in controllers:
        controller.close()
    for pid, before in zip(job.pids, threads, strict=True):
        with _connect(job, pid) as controller:
            status = controller.ask("status")
            assert (status["ok"], status["state"]) == (True, "idle")
        # One thread, which Kineto starts at its first profile and keeps; the agent adds none.
        assert _threads(pid) - before <= 1
    job.more_steps(2)


def _connect(job: Job, pid: int) -> Controller:
    """Connects, waiting while the agent still ends what the last controller left."""
    end = time.monotonic() + 10
    while True:
        controller = Controller(job.sockets / f"{pid}.sock")
        controller.send("status")
        if controller.receive().get("code") != "busy" or time.monotonic() > end:
            return controller
        controller.close()
        time.sleep(0.02)


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _each(ranks: list[Controller], op: str, **fields: Any) -> list[dict[str, Any]]:
    for controller in ranks:
        controller.send(op, **fields)
    return [controller.receive() for controller in ranks]


def _record(
    ranks: list[Controller], folder: Path, steps: int = 3, **fields: Any
) -> list[dict[str, Any]]:
    """One window on all ranks by the sequence number; its replies."""
    armed = _each(ranks, "arm", marks=2)
    assert all(reply["ok"] for reply in armed), armed
    last = [reply["marks"][-1] for reply in armed]
    first = armed[0]["marks"]
    stride = first[-1][1] - first[-2][1]
    start = max(mark[1] for mark in last) + 20 * stride
    for rank, controller in enumerate(ranks):
        trace = str(folder / f"rank{rank}.json")
        controller.send(
            "go", start={"seq": start}, stride=stride, steps=steps, trace=trace, **fields
        )
    return [controller.receive() for controller in ranks]


def _events(path: str) -> list[dict[str, Any]]:
    return json.loads(Path(path).read_text())["traceEvents"]


def _num_marks(events: list[dict[str, Any]]) -> int:
    return sum(
        event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
        for event in events
    )


def test_status_says_who_it_is(job: Job, ranks) -> None:
    for rank, status in enumerate(_each(ranks, "status")):
        assert status["pid"] == job.pids[rank]
        assert (status["rank"], status["local_rank"], status["world_size"]) == (rank, rank, 2)
        assert (status["backend"], status["hooked"], status["injected"]) == ("gloo", True, False)
        assert status["step"] >= 20
        assert 3e6 < status["step_ns"] < 1e9
        assert (status["cuda_device"], status["gpu_uuid"]) == (None, None)


def test_environment(ranks) -> None:
    for rank, reply in enumerate(_each(ranks, "environment")):
        found = reply["environment"]
        assert (found["rank"], found["world_size"], found["gpu"]) == (rank, 2, None)
        assert found["env"]["OMP_NUM_THREADS"] == "1"
        assert "PATH" not in found["env"]


def test_the_same_three_steps_on_both_ranks(job: Job, ranks, tmp_path: Path) -> None:
    replies = _record(ranks, tmp_path, metadata={"diagnose": {"window": 7}})
    assert [reply["ok"] for reply in replies] == [True, True], replies
    numbers = [[mark[1] for mark in reply["marks"]] for reply in replies]
    assert numbers[0] == numbers[1]
    stride = numbers[0][1] - numbers[0][0]
    assert numbers[0] == [numbers[0][0] + n * stride for n in range(4)]
    for rank, reply in enumerate(replies):
        assert (reply["clock"], reply["ignored"]) == ("seq", [])
        assert reply["bytes"] == Path(reply["trace"]).stat().st_size
        assert Path(reply["trace"]).stat().st_mode & 0o777 == 0o600
        assert all(reply[name] > 0 for name in ("prepare_ns", "start_ns", "stop_ns", "export_ns"))
        assert reply["started_unix_ns"] < reply["marks"][1][2] < reply["ended_unix_ns"]
        trace = json.loads(Path(reply["trace"]).read_text())
        assert trace["distributedInfo"]["rank"] == rank
        assert trace["diagnose"] == {"window": 7}
        assert trace["diagnose_marks"] == reply["marks"]
        events = trace["traceEvents"]
        marks = [e["name"] for e in events if e["name"].startswith("ProfilerStep#")]
        assert sorted(set(marks)) == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
        assert _num_marks(events) == 3
        operators = [event for event in events if event.get("cat") == "cpu_op"]
        by_thread = Counter(event["tid"] for event in operators)
        assert by_thread[job.pids[rank]] > 100
        linear = [event for event in operators if event["name"] == "aten::addmm"]
        assert len(linear) == 3 * 4  # steps x layers of the model
        assert linear[0]["args"]["Input Dims"][1] == [16, 64]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0.json", "rank1.json"]
    after = _each(ranks, "after", marks=3)
    for reply, later in zip(replies, after, strict=True):
        last = reply["marks"][-1][0]
        assert [mark[0] for mark in later["marks"]] == [last + 1, last + 2, last + 3]


def test_a_start_that_is_past_is_missed_and_may_be_tried_again(ranks, tmp_path: Path) -> None:
    armed = _each(ranks, "arm")
    start = armed[0]["marks"][-1][1]
    for controller in ranks:
        reply = controller.ask(
            "go", start={"seq": start}, stride=1, steps=1, trace=str(tmp_path / "x")
        )
        assert (reply["ok"], reply["code"]) == (False, "start-missed")
        assert controller.ask("status")["state"] == "armed"
    assert list(tmp_path.iterdir()) == []
    assert all(reply["ok"] for reply in _record(ranks, tmp_path, steps=1))


def test_other_clocks(ranks, tmp_path: Path) -> None:
    one = ranks[0]
    step = one.ask("arm")["marks"][-1][0]
    reply = one.ask("go", start={"step": step + 30}, steps=2, trace=str(tmp_path / "a"))
    assert [mark[0] for mark in reply["marks"]] == [step + 30, step + 31, step + 32]
    one.ask("arm")
    moment = time.time_ns() + 300_000_000
    reply = one.ask("go", start={"unix_ns": moment}, steps=2, trace=str(tmp_path / "b"))
    assert (reply["clock"], len(reply["marks"])) == ("unix", 3)
    # The first boundary after the moment, or the one before it where a step was longer.
    assert abs(reply["marks"][0][2] - moment) < 200_000_000


def test_a_window_of_time_needs_no_steps(job: Job, ranks, tmp_path: Path) -> None:
    moment = time.time_ns() + 700_000_000
    reply = ranks[0].ask(
        "go", start={"unix_ns": moment}, seconds=0.2, trace=str(tmp_path / "clock")
    )
    assert reply["ok"], reply
    assert 0 <= reply["started_unix_ns"] - moment < 200_000_000
    assert 0.19e9 < reply["ended_unix_ns"] - reply["started_unix_ns"] < 0.6e9
    assert len(reply["marks"]) >= 2
    events = _events(reply["trace"])
    operators = [event for event in events if event.get("cat") == "cpu_op"]
    # Seen from the agent's thread, and yet those of the training thread.
    assert Counter(event["tid"] for event in operators).most_common(1)[0][0] == job.pids[0]


def test_options(ranks, tmp_path: Path) -> None:
    (bare,) = _record(ranks[:1], tmp_path, 1, options={"shapes": False, "sync_events": False})
    operators = [e for e in _events(bare["trace"]) if e.get("cat") == "cpu_op"]
    assert operators
    assert not any("Input Dims" in event["args"] for event in operators)
    Path(bare["trace"]).unlink()
    (memory,) = _record(ranks[:1], tmp_path, 1, options={"memory": True})
    assert memory["ignored"] == ["all_threads"]
    assert any(event["name"] == "[memory]" for event in _events(memory["trace"]))
    Path(memory["trace"]).unlink()
    (stacks,) = _record(ranks[:1], tmp_path, 1, options={"stacks": True, "modules": True})
    assert stacks["ignored"] == []
    assert any(event.get("cat") == "python_function" for event in _events(stacks["trace"]))


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({}, "start is an object"),
        ({"start": {"step": 10**6}}, "give steps, or seconds"),
        ({"start": {"step": 10**6}, "steps": 1, "seconds": 1}, "give steps, or seconds"),
        ({"start": {"step": 10**6}, "seconds": 1}, "give steps, or seconds"),
        ({"start": {"step": 10**6}, "steps": 0}, "steps must be a number"),
        ({"start": {"step": 10**6}, "steps": 1}, "absolute path"),
        ({"start": {"step": 10**6}, "steps": 1, "trace": "here.json"}, "absolute path"),
        ({"start": {"step": 10**6}, "steps": 1, "trace": "/tmp/\0"}, "absolute path"),
        ({"start": {"step": 10**6}, "steps": 1, "options": {"secret": True}}, "options are"),
        ({"start": {"step": 10**6}, "steps": 1, "options": {"shapes": 1}}, "options are"),
        ({"start": {"step": 10**6}, "steps": 1, "metadata": []}, "metadata"),
    ],
)
def test_bad_windows_are_refused(ranks, fields: dict[str, Any], part: str) -> None:
    ranks[0].ask("arm")
    if fields.get("metadata") == []:
        fields = {**fields, "metadata": [1]}
    reply = ranks[0].ask("go", **fields)
    assert (reply["ok"], reply["code"]) == (False, "bad-request")
    assert part in reply["error"]


def test_go_without_arm_is_refused(ranks, tmp_path: Path) -> None:
    reply = ranks[0].ask("go", start={"step": 10**6}, steps=1, trace=str(tmp_path / "a"))
    assert (reply["code"], list(tmp_path.iterdir())) == ("bad-request", [])


def test_a_folder_that_cannot_be_written_is_refused_before_anything(ranks, tmp_path: Path) -> None:
    ranks[0].ask("arm")
    for place in ("/proc/trace.json", str(tmp_path / "missing" / "trace.json")):
        reply = ranks[0].ask("go", start={"step": 10**6}, steps=1, trace=place)
        assert (reply["ok"], reply["code"]) == (False, "output")
        assert place in reply["error"]
    for taken in ("trace.json", "trace.json.part"):
        (tmp_path / taken).write_text("theirs")
        reply = ranks[0].ask(
            "go", start={"step": 10**6}, steps=1, trace=str(tmp_path / "trace.json")
        )
        assert reply["code"] == "output"
        assert (tmp_path / taken).read_text() == "theirs"
        (tmp_path / taken).unlink()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("steps_ahead", [10**6, 15])
def test_a_controller_that_goes_away_ends_the_window(
    job: Job, ranks, tmp_path: Path, steps_ahead: int
) -> None:
    """While it waits for the start; and while it records (a window of 100,000 steps)."""
    controller = ranks[0]
    step = controller.ask("arm")["marks"][-1][0]
    controller.send(
        "go", start={"step": step + steps_ahead}, steps=100_000, trace=str(tmp_path / "a")
    )
    job.more_steps(40)
    assert [path.name for path in tmp_path.iterdir()] == ["a.part"]
    began = time.monotonic()
    controller.close()
    while list(tmp_path.iterdir()):
        assert time.monotonic() - began < 3
        time.sleep(0.005)
    with _connect(job, job.pids[0]) as other:
        assert other.ask("status")["state"] == "idle"


def test_cancel_ends_the_window(job: Job, ranks, tmp_path: Path) -> None:
    controller = ranks[0]
    step = controller.ask("arm")["marks"][-1][0]
    controller.send("go", start={"step": step + 15}, steps=100_000, trace=str(tmp_path / "a"))
    job.more_steps(30)
    controller.send("cancel")
    reply = controller.receive()
    assert (reply["ok"], reply["code"]) == (False, "aborted")
    assert controller.receive() == {"ok": True}
    assert list(tmp_path.iterdir()) == []


def test_a_window_has_its_time(ranks, tmp_path: Path) -> None:
    for start, code in ((10**6, "no-steps"), (15, "aborted")):
        step = ranks[0].ask("arm")["marks"][-1][0]
        reply = ranks[0].ask(
            "go",
            start={"step": step + start},
            steps=100_000,
            trace=str(tmp_path / "a"),
            timeout_s=0.6,
        )
        assert (reply["ok"], reply["code"]) == (False, code)
        assert list(tmp_path.iterdir()) == []


def test_execution_trace(ranks, tmp_path: Path) -> None:
    reply = ranks[0].ask("execution_trace", path=str(tmp_path / "et.json"), steps=1)
    assert reply["ok"], reply
    content = json.loads((tmp_path / "et.json").read_text())
    assert content["schema"].endswith("chakra.0.0.4")
    names = Counter(node["name"] for node in content["nodes"])
    assert names["aten::addmm"] == 4
    assert [path.name for path in tmp_path.iterdir()] == ["et.json"]
    assert [mark[0] for mark in reply["marks"]] == [
        reply["marks"][0][0],
        reply["marks"][0][0] + 1,
    ]


def test_a_main_thread_that_waits_in_native_code_is_named(job: Job, ranks) -> None:
    os.kill(job.pids[1], signal.SIGSTOP)
    try:
        time.sleep(0.5)  # rank 0 now waits for rank 1 in an all-reduce
        assert ranks[0].ask("status")["ok"]
        began = time.monotonic()
        reply = ranks[0].ask("arm", timeout_s=0.5)
        assert (reply["ok"], reply["code"]) == (False, "main-thread-stuck")
        assert f"pid {job.pids[0]}" in reply["error"]
        assert time.monotonic() - began < 5
        assert ranks[0].ask("status")["state"] == "idle"
    finally:
        os.kill(job.pids[1], signal.SIGCONT)
    job.more_steps(3)
    assert ranks[0].ask("arm")["ok"]


def test_twenty_windows_leave_nothing_behind(job: Job, ranks, tmp_path: Path) -> None:
    def state() -> list[tuple[int, int]]:
        return [(_threads(pid), _descriptors(pid)) for pid in job.pids]

    def record() -> None:
        for reply in _record(ranks, tmp_path):
            assert reply["ok"], reply
            Path(reply["trace"]).unlink()

    for _ in range(3):
        record()
    before, resident = state(), [_resident_bytes(pid) for pid in job.pids]
    for _ in range(20):
        record()
    assert state() == before
    for pid, earlier in zip(job.pids, resident, strict=True):
        # Each window holds about 10 MB for a while: kept, they would be 200 MB.
        assert _resident_bytes(pid) - earlier < 30 << 20
