"""A connection to one agent: found, trusted, talked to, given up on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnose.attach import channel as channels
from diagnose.attach.channel import Channel
from diagnose.errors import (
    AttachError,
    AttachTimeoutError,
    NoStepsError,
    OtherUserError,
    OutputError,
    ProcessGoneError,
    ProfilerBusyError,
    RecordingError,
    StuckError,
    TorchMissingError,
    WindowLostError,
)
from tests.unit.attach.fake_agent import FakeAgent, OwnProcess, refusing


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[FakeAgent]:
    agent = FakeAgent(tmp_path / "s", rank=3, world_size=4)
    yield agent
    agent.stop()


def test_the_agent_of_a_process_is_found_and_asked(agent: FakeAgent) -> None:
    channel = Channel.find(agent.process, "rank 3")
    assert channel is not None
    status = channel.ask("status")
    assert (status["rank"], status["pid"]) == (3, os.getpid())
    assert channel.folder == str(agent.path.parent)
    channel.close()
    assert agent.closed.wait(5)


def test_fields_and_the_time_allowed_go_along_with_a_request_that_waits(agent: FakeAgent) -> None:
    channel = Channel.connect(agent.process, 1)
    channel.ask("arm", timeout_s=7, marks=2)
    channel.ask("status", timeout_s=7)
    channel.close()
    assert agent.asked == [{"op": "arm", "marks": 2, "timeout_s": 7}, {"op": "status"}]


def test_without_an_agent_there_is_no_channel(tmp_path: Path) -> None:
    assert Channel.find(OwnProcess(tmp_path)) is None
    tmp_path.chmod(0o700)
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / f"{os.getpid()}.sock"))
    stale.close()  # the file stays, and nobody listens
    assert Channel.find(OwnProcess(tmp_path)) is None


def test_waiting_for_an_agent_ends_in_time(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(AttachTimeoutError, match=r"rank 0: no agent answered within 0\.2 s"):
        Channel.connect(OwnProcess(tmp_path), 0.2, "rank 0")
    assert time.monotonic() - began < 2


def test_an_agent_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    agents: list[FakeAgent] = []
    timer = threading.Timer(0.3, lambda: agents.append(FakeAgent(tmp_path / "s")))
    timer.start()
    Channel.connect(OwnProcess(tmp_path / "s"), 5).close()
    timer.join()
    agents[0].stop()


def test_a_process_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    class Ended(OwnProcess):
        @property
        def exists(self) -> bool:
            return False

    with pytest.raises(ProcessGoneError, match="has ended"):
        Channel.connect(Ended(tmp_path), 60)


def test_a_folder_that_others_may_enter_is_not_trusted(agent: FakeAgent) -> None:
    agent.path.parent.chmod(0o755)
    with pytest.raises(OtherUserError, match="open to other users"):
        Channel.find(agent.process)


def test_a_folder_that_is_a_link_is_not_followed(agent: FakeAgent, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(agent.path.parent)
    assert Channel.find(OwnProcess(tmp_path / "link")) is None


LISTENER = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
sys.stdin.read()
"""


def test_another_process_that_answers_in_its_place_is_not_trusted(tmp_path: Path) -> None:
    """A child listens where the agent of this process would."""
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    command = [sys.executable, "-c", LISTENER, str(folder / f"{os.getpid()}.sock")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        with pytest.raises(OtherUserError, match=f"process {child.pid} of user"):
            Channel.find(OwnProcess(folder))
        child.communicate()


def test_a_folder_with_a_long_name_can_be_reached(tmp_path: Path) -> None:
    """A unix address has 108 bytes; the job of the folder is longer."""
    folder = tmp_path / ("x" * 150)
    folder.mkdir(mode=0o700)
    short = tmp_path / "s"
    short.symlink_to(folder)
    agent = FakeAgent(short)
    try:
        channel = Channel.find(OwnProcess(folder))
        assert channel is not None
        channel.close()
    finally:
        agent.stop()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("busy", AttachError),
        ("profiler-busy", ProfilerBusyError),
        ("main-thread-stuck", StuckError),
        ("no-steps", NoStepsError),
        ("start-missed", WindowLostError),
        ("torch-missing", TorchMissingError),
        ("output", OutputError),
        ("trace-lost", WindowLostError),
        ("job-profiler", WindowLostError),
        ("aborted", WindowLostError),
        ("bad-request", AttachError),
        ("internal", AttachError),
        ("a code of a later version", AttachError),
    ],
)
def test_a_refusal_is_an_error_with_a_remedy(
    tmp_path: Path, code: str, kind: type[RecordingError]
) -> None:
    agent = FakeAgent(tmp_path / "s", answers={"arm": refusing(code, "so it is")})
    channel = Channel.connect(agent.process, 1, "rank 3 (pid 7)")
    with pytest.raises(RecordingError, match=r"^rank 3 \(pid 7\): so it is$") as caught:
        channel.ask("arm", marks=2)
    assert type(caught.value) is kind
    assert caught.value.hint
    channel.close()
    agent.stop()


