"""Sessions and meetings over a store that lives in memory, with an agent that is a thread."""

from __future__ import annotations

import gzip
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diagnose.agent import store
from diagnose.attach import hosts
from diagnose.errors import (
    AttachError,
    AttachTimeoutError,
    NoRanksError,
    OutputError,
    ProfilerBusyError,
    UsageError,
)


class MemoryStore:
    """What ``store.Client`` offers, without a network; one object may serve as many clients."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str | bytes) -> None:
        with self._changed:
            self.values[key] = value.encode() if isinstance(value, str) else value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        assert self.wait(key, 5), key
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        with self._changed:
            total = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(total).encode()
            self._changed.notify_all()
            return total

    def has(self, key: str) -> bool:
        return key in self.values

    def delete(self, key: str) -> None:
        self.values.pop(key, None)

    def wait(self, key: str, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: key in self.values, timeout_s)


class Agent:
    """An agent's socket: answers with what ``answer`` returns, and notes what happened."""

    def __init__(self, path: str, answer: Callable[[dict[str, Any]], dict[str, Any] | None]):
        self.requests: list[dict[str, Any]] = []
        self.closed = threading.Event()
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(2)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as file:
                for line in file:
                    self.requests.append(json.loads(line))
                    reply = self._answer(self.requests[-1])
                    if reply is not None:
                        file.write(json.dumps(reply).encode() + b"\n")
                        file.flush()
            self.closed.set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class Bench:
    """A store, a relay for rank 1 on it, and the agent behind the relay."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MemoryStore()
        self.store.set("world", "2")
        self.store.set("here/1", json.dumps({"pid": 77, "host": "node1", "rank": 1}))
        self.replies: dict[str, dict[str, Any] | None] = {"detach": {"ok": True}}
        socket_path = str(folder / "77.sock")
        self.agent = Agent(socket_path, self._reply)
        self.relay = store.Relay(1, socket_path, str(folder))
        self.relay.waker = self.store
        self.relay.thread = threading.Thread(
            target=self.relay.serve, args=(self.store, 0), daemon=True
        )
        self.relay.thread.start()

    def _reply(self, request: dict[str, Any]) -> dict[str, Any] | None:
        return self.replies[request["op"]]

    def job(self) -> hosts.JobStore:
        return hosts.JobStore(lambda: self.store)  # type: ignore[arg-type, return-value]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(store, "_POLL_S", 0.01)
    monkeypatch.setattr(store, "_CALL_WAIT_S", 30)
    monkeypatch.setattr(store, "_LOOK_S", 0.02)
    # The path of a socket may have 107 characters: pytest's folders can be longer.
    with tempfile.TemporaryDirectory(prefix="hosts") as folder:
        bench = Bench(Path(folder))
        yield bench
        bench.relay.stop()
        assert not bench.relay.thread.is_alive()
        bench.agent.close()


def test_a_request_reaches_the_agent_and_its_answer_comes_back(bench: Bench) -> None:
    bench.replies["status"] = {"ok": True, "rank": 1, "step": 12}
    with bench.job() as job:
        found, world = job.ranks()
        assert (found, world) == ([hosts.StoreRank(1, "node1", 77)], 2)
        channel = job.channel(found[0])
        assert channel.ask("status") == {"ok": True, "rank": 1, "step": 12}
        assert channel.ask("status")["step"] == 12
    assert bench.agent.requests == [{"op": "status"}, {"op": "status"}]
    assert not [key for key in bench.store.values if "/q/" in key or "/a/" in key]


def test_a_session_that_was_closed_can_be_followed_by_another(bench: Bench) -> None:
    bench.replies |= {"status": {"ok": True}, "arm": None}
    with bench.job() as job:
        [rank], _ = job.ranks()
        first = job.channel(rank)
        first.send("arm")
        wait_until(lambda: bench.agent.requests)
        first.close()
        assert bench.agent.closed.wait(2)
        assert job.channel(rank).ask("status") == {"ok": True}


def test_a_refusal_is_the_error_of_its_code(bench: Bench) -> None:
    bench.replies["arm"] = {"ok": False, "code": "profiler-busy", "error": "it profiles itself"}
    with bench.job() as job, pytest.raises(ProfilerBusyError, match=r"rank 1 \(pid 77 on node1\)"):
        job.channel(job.ranks()[0][0]).ask("arm", timeout_s=1)


def test_a_path_is_never_taken_from_the_store(bench: Bench) -> None:
    bench.replies["go"] = {"ok": True}
    with bench.job() as job:
        channel = job.channel(job.ranks()[0][0])
        channel.ask("go", trace="/etc/passwd", steps=3)
        with pytest.raises(AttachError) as reply:
            channel.ask("execution_trace", path="/etc/passwd")
        assert "cannot be asked over the store" in str(reply.value)
    [request] = bench.agent.requests
    assert Path(request["trace"]).parent == bench.folder
    assert request["steps"] == 3


def test_a_trace_comes_back_compressed_and_is_removed_there(bench: Bench, tmp_path: Path) -> None:
    # Bytes that do not compress: several pieces of 4 MiB at most.
    content = os.urandom(5 << 20)
    bench.replies["go"] = {"ok": True}
    with bench.job() as job:
        channel = job.channel(job.ranks()[0][0])
        channel.ask("go", steps=3)
        there = Path(bench.agent.requests[0]["trace"])
        there.write_bytes(content)
        target = tmp_path / "rank00001.trace.json.gz"
        assert channel.fetch(target) == target.stat().st_size
        assert gzip.decompress(target.read_bytes()) == content
        channel.ask("detach")
    assert bench.agent.closed.wait(5)
    wait_until(lambda: not there.exists())
    assert not [key for key in bench.store.values if "/c/" in key]
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_a_trace_that_is_too_large_stays_and_the_message_says_where(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_TRACE_BYTES", 1000)
    bench.replies["go"] = {"ok": True}
    with bench.job() as job:
        channel = job.channel(job.ranks()[0][0])
        channel.ask("go", steps=3)
        there = Path(bench.agent.requests[0]["trace"])
        there.write_bytes(os.urandom(5000))
        with pytest.raises(OutputError, match=str(there)):
            channel.fetch(tmp_path / "rank00001.trace.json.gz")
    assert bench.agent.closed.wait(5)
    assert there.exists()
    assert list(tmp_path.iterdir()) == []


def test_closing_ends_what_the_agent_does(bench: Bench) -> None:
    bench.replies["arm"] = None  # it waits
    job = bench.job()
    channel = job.channel(job.ranks()[0][0])
    channel.send("arm")
    wait_until(lambda: bench.agent.requests)
    job.close()
    assert bench.agent.closed.wait(2)


def test_a_controller_that_died_is_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LOST_AFTER_S", 0.3)
    monkeypatch.setattr(store, "BEAT_S", 0.05)
    bench.replies["arm"] = None
    job = bench.job()
    channel = job.channel(job.ranks()[0][0])
    channel.send("arm")
    wait_until(lambda: bench.agent.requests)
    job._stop.set()  # no beat any more, and no word of farewell
    assert bench.agent.closed.wait(5)


def test_a_call_that_was_counted_but_never_written_blocks_nobody(bench: Bench) -> None:
    bench.replies["status"] = {"ok": True}
    bench.store.add("calls/1", 1)
    with bench.job() as job:
        assert job.channel(job.ranks()[0][0]).ask("status") == {"ok": True}


def test_nobody_listens() -> None:
    with pytest.raises(NoRanksError, match="no rank listens"):
        hosts.JobStore(MemoryStore).ranks()  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["", "node0", "node0:", ":29500", "node0:x", "node0:70000"])
def test_a_bad_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="no address of a store"):
        hosts.JobStore.open(address)


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What each call returned or raised, all of them in threads."""
    results: list[Any] = [None] * len(calls)

    def work(number: int) -> None:
        try:
            results[number] = calls[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


def meet(shared: MemoryStore, num_hosts: int, timeout_s: float = 10) -> hosts.Meeting:
    meeting = hosts.Meeting(shared, num_hosts)  # type: ignore[arg-type]
    meeting.join(timeout_s)
    return meeting


def test_hosts_hear_the_same_in_the_same_order() -> None:
    shared = MemoryStore()

    def take_part(name: str) -> tuple[int, list[Any]]:
        meeting = meet(shared, 3)
        return meeting.seat, [meeting.exchange({"from": name, "round": n}) for n in range(3)]

    said = dict(at_once(*(lambda name=name: take_part(name) for name in "abc")))
    assert sorted(said) == [0, 1, 2]
    assert said[0] == said[1] == said[2]
    for number, heard in enumerate(said[0]):
        assert sorted(m["from"] for m in heard) == ["a", "b", "c"]
        assert {m["round"] for m in heard} == {number}
    rounds = {key.split("/")[3] for key in shared.values if "/round/" in key}
    assert rounds == {"3"}  # what all have read is not left in the job's store


def test_hosts_that_leave_are_missed_and_the_others_go_on() -> None:
    shared = MemoryStore()
    first, second, third = at_once(*[lambda: meet(shared, 3)] * 3)

    def stay(meeting: hosts.Meeting) -> list[Any]:
        return [meeting.exchange(number) for number in range(2)]

    def go(meeting: hosts.Meeting) -> list[Any]:
        heard = meeting.exchange(0)
        meeting.leave("its ranks are gone")
        return [heard]

    one, two, three = at_once(lambda: stay(first), lambda: go(second), lambda: stay(third))
    assert two == [[0, 0, 0]]
    last = [1, 1, 1]
    last[second.seat] = None  # type: ignore[call-overload]
    assert one == three == [[0, 0, 0], last]
    assert first.reasons == {second.seat: "its ranks are gone"}
    with pytest.raises(AttachError, match="has left"):
        second.exchange(1)


def test_a_host_that_stays_away_ends_in_an_error_and_the_next_ones_meet() -> None:
    shared = MemoryStore()
    with pytest.raises(AttachTimeoutError, match=r"only 1 of 2 hosts came within 0\.1 s") as caught:
        meet(shared, 2, 0.1)
    assert "every host" in caught.value.hint
    one, two = at_once(lambda: meet(shared, 2), lambda: meet(shared, 2))
    assert at_once(lambda: one.exchange("a"), lambda: two.exchange("b"))[0] in (
        ["a", "b"],
        ["b", "a"],
    )


def test_the_seat_of_a_host_that_was_killed_is_not_taken_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It said that it is here, and no more. The first of the next two finds that out."""
    monkeypatch.setattr(hosts, "_SIT_DOWN_S", 0.2)
    shared = MemoryStore()
    shared.add("meet/seats", 1)
    shared.set("meet/0/here/0", "2")
    one, two = at_once(lambda: meet(shared, 2), lambda: meet(shared, 2))
    assert sorted(at_once(lambda: one.exchange(1), lambda: two.exchange(2))[0]) == [1, 2]
    assert one._top == two._top != "meet/0"


def test_a_host_that_falls_silent_is_an_error() -> None:
    shared = MemoryStore()
    one, _ = at_once(lambda: meet(shared, 2), lambda: meet(shared, 2))
    with pytest.raises(AttachTimeoutError, match=r"of 2 did not answer within 0\.1 s"):
        one.exchange("alone", 0.1)


def wait_until(ready: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)
