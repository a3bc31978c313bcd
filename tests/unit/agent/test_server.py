"""The agent's thread and socket in this process, without torch: lines, manners, leaving."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diagnose.agent import server
from diagnose.agent.server import Agent
from diagnose.agent.steps import StepClock
from tests.unit.agent.controller import Controller

Connect = Callable[[], Controller]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Agent]]:
    """Start an agent; it is gone at the end, whatever kind it was."""
    for name in ("torch", "torch.optim.optimizer", "torch.profiler", "torch.distributed"):
        monkeypatch.setitem(sys.modules, name, None)  # as in a process without torch
    agents: list[Agent] = []

    def start(*, injected: bool = True) -> Agent:
        agent = Agent(StepClock(watch_round=injected), injected=injected)
        agent.open(str(folder))
        agents.append(agent)
        return agent

    yield start
    for agent in agents:
        agent._injected = True
        while not agent.gone:
            try:
                controller = Controller(agent._listener.path)  # type: ignore[union-attr]
            except OSError:
                break
            controller.send("detach")
            controller.close()
            time.sleep(0.02)
    assert wait_until(lambda: not agent_threads())


@pytest.fixture
def connect(folder: Path) -> Iterator[Connect]:
    opened: list[Controller] = []

    def connect() -> Controller:
        opened.append(Controller(folder / f"{os.getpid()}.sock"))
        return opened[-1]

    yield connect
    for controller in opened:
        controller.close()


def agent_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "diagnose-agent"]


def wait_until(ready: Callable[[], object], timeout_s: float = 5) -> bool:
    end = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_status(start, connect) -> None:
    agent = start()
    status = connect().ask("status")
    assert status == {
        "ok": True,
        "protocol": 1,
        "agent": "1.0",
        "pid": os.getpid(),
        "rank": status["rank"],
        "local_rank": status["local_rank"],
        "world_size": status["world_size"],
        "backend": None,
        "host": socket.gethostname(),
        "torch": None,
        "step": 0,
        "hooked": False,
        "injected": True,
        "state": "idle",
        "step_ns": None,
        "cuda_device": None,
        "gpu_uuid": None,
    }
    assert not agent.gone


def test_steps(start, connect) -> None:
    agent = start()
    agent.clock.ring.extend([(1, 5, 100), (2, None, 200), (3, 9, 300)])
    assert connect().ask("steps", since=1) == {"ok": True, "marks": [[2, None, 200], [3, 9, 300]]}


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (b"nonsense\n", "not JSON"),
        (b"\n", "not JSON"),
        (b"\xff\xfe\n", "not JSON"),
        (b"[" * 5000 + b"\n", "not JSON"),
        (b"[]\n", "object with an op"),
        (b'{"op": "explode"}\n', "no op 'explode'"),
        (b'{"op": "' + b"x" * 1000 + b'"}\n', "no op 'xxx"),
        (b'{"op": "steps", "since": "now"}\n', "since must be a number"),
        (b'{"op": "arm", "marks": 1e300}\n', "marks must be a number"),
        (b'{"op": "arm", "marks": NaN}\n', "marks must be a number"),
    ],
)
def test_bad_request_is_answered_and_forgotten(start, connect, line: bytes, part: str) -> None:
    start()
    controller = connect()
    controller.send_bytes(line)
    reply = controller.receive()
    assert (reply["ok"], reply["code"]) == (False, "bad-request")
    assert part in reply["error"]
    assert len(reply["error"]) < 200
    assert controller.ask("status")["ok"]


def test_endless_line_ends_the_connection_only(start, connect) -> None:
    start()
    controller = connect()
    try:
        for _ in range(40):
            controller.send_bytes(b"x" * 65536)
    except OSError:
        pass  # it has hung up before taking it all
    else:
        pytest.fail("it took 2.5 MB without a line")
    assert wait_until(lambda: connect().ask("status")["ok"])


def test_without_torch_a_window_is_refused(start, connect) -> None:
    start()
    controller = connect()
    for op in ("arm", "go", "execution_trace"):
        reply = controller.ask(op)
        assert (reply["ok"], reply["code"]) == (False, "torch-missing")
        assert str(os.getpid()) in reply["error"]


def test_requests_are_answered_in_order(start, connect) -> None:
    start()
    controller = connect()
    controller.send_bytes(b'{"op":"status"}\n{"op":"steps"}\n{"op":"cancel"}\n')
    assert controller.receive()["protocol"] == 1
    assert controller.receive() == {"ok": True, "marks": []}
    assert controller.receive() == {"ok": True}


def test_a_second_controller_is_turned_away_also_while_one_waits(start, connect) -> None:
    agent = start()
    first = connect()
    assert first.ask("status")["ok"]
    for _ in range(2):
        second = connect()
        reply = second.receive()
        assert (reply["ok"], reply["code"]) == (False, "busy")
        assert second.is_closed()
        first.send("after", marks=1, timeout_s=30)
    agent.clock.mark()
    assert len(first.receive()["marks"]) == 1
    assert len(first.receive()["marks"]) == 1


def test_the_end_of_a_connection_is_noticed_while_waiting(start, connect) -> None:
    start()
    controller = connect()
    controller.send("after", marks=1, timeout_s=60)
    time.sleep(0.1)
    controller.close()
    began = time.monotonic()
    assert wait_until(lambda: "code" not in connect().ask("status"), 2)
    assert time.monotonic() - began < 1


def test_after_comes_back_when_the_steps_are_there(start, connect) -> None:
    agent = start()
    controller = connect()
    controller.send("after", marks=2, timeout_s=30)
    time.sleep(0.1)
    agent.clock.mark()
    agent.clock.mark()
    marks = controller.receive()["marks"]
    assert [mark[0] for mark in marks] == [1, 2]
    assert agent.clock.listener is None
    assert controller.ask("after", marks=3, timeout_s=0.05)["marks"] == marks


def test_detach_lets_an_injected_agent_go(start, connect, folder: Path) -> None:
    agent = start()
    assert len(agent_threads()) == 1
    assert connect().ask("detach") == {"ok": True}
    assert wait_until(lambda: agent.gone and not agent_threads())
    assert list(folder.iterdir()) == []


def test_no_descriptor_is_left(start, folder: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        agent = start()
        controller = Controller(folder / f"{os.getpid()}.sock")
        controller.ask("detach")
        controller.close()
        assert wait_until(lambda agent=agent: agent.gone and not agent_threads())
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_detach_leaves_a_cooperative_agent(start, connect) -> None:
    start(injected=False)
    controller = connect()
    assert controller.ask("detach") == {"ok": True}
    assert controller.ask("status")["injected"] is False


def test_an_abandoned_injected_agent_leaves(
    start, connect, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ABANDONED_S", 0.5)
    agent = start()
    controller = connect()
    time.sleep(0.8)  # nobody is abandoned while a controller is there, silent or not
    assert controller.ask("status")["ok"]
    controller.close()
    began = time.monotonic()
    assert wait_until(lambda: agent.gone and not agent_threads())
    assert 0.3 < time.monotonic() - began < 3
    assert list(folder.iterdir()) == []


def test_an_abandoned_cooperative_agent_stays(
    start, connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ABANDONED_S", 0.1)
    start(injected=False)
    time.sleep(0.4)
    assert connect().ask("status")["ok"]


def test_no_wake_ups_in_idle(start, connect) -> None:
    start(injected=False)
    controller = connect()
    controller.ask("status")
    thread = agent_threads()[0].native_id

    def switches() -> int:
        status = Path(f"/proc/self/task/{thread}/status").read_text()
        return sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)

    time.sleep(0.1)
    before = switches()
    time.sleep(0.5)
    assert switches() == before


def test_start_is_idempotent_and_says_what_is_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_agent", None)
    folder.chmod(0o755)
    with pytest.raises(server.RefusalError, match="open to other users"):
        server.start(injected=True, directory=str(folder))
    folder.chmod(0o700)
    agent = server.start(injected=True, directory=str(folder))
    assert server.start(injected=True, directory=str(folder)) is agent
    assert server.running() is agent
    controller = Controller(folder / f"{os.getpid()}.sock")
    controller.ask("detach")
    controller.close()
    assert wait_until(lambda: not agent_threads())
    assert agent.gone


def test_the_memory_of_the_way_in_is_unmapped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ctypes
    import mmap

    monkeypatch.setattr(server, "_agent", None)
    library = ctypes.CDLL(None)
    library.mmap.restype = ctypes.c_void_p
    size = 3 * mmap.PAGESIZE
    private, anonymous = 0x02, 0x20
    address = library.mmap(None, ctypes.c_size_t(size), 5, private | anonymous, -1, 0)

    def mapped() -> bool:
        with open("/proc/self/maps") as maps:
            return any(line.startswith(f"{address:x}-") for line in maps)

    assert mapped()
    leave = threading.Event()

    def way_in() -> None:
        server.start(injected=True, page=(address, size), directory=str(folder))
        leave.wait(10)

    thread = threading.Thread(target=way_in)
    thread.start()
    time.sleep(0.3)
    assert mapped()  # its thread still runs in there
    leave.set()
    thread.join()
    assert wait_until(lambda: not mapped())
    controller = Controller(folder / f"{os.getpid()}.sock")
    controller.ask("detach")
    controller.close()
    assert wait_until(lambda: not agent_threads())
