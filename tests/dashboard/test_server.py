"""The server as a process: where it listens, what it says, and that it ends with all it started."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dashboard.security import is_loopback
from dashboard.server import bind
from diagnose.errors import UsageError

SERVER = (sys.executable, "-m", "dashboard")
VERB = (sys.executable, "-m", "diagnose", "dashboard")
_S = 60.0


class Running:
    """A started server, once it has said where."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        late = threading.Timer(_S, process.kill)
        late.start()
        assert process.stdout is not None
        said = process.stdout.readline()
        late.cancel()
        found = re.match(r"Dashboard: http://127\.0\.0\.1:(\d+)/\?token=(\S+)\n", said)
        assert found is not None, said
        self.port, self.token = int(found.group(1)), found.group(2)

    def ask(self, path: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer

    def ended(self) -> tuple[int, str]:
        """Exit status and standard error."""
        _, errors = self.process.communicate(timeout=_S)
        return self.process.returncode, errors


@pytest.fixture
def started(root: Path, known: Path) -> Iterator:
    processes = []

    def start(command: tuple[str, ...], *options: str) -> Running:
        process = subprocess.Popen(
            [*command, str(known), "--port", "0", *options],
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        return Running(process)

    yield start
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def children(pid: int) -> list[int]:
    """The processes that one started, from /proc."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(one) for one in text.split()]


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + _S
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":  # gone, and whoever adopted it has not looked yet
            return
        time.sleep(0.05)
    pytest.fail(f"{pid} still runs")


def test_it_answers_keeps_the_token_to_itself_and_ends_on_ctrl_c(started) -> None:
    server = started(SERVER)
    assert server.ask("/").status == 401
    assert server.ask(f"/?token={server.token}").status == 302
    assert server.ask("/?token=%00%ff").status == 401
    server.process.send_signal(signal.SIGINT)
    status, errors = server.ended()
    # 130 after Ctrl-C as every verb; nothing of requests, and no token, on the terminal.
    assert (status, errors) == (130, "")


def test_the_verb_ends_its_server_on_ctrl_c_with_the_same_status(started) -> None:
    server = started(VERB)
    [child] = children(server.process.pid)
    os.killpg(server.process.pid, signal.SIGINT)
    status, errors = server.ended()
    assert status == 130
    assert "Traceback" not in errors
    wait_until_gone(child)


def test_the_verb_passes_on_a_ctrl_c_that_only_it_got(started) -> None:
    server = started(VERB)
    [child] = children(server.process.pid)
    server.process.send_signal(signal.SIGINT)
    status, errors = server.ended()
    assert status == 130
    assert "Traceback" not in errors
    wait_until_gone(child)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_server_does_not_outlive_the_verb(started, number: int) -> None:
    server = started(VERB)
    [child] = children(server.process.pid)
    server.process.send_signal(number)
    assert server.ended()[0] == -number
    wait_until_gone(child)


def test_sigterm_ends_the_server(started) -> None:
    server = started(SERVER)
    server.process.terminate()
    assert server.ended() == (143, "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["{known}", "--port", "{port}"], "error: cannot listen on 127.0.0.1, port {port}: Ad"),
        (["{known}", "--host", "192.0.2.1"], "error: cannot listen on 192.0.2.1, port 8050: "),
        (["{known}", "--host", "no such name"], "error: cannot listen on no such name, port 8050"),
        (["{known}/nowhere"], "error: {known}/nowhere: no such file or folder"),
        (["{file}", "--allow-record"], "error: --allow-record needs a folder"),
    ],
)
def test_what_cannot_be_started_says_why(
    root: Path, known: Path, options: list[str], said: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        [file] = sorted(known.iterdir())
        values = {"known": known, "port": port, "file": file}
        ended = subprocess.run(
            [*SERVER, *(one.format(**values) for one in options)],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=_S,
        )
    assert ended.returncode == 2
    assert ended.stderr.startswith(said.format(**values))
    assert "hint: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_port_zero_takes_a_free_one_and_a_taken_one_is_refused() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        assert port > 0
        with pytest.raises(UsageError, match=f"port {port}: Address already in use") as caught:
            bind("127.0.0.1", port)
    assert "--port" in caught.value.hint
    with bind("::1", 0) as other:
        assert other.family == socket.AF_INET6


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *[(one, True) for one in ("localhost", "LocalHost", "127.0.0.1", "127.9.9.9", "::1")],
        *[(one, False) for one in ("0.0.0.0", "::", "", "10.0.0.1", "example.com")],
    ],
)
def test_which_addresses_only_this_machine_reaches(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
