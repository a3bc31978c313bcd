"""Controllers of several hosts that record one window: the same start, told by one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diagnose.attach import _agreement, hosts
from diagnose.attach.channel import Channel
from diagnose.attach.session import Member, Session, Taken, Wanted
from diagnose.errors import AttachError, NoStepsError, ProfilerBusyError
from tests.unit.attach.fake_agent import Answer, FakeAgent, refusing
from tests.unit.attach.test_hosts import MemoryStore, at_once, meet

Host = Callable[[], Taken]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., tuple[list[Host], list[FakeAgent]]]]:
    """A host with one rank for each of the answers, all of one job."""
    agents: list[FakeAgent] = []

    def start(
        *answers: Mapping[str, Answer], wanted: Wanted | None = None
    ) -> tuple[list[Host], list[FakeAgent]]:
        shared = MemoryStore()
        for rank, each in enumerate(answers):
            agents.append(FakeAgent(tmp_path / f"s{rank}", rank, len(answers), each))

        def controller(agent: FakeAgent) -> Taken:
            channel = Channel.connect(agent.process, 1, f"rank {agent.rank}")
            member = Member(channel, agent.process.pid, rank=agent.rank)
            member.reopen = lambda: Channel.find(agent.process, f"rank {agent.rank}")
            meeting = meet(shared, len(answers))
            try:
                with Session([member], timeout_s=5, hosts=meeting) as session:
                    session.status()
                    path = tmp_path / f"rank{agent.rank}.json"
                    return session.record(wanted or Wanted(3), lambda _: path)
            finally:
                meeting.leave("it is over")

        return [partial(controller, agent) for agent in agents], agents

    yield start
    for agent in agents:
        agent.stop()


def goes(agent: FakeAgent) -> list[dict[str, Any]]:
    return [request for request in agent.asked if request["op"] == "go"]


def test_the_ranks_of_all_hosts_record_the_same_steps(start: Any) -> None:
    controllers, agents = start({}, {}, {})
    taken = at_once(*controllers)
    assert [len(one.replies) for one in taken] == [1, 1, 1]
    [first, *others] = [goes(agent) for agent in agents]
    assert len(first) == 1
    for other in others:
        assert [(go["start"], go["stride"], go["steps"]) for go in other] == [
            (first[0]["start"], 3, 3)
        ]
    # As for one host: 0.3 s of 10 ms steps and 3 more from what the ranks told last.
    assert first[0]["start"]["seq"] // 3 - max(agent.told for agent in agents) >= 33


def test_one_rank_past_the_start_sends_all_hosts_once_more(start: Any) -> None:
    controllers, agents = start({}, {})
    healthy: Answer = agents[1].answer_go
    refused = threading.Event()

    def late_once(request: dict[str, Any]) -> dict[str, Any] | None:
        if not refused.is_set():
            refused.set()
            return {"ok": False, "code": "start-missed", "error": "past"}
        return healthy(request)

    agents[1].answers["go"] = late_once
    taken = at_once(*controllers)
    assert [len(one.replies) for one in taken] == [1, 1]
    first, second = goes(agents[0]), goes(agents[1])
    assert [go["start"] for go in first] == [go["start"] for go in second]
    assert len(first) == 2
    assert first[1]["start"]["seq"] > first[0]["start"]["seq"]
    assert {str(one.start.start) for one in taken} == {str(first[1]["start"])}


def test_a_host_whose_ranks_refuse_is_left_out(start: Any) -> None:
    controllers, agents = start({}, {"arm": refusing("profiler-busy", "it profiles")}, {})
    first, second, third = at_once(*controllers)
    assert isinstance(second, ProfilerBusyError)
    assert first.start == third.start
    assert goes(agents[0])[0]["start"] == goes(agents[2])[0]["start"]
    assert goes(agents[1]) == []


def test_a_host_without_steps_does_not_hold_the_others_up(start: Any) -> None:
    controllers, _ = start({"arm": refusing("no-steps")}, {})
    first, second = at_once(*controllers)
    assert isinstance(first, NoStepsError)
    assert "other hosts" in first.message
    assert len(second.replies) == 1


def test_without_steps_on_any_host_one_moment_is_agreed_on(start: Any) -> None:
    answers = {"arm": refusing("no-steps"), "go": lambda request: {"ok": True}}
    controllers, agents = start(answers, answers, wanted=Wanted(None, 0.5))
    taken = at_once(*controllers)
    assert [one.start.clock for one in taken] == ["unix", "unix"]
    assert goes(agents[0])[0]["start"] == goes(agents[1])[0]["start"]


GOOD = {"start": {"seq": 9}, "stride": 3, "steps": 2, "seconds": None} | {
    "expected_s": 1.0,
    "step_ns": 5.0,
}


def test_a_start_comes_back_as_it_was_told() -> None:
    assert _agreement._start(GOOD) == _agreement.Start({"seq": 9}, 3, 2, None, 1.0, 5.0)


@pytest.mark.parametrize(
    "change",
    [
        {"start": {}},
        {"start": {"path": 9}},
        {"start": {"seq": "9"}},
        {"start": {"seq": 9, "step": 1}},
        {"stride": 1.5},
        {"steps": None},
        {"steps": -1},
        {"seconds": "1"},
        {"step_ns": float("nan")},
        {"expected_s": 10**400},
    ],
)
def test_what_is_no_start_is_not_taken_for_one(change: dict[str, Any]) -> None:
    with pytest.raises(AttachError, match="cannot be understood"):
        _agreement._start({**GOOD, **change})
    with pytest.raises(AttachError, match="cannot be understood"):
        _agreement._start(None)


@pytest.mark.parametrize("said", [7, {}, {"marks": 3}, {"marks": [[[1, 2]]], "injected": False}])
def test_what_is_no_boundary_of_another_host_is_an_error(said: object) -> None:
    with pytest.raises(AttachError, match="host 2"):
        _agreement._seen(said, "host 2")


def test_a_meeting_is_what_an_agreement_needs() -> None:
    meeting: _agreement.Hosts = hosts.Meeting(MemoryStore(), 2)  # type: ignore[arg-type]
    assert (meeting.num_hosts, meeting.seat, meeting.reasons) == (2, 0, {})
