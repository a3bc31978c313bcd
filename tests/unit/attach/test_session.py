"""One window over many agents: agreed, recorded, retried, and everybody let go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from diagnose.attach import channel as channels
from diagnose.attach import session as sessions
from diagnose.attach.channel import Channel
from diagnose.attach.session import Member, Session, Wanted
from diagnose.errors import (
    AttachError,
    AttachTimeoutError,
    NoStepsError,
    OutputError,
    ProfilerBusyError,
    RecordingError,
    StuckError,
    WindowLostError,
)
from tests.unit.attach.fake_agent import STEP_NS, Answer, FakeAgent, refusing

Start = Callable[..., tuple[Session, list[FakeAgent]]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    agents: list[FakeAgent] = []

    def start(
        *answers: Mapping[str, Answer], timeout_s: float = 5.0
    ) -> tuple[Session, list[FakeAgent]]:
        for rank, each in enumerate(answers):
            agents.append(FakeAgent(tmp_path / f"s{rank}", rank, len(answers), each))
        members = []
        for agent in agents:
            channel = Channel.connect(agent.process, 1, f"rank {agent.rank}")
            members.append(
                Member(
                    channel,
                    agent.process.pid,
                    rank=agent.rank,
                    process=agent.process,
                    reopen=lambda a=agent: Channel.find(a.process, f"rank {a.rank}"),
                )
            )
        return Session(members, timeout_s=timeout_s), agents

    yield start
    for agent in agents:
        agent.stop()


def record(session: Session, folder: Path, wanted: Wanted | None = None) -> sessions.Taken:
    return session.record(wanted or Wanted(3), lambda m: folder / f"rank{m.rank}.json")


def test_all_ranks_record_the_same_steps(start: Start, tmp_path: Path) -> None:
    session, agents = start({}, {}, {})
    with session:
        session.status()
        taken = record(session, tmp_path)
    assert sorted(member.rank or 0 for member in taken.replies) == [0, 1, 2]
    goes = [next(r for r in agent.asked if r["op"] == "go") for agent in agents]
    assert len({str(go["start"]) for go in goes}) == 1
    first = goes[0]["start"]["seq"]
    assert first % 3 == 0
    assert {go["stride"] for go in goes} == {3}
    # A request may travel for 0.3 s, which are 30 steps of 10 ms, and 3 more: at least so far.
    assert first // 3 - max(agent.told for agent in agents) >= 33
    assert taken.start.clock == "seq"
    assert taken.start.steps == 3
    assert all((tmp_path / f"rank{rank}.json").is_file() for rank in range(3))
    assert [agent.ops()[-1] for agent in agents] == ["detach"] * 3


def test_seconds_become_the_same_number_of_steps(start: Start, tmp_path: Path) -> None:
    session, agents = start({}, {})
    with session:
        record(session, tmp_path, Wanted(None, 0.5))
    goes = [next(r for r in agent.asked if r["op"] == "go") for agent in agents]
    assert [go["steps"] for go in goes] == [50, 50]  # of 10 ms each
    assert "seconds" not in goes[0]


def test_a_step_number_is_taken_as_it_is(start: Start, tmp_path: Path) -> None:
    def go(request: dict[str, Any]) -> dict[str, Any]:
        Path(request["trace"]).write_text("{}")
        return {"ok": True, "marks": []}

    session, agents = start({"go": go})
    with session:
        taken = record(session, tmp_path, Wanted(2, at_step=500))
    assert next(r for r in agents[0].asked if r["op"] == "go")["start"] == {"step": 500}
    assert taken.start.clock == "step"


def test_a_rank_that_refuses_is_left_out(start: Start, tmp_path: Path) -> None:
    session, agents = start({}, {"arm": refusing("profiler-busy", "it profiles")}, {})
    with session:
        taken = record(session, tmp_path)
    assert sorted(member.rank or 0 for member in taken.replies) == [0, 2]
    [(failed, error)] = session.failures.items()
    assert failed.rank == 1
    assert isinstance(error, ProfilerBusyError)
    assert "go" not in agents[1].ops()
    assert agents[1].ops()[-1] == "detach"


def test_a_rank_whose_window_fails_is_left_out(start: Start, tmp_path: Path) -> None:
    session, _ = start({"go": refusing("trace-lost")}, {})
    with session:
        taken = record(session, tmp_path)
    assert [member.rank for member in taken.replies] == [1]
    assert isinstance(next(iter(session.failures.values())), WindowLostError)


def test_where_all_fail_the_rarest_cause_is_the_error(start: Start, tmp_path: Path) -> None:
    """Two ranks wait for the one that is stopped: that one is the reason."""
    stuck = refusing("main-thread-stuck", "blocked in native code")
    session, _ = start({"arm": stuck}, {"arm": refusing("output", "disk full")}, {"arm": stuck})
    with session, pytest.raises(OutputError, match="rank 1: disk full"):
        record(session, tmp_path)
    assert sum(isinstance(e, StuckError) for e in session.failures.values()) == 2


def once_missed(others_asked: Callable[[], bool]) -> Answer:
    """Past the start the first time, once the others have been asked; then healthy."""
    calls: list[int] = []

    def go(request: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 1:
            while not others_asked():
                time.sleep(0.01)
            return {"ok": False, "code": "start-missed", "error": "past"}
        Path(request["trace"]).write_text("{}")
        return {"ok": True, "marks": [], "at": request["start"]}

    return go


def waiting_to_be_cancelled() -> Answer:
    """A window that never comes to its end by itself the first time."""
    calls: list[int] = []

    def go(request: dict[str, Any]) -> dict[str, Any] | None:
        calls.append(1)
        if len(calls) == 1:
            return None
        Path(request["trace"]).write_text("{}")
        return {"ok": True, "marks": [], "at": request["start"]}

    return go


def test_a_missed_start_is_tried_again_further_ahead(start: Start, tmp_path: Path) -> None:
    session, agents = start({}, {"go": waiting_to_be_cancelled()})
    agents[0].answers["go"] = once_missed(lambda: "go" in agents[1].ops())
    with session:
        taken = record(session, tmp_path)
    assert len(taken.replies) == 2
    for agent in agents:
        first, second = (r["start"]["seq"] for r in agent.asked if r["op"] == "go")
        assert second > first
    # The one that would have recorded alone was cancelled: its connection was closed.
    assert agents[1].closed.is_set()
    starts = {str(reply["at"]) for reply in taken.replies.values()}
    assert len(starts) == 1


def test_a_start_that_is_missed_again_and_again_ends_in_an_error(
    start: Start, tmp_path: Path
) -> None:
    session, agents = start({"go": refusing("start-missed", "past")})
    with session, pytest.raises(WindowLostError, match="rank 0: past"):
        record(session, tmp_path)
    assert agents[0].ops().count("go") == 4


def test_after_the_last_try_those_that_were_in_time_are_kept(start: Start, tmp_path: Path) -> None:
    def go(request: dict[str, Any]) -> dict[str, Any]:
        Path(request["trace"]).write_text("{}")
        return {"ok": True, "marks": []}

    session, _ = start({"go": refusing("start-missed", "past")}, {"go": go})
    with session:
        taken = record(session, tmp_path)
    assert [member.rank for member in taken.replies] == [1]


def test_without_optimizer_steps_the_clock_decides(start: Start, tmp_path: Path) -> None:
    def go(request: dict[str, Any]) -> dict[str, Any]:
        Path(request["trace"]).write_text("{}")
        return {"ok": True}

    answers = {"arm": refusing("no-steps"), "go": go}
    session, agents = start(answers, answers)
    before = time.time_ns()
    with session:
        taken = record(session, tmp_path, Wanted(None, 1.5))
    goes = [next(r for r in agent.asked if r["op"] == "go") for agent in agents]
    assert goes[0]["start"] == goes[1]["start"]
    assert 0 < goes[0]["start"]["unix_ns"] - before < 5e9
    assert goes[0]["seconds"] == 1.5
    assert "steps" not in goes[0]
    assert (taken.start.clock, taken.start.steps) == ("unix", None)


def test_one_rank_without_steps_is_left_out(start: Start, tmp_path: Path) -> None:
    session, _ = start({}, {"arm": refusing("no-steps")})
    with session:
        taken = record(session, tmp_path)
    assert [member.rank for member in taken.replies] == [0]
    assert isinstance(next(iter(session.failures.values())), NoStepsError)


def test_a_silent_rank_costs_its_timeout_and_no_more(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "GRACE_S", 0.2)
    monkeypatch.setattr(sessions, "_LEAVE_S", 1.0)
    session, _ = start({}, {"arm": lambda request: None}, timeout_s=0.5)
    began = time.monotonic()
    with session:
        taken = record(session, tmp_path)
    assert time.monotonic() - began < 6
    assert [member.rank for member in taken.replies] == [0]
    assert isinstance(next(iter(session.failures.values())), AttachTimeoutError)


def test_leaving_early_ends_a_window_and_lets_the_agent_go(start: Start, tmp_path: Path) -> None:
    """As Ctrl-C does: the caller goes while the agents are still recording."""
    session, agents = start({"go": lambda request: None}, {"go": lambda request: None})
    caller = threading.Thread(target=lambda: _quietly(lambda: record(session, tmp_path)))
    caller.start()
    deadline = time.monotonic() + 10
    while not all("go" in agent.ops() for agent in agents):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    session.leave()
    caller.join(30)
    assert not caller.is_alive()
    for agent in agents:
        assert agent.closed.is_set()
        assert agent.ops()[-2:] == ["status", "detach"]  # on a connection of its own


def _quietly(call: Callable[[], object]) -> None:
    with suppress(RecordingError):
        call()


def test_leaving_twice_asks_once(start: Start) -> None:
    session, agents = start({})
    with session:
        session.leave()
    assert agents[0].ops() == ["detach"]


def test_the_rank_that_the_process_knows_beats_what_was_thought(start: Start) -> None:
    session, _ = start({}, {})
    session.members[0].rank = None
    session.members[1].rank = 7
    with session:
        session.status()
    assert [member.rank for member in session.members] == [0, 1]


def test_an_agent_of_another_version_is_left_alone(start: Start, tmp_path: Path) -> None:
    session, agents = start({}, {})
    healthy = agents[1].answer_status({})
    agents[1].answers["status"] = lambda request: {**healthy, "protocol": 2}
    with session:
        session.status()
        taken = record(session, tmp_path)
    assert [member.rank for member in taken.replies] == [0]
    [error] = session.failures.values()
    assert error.message == "rank 1: its agent speaks protocol 2, this version speaks 1"


@pytest.mark.parametrize(
    "marks",
    [
        *(None, "x", [], [[1, 2]], [[1, "2", 3]], [[None, 2, 3]], [7], [[1, 3, 5]]),
        *([[2, 6, 9], [1, 3, 5]], [[1, 3, 5], [2, True, 9]], [[1, 3, 5], [2, 6, 10**400]]),
        *([[1, 3, 5], [2, "6", 9]], [[1, 3, 5], [2, -6, 9]], [[1, 3, 5], {}]),
    ],
)
def test_an_agent_that_tells_no_steps_is_left_out(
    start: Start, tmp_path: Path, marks: object
) -> None:
    session, _ = start({}, {"arm": lambda request: {"ok": True, "marks": marks}})
    with session:
        taken = record(session, tmp_path)
    assert [member.rank for member in taken.replies] == [0]
    [error] = session.failures.values()
    assert isinstance(error, AttachError)
    assert error.message.startswith("rank 1: the step boundaries that its agent told")


def test_ranks_that_were_armed_far_apart_are_asked_for_what_overlaps(
    start: Start, tmp_path: Path
) -> None:
    """Rank 1 is armed 0.3 s, 30 steps, later than rank 0, and steps hold 2 or 4 collectives.

    Of two boundaries a rank nothing would overlap, and the wall clock would have to do.
    """

    def irregular(agent: FakeAgent) -> None:
        agent.mark = lambda step: [step, 6 * (step // 2) + 2 * (step % 2), step * STEP_NS]  # type: ignore[method-assign]

    session, agents = start({}, {})
    for agent in agents:
        irregular(agent)
    late = agents[1].answer_arm

    def answer_late(request: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.3)
        return late(request)

    agents[1].answers["arm"] = answer_late
    go = {"go": lambda request: {"ok": True, "marks": [], "at": request["start"]}}
    for agent in agents:
        agent.answers |= go
    with session:
        taken = record(session, tmp_path)
    assert taken.start.clock == "seq"
    assert taken.start.stride == 4
    assert all(agent.ops()[-4:-1] == ["arm", "steps", "go"] for agent in agents)


def test_a_defect_is_not_taken_for_a_refusal(start: Start, tmp_path: Path) -> None:
    session, _ = start({})

    def trace_of(member: Member) -> Path:
        raise ZeroDivisionError

    with session, pytest.raises(ZeroDivisionError):
        session.record(Wanted(3), trace_of)