def test_an_agent_that_serves_another_says_so(agent: FakeAgent) -> None:
    agent.busy = True
    channel = Channel.connect(agent.process, 1)
    with pytest.raises(AttachError, match="in use"):
        channel.ask("status")
    channel.close()


def test_silence_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "GRACE_S", 0.1)
    agent = FakeAgent(tmp_path / "s", answers={"status": lambda request: None})
    channel = Channel.connect(agent.process, 1)
    began = time.monotonic()
    with pytest.raises(AttachTimeoutError, match="did not answer"):
        channel.ask("status", timeout_s=0.2)
    assert time.monotonic() - began < 2
    channel.close()
    agent.stop()


def listening(folder: Path) -> socket.socket:
    folder.mkdir(mode=0o700)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / f"{os.getpid()}.sock"))
    listener.listen()
    return listener


@pytest.mark.parametrize(
    ("said", "kind", "names"),
    [
        (b"", ProcessGoneError, "broke off"),
        (b'{"ok": tr', ProcessGoneError, "broke off"),
        (b"not json\n", AttachError, "cannot be understood"),
        (b"[1]\n", AttachError, "cannot be understood"),
        (b"[" * 100_000 + b"\n", AttachError, "cannot be understood"),
        (b"\xff\xfe\n", AttachError, "cannot be understood"),
    ],
)
def test_nonsense_is_an_error(
    tmp_path: Path, said: bytes, kind: type[AttachError], names: str
) -> None:
    with listening(tmp_path / "s") as listener:
        channel = Channel.connect(OwnProcess(tmp_path / "s"), 1, "rank 0")
        peer, _ = listener.accept()
        with peer:
            peer.sendall(said)
        with pytest.raises(kind, match=names):
            channel.receive(1)
        channel.close()


def test_an_answer_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_MOST_BYTES", 1000)
    with listening(tmp_path / "s") as listener:
        channel = Channel.connect(OwnProcess(tmp_path / "s"), 1)
        peer, _ = listener.accept()
        peer.sendall(b"x" * 2000)
        with pytest.raises(AttachError, match="no end"):
            channel.receive(1)
        channel.close()
        peer.close()


def test_closing_wakes_a_thread_that_waits(agent: FakeAgent) -> None:
    agent.answers["arm"] = lambda request: None
    channel = Channel.connect(agent.process, 1)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            channel.ask("arm", timeout_s=60, marks=2)
        except AttachError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    channel.close()
    thread.join(5)
    assert not thread.is_alive()
    assert isinstance(errors[0], ProcessGoneError)
    assert agent.closed.wait(5)


def test_an_agent_that_accepts_nobody_is_not_waited_for(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / f"{os.getpid()}.sock"))
        listener.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        try:
            for one in waiting:  # until there is no place left
                one.setblocking(False)
                one.connect_ex(listener.getsockname())
            began = time.monotonic()
            with pytest.raises(AttachTimeoutError, match="does not take any more connections"):
                Channel.find(OwnProcess(tmp_path), "rank 0")
            assert time.monotonic() - began < 6
        finally:
            for one in waiting:
                one.close()
