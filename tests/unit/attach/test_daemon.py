"""The datagrams against bytes laid out by hand, and the socket against whoever sends them."""

from __future__ import annotations

import os
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from diagnose.attach.discovery.processes import Process
from diagnose.attach.kineto import daemon
from diagnose.attach.kineto import ipc as kineto_ipc
from diagnose.errors import AttachError, UsageError

little = pytest.mark.skipif(sys.byteorder != "little", reason="the bytes are little endian")

# Size 4, "ctxt" in 32 bytes, then the count 2.
ANNOUNCED = b"\x04\0\0\0\0\0\0\0" + b"ctxt" + b"\0" * 28 + b"\x02\0\0\0"
# Size 24; kinds 3, two pids, job 7; the process 258 (0x102) and its parent 1.
ASKED = (
    b"\x18\0\0\0\0\0\0\0" + b"req" + b"\0" * 29
    + b"\x03\0\0\0" + b"\x02\0\0\0" + b"\x07\0\0\0\0\0\0\0" + b"\x02\x01\0\0" + b"\x01\0\0\0"
)  # fmt: skip


@little
def test_an_announcement_is_answered_with_a_count() -> None:
    assert kineto_ipc.announcement_reply(2) == ANNOUNCED


@little
def test_a_request_is_answered_with_text() -> None:
    header = b"\x04\0\0\0\0\0\0\0" + b"req" + b"\0" * 29
    assert kineto_ipc.request_reply("A=1\n") == header + b"A=1\n"
    assert kineto_ipc.request_reply() == b"\0" * 8 + b"req" + b"\0" * 29


@little
def test_a_request_is_read() -> None:
    assert len(ASKED) == 64
    kind, payload = kineto_ipc.unpack(ASKED) or (b"", b"")
    assert kind == b"req"
    assert kineto_ipc.parse_request(payload) == kineto_ipc.Request(3, 7, (258, 1))


@little
def test_an_announcement_is_read() -> None:
    payload = b"\x01\0\0\0" + b"\x02\x01\0\0" + b"\x09\0\0\0\0\0\0\0"
    assert kineto_ipc.parse_announcement(payload) == kineto_ipc.Announcement(1, 258, 9)


@pytest.mark.parametrize("length", [0, 1, 39, 41, len(ASKED) - 1])
def test_a_datagram_that_is_cut_is_no_message(length: int) -> None:
    assert kineto_ipc.unpack(ASKED[:length]) is None


def test_a_request_whose_count_lies_is_refused() -> None:
    assert kineto_ipc.parse_request(struct.pack("=iiq", 3, 5, 0) + b"\0" * 8) is None
    assert kineto_ipc.parse_request(struct.pack("=iiq", 3, 0, 0)) is None
    assert kineto_ipc.parse_request(struct.pack("=iiq", 3, -1, 0)) is None
    assert kineto_ipc.parse_request(struct.pack("=iiq", 3, 2**31 - 1, 0) + b"\0" * 64) is None
    assert kineto_ipc.parse_request(b"\0" * 15) is None
    assert kineto_ipc.parse_announcement(b"\0" * 15) is None


def test_configuration_is_a_line_each() -> None:
    text = kineto_ipc.configuration([("ACTIVITIES_ITERATIONS", 3), ("PROFILE_WITH_STACK", False)])
    assert text == "ACTIVITIES_ITERATIONS=3\nPROFILE_WITH_STACK=false\n"
    with pytest.raises(ValueError, match="line end"):
        kineto_ipc.configuration([("ACTIVITIES_LOG_FILE", "/tmp/a\nPROFILE_WITH_STACK=true")])


@pytest.fixture
def folder() -> Iterator[str]:
    # The path of a socket may have 107 characters: pytest's folders can be longer.
    with tempfile.TemporaryDirectory(prefix="kineto") as name:
        yield name


def names(folder: str) -> list[str]:
    return [path.name for path in Path(folder).iterdir()]


def test_a_message_comes_with_its_sender_and_is_answered(folder: str) -> None:
    with (
        kineto_ipc.Endpoint(folder) as endpoint,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as job,
    ):
        job.bind(f"{folder}/client")
        job.settimeout(5)
        job.sendto(ASKED, f"{folder}/dynolog")
        datagram = endpoint.receive(5)
        assert datagram is not None
        assert (datagram.kind, datagram.pid, datagram.uid) == (b"req", os.getpid(), os.getuid())
        assert endpoint.answer(datagram, kineto_ipc.request_reply("A=1\n"))
        assert kineto_ipc.unpack(job.recv(1000)) == (b"req", b"A=1\n")
        job.sendto(b"nonsense", f"{folder}/dynolog")
        assert endpoint.receive(1) is None
        assert Path(folder, "dynolog").stat().st_mode & 0o777 == 0o600
    assert names(folder) == ["client"]


def test_an_asker_that_is_gone_is_no_error(folder: str) -> None:
    with kineto_ipc.Endpoint(folder) as endpoint:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as job:
            job.bind(f"{folder}/client")
            job.sendto(ASKED, f"{folder}/dynolog")
        datagram = endpoint.receive(5)
        assert datagram is not None
        assert not endpoint.answer(datagram, b"")


