"""``replay`` and ``staircase`` as analyses: what they take, what they answer, how much they run."""

from __future__ import annotations

import pytest

import diagnose.replay as package
from diagnose import engine
from diagnose.analysis import Unavailable
from diagnose.errors import UnavailableError, UsageError
from diagnose.recording import Recording
from diagnose.replay import parse, replay, staircase
from diagnose.trace import Table
from tests.text import jobs


@pytest.fixture
def trace():
    return jobs.gpu_is_the_limit()


def rows(found):
    assert isinstance(found, Table), found
    return found


def test_changes_are_text_or_objects_one_or_several(trace):
    # 60 us of gemm, 40 of all-reduce: 80 with it twice as fast, 70 with it four times.
    one = "faster-collectives:factor=2"
    for given in (one, [one], parse(one), (parse(one),)):
        found = rows(replay(trace, given))
        assert found["then_ns"].tolist() == [80_000]
        assert found.texts("changes") == ["faster-collectives"]
    found = rows(replay(trace, [one, parse("faster-collectives:factor=2")]))
    assert found["then_ns"].tolist() == [70_000]
    assert found["gain_ns"].tolist() == [30_000]


def test_without_a_change_it_says_how_well_the_replay_fits(trace):
    found = rows(replay(trace))
    assert found.texts("changes") == [None]
    assert found["measured_step_ns"].tolist() == found["then_ns"].tolist() == [100_000]
    assert found["gain_ns"].tolist() == [0]


def test_they_are_methods_of_a_recording(trace):
    recording = Recording(trace)
    frame = recording.replay("hide-communication")
    assert frame["gain_ns"].tolist() == [40_000]
    assert recording.staircase()["is_bound"].tolist() == [False, True]
    with pytest.raises(UsageError, match="no-such"):
        recording.replay("no-such")
    with pytest.raises(UnavailableError, match="replay: pinned-copies: "):
        recording.replay(["faster-collectives", "pinned-copies"])


def test_a_recording_that_cannot_be_replayed_says_why():
    for analyzer in (replay, staircase):
        found = analyzer(jobs.unknown_ranks())
        assert isinstance(found, Unavailable)
        assert found.remedy


def test_a_quick_search_replays_as_few_steps_as_its_budget_allows(trace, monkeypatch):
    # Two operations and two calls a step, of which six are marked and five have a time.
    assert rows(staircase(trace, quick=True))["num_steps"].tolist()[0] == 5
    for budget, steps in ((4, 1), (11, 2), (12, 3), (100, 5)):
        monkeypatch.setattr(package, "QUICK_NODES", budget * package.QUICK_TRIES)
        found = rows(staircase(jobs.gpu_is_the_limit(), quick=True))
        assert found["num_steps"].tolist()[0] == steps, budget
    assert rows(staircase(trace))["num_steps"].tolist()[0] == 5


def test_the_report_asks_for_it():
    assert engine.REPORT["staircase"].analyzer == "staircase"
    assert engine.REPORT["staircase"].options["quick"] is True
