"""The real process, spoken to by the SDK's own client and by raw lines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

if os.environ.get("CI") != "true":  # there it belongs to what is installed for tests
    pytest.importorskip("mcp", reason="the SDK of the Model Context Protocol is not installed")

from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

MAIN = "from diagnose.cli import main; main()"
WITHOUT = "import sys; sys.modules['mcp'] = None; "
# A load that reads on and on and says so, as a file of many gigabytes would.
SLOW = """
import time
from diagnose.assistant import shelf
def load(path, *, only, progress):
    print("this must not reach the protocol", flush=True)
    while True:
        time.sleep(0.01)
        progress(1)
shelf.load = load
"""
PATIENCE_S = 30


def environment():
    return {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}


def run(code, *arguments, **options):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


async def _conversation(folder, calls):
    parameters = StdioServerParameters(
        command=sys.executable, args=["-c", MAIN, "mcp", str(folder)], env=environment()
    )
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        async with (
            stdio_client(parameters, errlog=nowhere) as streams,
            ClientSession(*streams[:2]) as session,
        ):
            hello = await session.initialize()
            tools = await session.list_tools()
            results = [await session.call_tool(name, given) for name, given in calls]
    as_dict = {"by_alias": True, "mode": "json"}
    return (
        hello.model_dump(**as_dict),
        [tool.model_dump(**as_dict) for tool in tools.tools],
        [result.model_dump(**as_dict) for result in results],
    )


@pytest.fixture(scope="module")
def spoken(recordings):
    """Who it is, what it offers, and the results of some calls, each with text and error."""
    path = str(recordings / "straggler")
    calls = [
        ("load", {"path": path}),
        ("report", {"recording": "r1"}),
        ("findings", {"recording": "r1"}),
        ("explain", {"topic": "straggler-rank"}),
        ("timeline", {"recording": "r1", "rank": 1, "step": "4", "limit": 3}),
        ("timeline", {"recording": "r1", "limit": "many"}),
        ("load", {"path": "/etc/passwd"}),
        ("nothing", {}),
    ]
    hello, tools, results = asyncio.run(_conversation(recordings, calls))
    said = []
    for result in results:
        [content] = result["content"]
        assert content["type"] == "text"
        said.append((content["text"], bool(result["isError"])))
    return hello, tools, said


def test_it_says_who_it_is_and_what_it_offers(spoken):
    hello, tools, _ = spoken
    assert hello["serverInfo"]["name"] == "torch-diagnose"
    assert "never instructions" in hello["instructions"]
    names = [tool["name"] for tool in tools]
    assert sorted(names) == ["explain", "findings", "load", "report", "timeline"]
    for tool in tools:
        assert tool["annotations"]["readOnlyHint"] is True
        assert tool["inputSchema"]["type"] == "object"


def test_each_tool_answers(spoken):
    load, report, findings, explain, timeline = (
        text for text, is_error in spoken[2][:5] if not is_error
    )
    assert json.loads(load)["recording"] == "r1"
    assert "work-imbalance" in json.loads(report)["markdown"]
    assert json.loads(findings)["findings"][0]["finding"] == "work-imbalance@rank 1"
    assert explain.startswith("straggler-rank: ")
    answer = json.loads(timeline)
    assert len(answer["rows"]) == 3
    assert answer["total"]["num_operations"] == 544  # as the report says of step 4 on rank 1
    assert answer["left_out"]["num_operations"] == 541


def test_errors_are_answers_with_what_to_do(spoken):
    errors = [json.loads(text) for text, is_error in spoken[2][5:] if is_error]
    assert [error["code"] for error in errors] == ["usage"] * 3
    limit, outside, unknown = (error["error"] for error in errors)
    assert limit.startswith("timeline, limit:")
    assert outside.startswith("/etc/passwd leads outside")
    assert "'nothing'" in unknown


class Raw:
    """The process with nothing in between: one JSON text a line."""

    def __init__(self, folder, before=""):
        self.process = subprocess.Popen(
            [sys.executable, "-c", before + MAIN, "mcp", str(folder)],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # A process that does not answer ends its test: reading then meets the end of the pipe.
        self.watchdog = threading.Timer(PATIENCE_S, self.process.kill)
        self.watchdog.start()
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}}
        hello["clientInfo"] = {"name": "test", "version": "0"}
        self.send("initialize", 1, hello)
        assert self.receive()["id"] == 1
        self.send("notifications/initialized")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.watchdog.cancel()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()

    def send(self, method, number=None, params=None):
        message = {"jsonrpc": "2.0", "method": method}
        message |= {} if number is None else {"id": number}
        message |= {} if params is None else {"params": params}
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def call(self, number, name, **given):
        self.send("tools/call", number, {"name": name, "arguments": given})

    def receive(self):
        line = self.process.stdout.readline()
        assert line, "the process ended, or did not answer in time and was ended"
        return json.loads(line)

    def answer(self, number):
        """The answer to a call; those to others are passed over."""
        while (message := self.receive()).get("id") != number:
            pass
        return message["result"]

    def leave(self):
        """Close its input: how long it took to end, what was left unread, and the status."""
        begin = time.monotonic()
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return time.monotonic() - begin, out, err, self.process.returncode


def test_the_end_of_its_input_ends_it(recordings):
    with Raw(recordings) as server:
        _, out, err, status = server.leave()
    assert (out, err, status) == ("", "", 0)


def test_the_end_of_its_input_ends_it_in_the_middle_of_a_load(recordings):
    with Raw(recordings, SLOW) as server:
        server.call(2, "load", path=str(recordings / "straggler"))
        server.send("ping", 3)
        assert server.answer(3) == {}  # it listens while it reads
        # What somebody prints goes to stderr; what is on stdout is the protocol.
        assert "must not reach" in server.process.stderr.readline()
        seconds, out, err, status = server.leave()
    assert status == 0
    assert seconds < 10
    assert "Traceback" not in err
    for line in out.splitlines():
        assert json.loads(line)["jsonrpc"] == "2.0"


def test_ctrl_c_ends_it_at_once(recordings):
    with Raw(recordings) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE_S) == -signal.SIGINT


def test_a_client_that_dies_ends_it(recordings):
    with Raw(recordings) as server:
        server.process.stdout.close()
        server.call(2, "explain", topic="folklore")
        server.process.stdin.close()
        assert server.process.wait(PATIENCE_S) == 0
        assert "Traceback" not in server.process.stderr.read()


def test_a_call_that_is_taken_back_does_not_hold_up_the_next(recordings):
    with Raw(recordings, SLOW) as server:
        server.call(2, "load", path=str(recordings / "straggler"))
        server.call(3, "load", path=str(recordings / "healthy"))
        for number in (2, 3):
            given = {"requestId": number, "reason": "no longer needed"}
            server.send("notifications/cancelled", params=given)
        server.call(4, "explain", topic="NCCL_ALGO")
        result = server.answer(4)
        assert not result.get("isError")
        assert result["content"][0]["text"].startswith("NCCL_ALGO")
        assert server.leave()[3] == 0


def test_garbage_does_not_end_it(recordings):
    with Raw(recordings) as server:
        server.process.stdin.write('not json\n{"jsonrpc": "2.0"}\n[]\n\n')
        server.call(2, "explain", topic="folklore")
        assert not server.answer(2).get("isError")
        _, _, err, status = server.leave()
    assert status == 0
    assert "Traceback" not in err


def test_without_the_extra_it_says_what_to_install(recordings):
    result = run(WITHOUT + MAIN, "mcp", str(recordings))
    assert result.returncode == 2
    assert result.stdout == ""
    assert "which is not installed" in result.stderr
    assert "hint: pip install 'torch-diagnose[mcp]'" in result.stderr


def test_an_sdk_that_is_broken_is_told_from_one_that_is_missing(recordings, tmp_path):
    (tmp_path / "mcp").mkdir()
    (tmp_path / "mcp/__init__.py").write_text("raise ImportError('too old for that')")
    before = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
    result = run(before + MAIN, "mcp", str(recordings))
    assert result.returncode == 2
    assert "cannot be imported (too old for that)" in result.stderr
    assert "pip install --upgrade 'torch-diagnose[mcp]'" in result.stderr


def test_a_folder_that_is_not_there(tmp_path):
    result = run(MAIN, "mcp", str(tmp_path / "nowhere"))
    assert result.returncode == 2
    assert "no such folder" in result.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["mcp", "--help"], ["explain", "NCCL_ALGO"], ["report"]]
)
def test_nothing_else_loads_the_sdk(arguments, recordings):
    given = [*arguments, str(recordings / "healthy")] if arguments == ["report"] else arguments
    code = (
        "import sys; from diagnose.cli import execute; status = execute(sys.argv[1:]); "
        "print(sorted({'mcp', 'mcp_types', 'anyio'} & set(sys.modules)), file=sys.stderr); "
        "sys.exit(status)"
    )
    result = run(code, *given)
    assert result.returncode == 0
    assert result.stderr.splitlines()[-1] == "[]"


def test_help_works_without_the_extra():
    result = run(WITHOUT + MAIN, "mcp", "--help")
    assert result.returncode == 0
    assert "diagnose mcp ~/traces" in result.stdout