def test_a_name_that_is_taken_is_refused_and_a_dead_one_is_not(folder: str) -> None:
    with kineto_ipc.Endpoint(folder), pytest.raises(AttachError, match="another daemon"):
        kineto_ipc.Endpoint(folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(f"{folder}/dynolog")
    with kineto_ipc.Endpoint(folder):
        pass
    assert names(folder) == []


def test_the_abstract_name_has_a_nul_at_its_end() -> None:
    with (
        kineto_ipc.Endpoint() as endpoint,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as job,
    ):
        job.bind(f"\0diagnose-test-{os.getpid()}\0")
        job.sendto(ASKED, "\0dynolog\0")
        assert endpoint.receive(5) is not None
        with pytest.raises(AttachError, match="another daemon"):
            kineto_ipc.Endpoint()


def test_a_folder_that_is_missing_or_too_deep_is_refused(folder: str) -> None:
    with pytest.raises(AttachError, match="cannot listen for Kineto"):
        kineto_ipc.Endpoint(f"{folder}/missing")
    with pytest.raises(AttachError, match="too long"):
        kineto_ipc.Endpoint(f"{folder}/{'x' * 100}")


class Job(Process):
    """This process, as if it had been started for Kineto's daemon."""

    def __init__(self, variables: dict[str, str]) -> None:
        super().__init__(os.getpid())
        self._variables = variables

    @property
    def environ(self) -> dict[str, str]:  # type: ignore[override]
        return self._variables


def test_a_job_without_steps_or_seconds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="either steps or seconds"):
        daemon.record({Job({}): tmp_path / "t"})
    with pytest.raises(UsageError, match="no process"):
        daemon.record({}, steps=3)


def test_a_process_that_never_asks_is_named(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "_LEAD_S", 0.2)
    job = Job({"KINETO_IPC_SOCKET_DIR": folder})
    outcome = daemon.record({job: tmp_path / "t"}, seconds=0.1)
    assert str(outcome.failures[os.getpid()]).startswith(
        f"process {os.getpid()} did not ask its Kineto daemon"
    )
    assert names(folder) == []


class Kineto(threading.Thread):
    """Asks as libkineto does, and does with the answer what ``write`` says."""

    def __init__(self, folder: str, suffix: str, content: bytes) -> None:
        super().__init__(daemon=True)
        self.folder, self.suffix, self.content = folder, suffix, content
        self.settings: dict[str, str] = {}

    def run(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.bind(f"{self.folder}/client")
            payload = struct.pack("=iiq2i", 3, 2, 0, os.getpid(), os.getppid())
            client.settimeout(1)
            text, end = "", time.monotonic() + 10
            while not text and time.monotonic() < end:
                with suppress(OSError):  # nobody listens yet
                    client.sendto(kineto_ipc.pack(b"req", payload), f"{self.folder}/dynolog")
                    answer = kineto_ipc.unpack(client.recv(65536))
                    text = answer[1].decode() if answer else ""
                time.sleep(0.01)
            lines = text.splitlines()
            self.settings = dict(line.split("=", 1) for line in lines)
            stem = self.settings["ACTIVITIES_LOG_FILE"].removesuffix(".json")
            Path(f"{stem}_{os.getpid()}.json{self.suffix}").write_bytes(self.content)


TRACE = (
    b'{"baseTimeNanoseconds": 1000000000, "traceEvents": ['
    b'{"name": "Iteration Start: PyTorch Profiler", "ph": "i", "ts": 2000000.250}]}\n'
)


def test_a_trace_is_moved_and_its_start_is_read(folder: str, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    job = Job({"KINETO_IPC_SOCKET_DIR": folder, "KINETO_ONDEMAND_TRACE_DIR": str(traces)})
    kineto = Kineto(folder, "", TRACE)
    kineto.start()
    target = tmp_path / "rank00000.trace.json"
    outcome = daemon.record(
        {job: target}, steps=3, step_ns=100_000_000, options=daemon.Options(shapes=False)
    )
    assert outcome.traces == {os.getpid(): target}
    assert target.read_bytes() == TRACE
    # 1 s, and 2,000,000.25 us after it.
    assert outcome.started_unix_ns == {os.getpid(): 3_000_000_250}
    assert list(traces.iterdir()) == []
    assert kineto.settings["ACTIVITIES_ITERATIONS"] == "3"
    # 10 s, twice the time between two questions, at 0.1 s a step.
    assert kineto.settings["PROFILE_START_ITERATION_ROUNDUP"] == "100"
    assert kineto.settings["PROFILE_REPORT_INPUT_SHAPES"] == "false"
    assert "PROFILE_START_TIME" not in kineto.settings


def test_a_request_that_was_lost_is_noticed_and_its_file_removed(
    folder: str, tmp_path: Path
) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    job = Job({"KINETO_IPC_SOCKET_DIR": folder, "KINETO_ONDEMAND_TRACE_DIR": str(traces)})
    Kineto(folder, ".tmp", b"").start()
    outcome = daemon.record({job: tmp_path / "t"}, steps=3, timeout_s=1)
    assert "its own profiler may be at work" in str(outcome.failures[os.getpid()])
    assert list(traces.iterdir()) == []
    assert not (tmp_path / "t").exists()


def test_a_link_in_place_of_the_trace_is_not_followed(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(TRACE)
    traces = tmp_path / "traces"
    traces.mkdir()
    job = Job({"KINETO_IPC_SOCKET_DIR": folder, "KINETO_ONDEMAND_TRACE_DIR": str(traces)})

    class Thief(Kineto):
        def run(self) -> None:
            super().run()
            [written] = traces.iterdir()
            written.unlink()
            written.symlink_to(secret)

    Thief(folder, "", b"").start()
    outcome = daemon.record({job: tmp_path / "t"}, steps=3, timeout_s=10)
    assert "cannot be fetched" in str(outcome.failures[os.getpid()])
    assert secret.read_bytes() == TRACE
    assert not (tmp_path / "t").exists()
