"""From ranks to a recording that is whole, with agents that a test controls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import diagnose
from diagnose import collect, manifest
from diagnose.attach.discovery.discover import RankProcess
from diagnose.collect import _compress, _reach, _sensors, _window
from diagnose.errors import (
    AttachError,
    NoRanksError,
    OutputError,
    ProfilerBusyError,
    RecordingError,
    UsageError,
    WindowLostError,
)
from tests.unit.attach.fake_agent import STEP_NS, Answer, FakeAgent, refusing

FIRST_PID = 1001


def rank_process(pid: int, rank: int | None, world_size: int | None) -> RankProcess:
    return RankProcess(
        pid=pid,
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        job="j",
        launcher="torchrun",
        script="train.py",
        uid=0,
        host="node1",
    )


Start = Callable[..., tuple[list[RankProcess], list[FakeAgent]]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Agents with the answers given, one a rank, which discovery found as process 1001 and on."""
    agents: list[FakeAgent] = []
    monkeypatch.setattr(
        _reach, "Process", lambda pid: {FIRST_PID + a.rank: a for a in agents}[pid].process
    )

    def start(
        *answers: Mapping[str, Answer], world_size: int | None = None
    ) -> tuple[list[RankProcess], list[FakeAgent]]:
        size = world_size or len(answers)
        for rank, each in enumerate(answers):
            agents.append(FakeAgent(tmp_path / f"s{rank}", rank, size, each))
        return [rank_process(FIRST_PID + a.rank, a.rank, size) for a in agents], agents

    yield start
    for agent in agents:
        agent.stop()


def attach(ranks: list[RankProcess], output: Path, **options: Any) -> collect.Recorded:
    return collect.attach(ranks, output, route=collect.Route.cooperative, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_recording_is_whole_and_reads_back(start: Start, tmp_path: Path) -> None:
    ranks, agents = start({}, {})
    recorded = attach(ranks, tmp_path / "out")
    assert names(tmp_path / "out") == [
        "rank00000.env.json",
        "rank00000.trace.json.gz",
        "rank00001.env.json",
        "rank00001.trace.json.gz",
        "recording.json",
    ]
    content = manifest.read(tmp_path / "out" / "recording.json")
    assert content == recorded.manifest
    assert (content.world_size, content.missing_ranks) == (2, ())
    assert content.tool_version == diagnose.__version__
    go = next(request for request in agents[0].asked if request["op"] == "go")
    assert content.window == manifest.Window(3, None, "seq", go["start"]["seq"])
    assert content.started_unix_ns == go["start"]["seq"] // 3 * STEP_NS
    first, second = content.ranks
    assert (first.rank, first.host, first.pid, first.local_rank) == (0, "node1", FIRST_PID, 0)
    assert (second.rank, second.route) == (1, "cooperative")
    assert json.loads((tmp_path / "out" / "rank00001.env.json").read_text())["rank"] == 1
    recording = diagnose.load(tmp_path / "out")
    assert [source.rank for source in recording.sources] == [0, 1]
    assert [note.code for note in recording.notes][:1] == ["telemetry-missing"]
    assert recording.trace.observer is not None


def test_what_recording_cost_is_worked_out_from_the_boundaries(
    start: Start, tmp_path: Path
) -> None:
    """The agents step every 10 ms and were seen from 8 steps before to 14 after the start.

    Before: 8 boundaries and the start are 8 intervals, the last of which held the
    preparation: 7. Within: 3. After: the window ends with boundary 3 and stopping and
    writing took 10 ms, until boundary 4: 10 intervals from there to boundary 14, the
    later half of which counts.
    """
    ranks, _ = start({}, {})
    recorded = attach(ranks, tmp_path / "out")
    assert recorded.observer == manifest.Observer(STEP_NS, STEP_NS, STEP_NS, 14, 6, 10, 0)


def test_options_go_to_every_agent(start: Start, tmp_path: Path) -> None:
    ranks, agents = start({}, {})
    options = collect.Options(shapes=False, stacks=True, memory=True)
    attach(ranks, tmp_path / "out", options=options)
    for agent in agents:
        go = next(request for request in agent.asked if request["op"] == "go")
        assert go["options"] == {
            "shapes": False,
            "stacks": True,
            "memory": True,
            "sync_events": True,
            "all_threads": True,
            "modules": False,
        }


def test_what_a_torch_does_not_know_is_said(start: Start, tmp_path: Path) -> None:
    ranks, agents = start({}, {})
    healthy = agents[0].answer_go
    agents[0].answers["go"] = lambda request: {**healthy(request), "ignored": ["memory"]}
    notes = {note.code: note for note in attach(ranks, tmp_path / "out").notes}
    assert notes["option-ignored"].sentence.endswith("was not recorded: memory")


def check_sync_answer(agent: FakeAgent, **said: Any) -> Answer:
    """An agent that records an execution trace beside its trace."""

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        Path(request["check_sync"]).write_text('{"nodes": []}')
        beside = {"path": request["check_sync"], "bytes": 13, "reason": "", **said}
        return {**agent.answer_go(request), "check_sync": {"events_annotated": True, **beside}}

    return answer


def test_a_check_of_synchronisation_is_a_file_of_each_rank(start: Start, tmp_path: Path) -> None:
    ranks, agents = start({}, {})
    for agent in agents:
        agent.answers["go"] = check_sync_answer(agent)
    options = collect.Options(check_sync=True, execution_trace=True)
    recorded = attach(ranks, tmp_path / "out", options=options)
    for number, agent in enumerate(agents):
        go = next(request for request in agent.asked if request["op"] == "go")
        assert go["options"]["stacks"] is True
        name = f"rank{number:05d}.execution_trace.json"
        assert go["check_sync"] == str(tmp_path / "out" / name)
        assert recorded.manifest.ranks[number].execution_trace == f"{name}.gz"
        assert f"{name}.gz" in names(tmp_path / "out")
        assert "execution_trace" not in agent.ops()  # a second one would say nothing new
    codes = {note.code for note in recorded.notes}
    assert not codes & {"execution-trace-missing", "events-not-annotated"}


def test_agents_that_know_no_check_of_synchronisation_record_without(
    start: Start, tmp_path: Path
) -> None:
    ranks, _ = start({}, {})
    options = collect.Options(check_sync=True)
    recorded = attach(ranks, tmp_path / "out", options=options)
    assert [rank.execution_trace for rank in recorded.manifest.ranks] == [None, None]
    notes = {note.code: note for note in recorded.notes}
    assert notes["execution-trace-missing"].severity == "warning"
    assert notes["execution-trace-missing"].sentence.startswith(
        "ranks 0, 1: no execution trace (its agent is of an older torch-diagnose"
    )


def test_a_check_that_was_stopped_late_keeps_what_was_whole(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the first of two traces and two execution traces was packed."""
    compress = _compress.compress_all

    def stopped(traces: list[Path], progress: Any) -> list[Path]:
        compress(traces[:1], progress)
        raise KeyboardInterrupt

    monkeypatch.setattr(_window, "compress_all", stopped)
    ranks, agents = start({}, {})
    for agent in agents:
        agent.answers["go"] = check_sync_answer(agent, events_annotated=False, reason="no-cuda")
    with pytest.raises(KeyboardInterrupt):
        attach(ranks, tmp_path / "out", options=collect.Options(check_sync=True))
    content = manifest.read(tmp_path / "out" / "recording.json")
    assert [rank.execution_trace for rank in content.ranks] == [
        "rank00000.execution_trace.json",
        "rank00001.execution_trace.json",
    ]
    notes = {note.code: note for note in content.notes}
    assert notes["events-not-annotated"].severity == "info"


def test_a_rank_that_fails_is_named_and_the_others_recorded(start: Start, tmp_path: Path) -> None:
    ranks, _ = start({}, {"arm": refusing("profiler-busy", "its own profiler records")}, {})
    recorded = attach(ranks, tmp_path / "out")
    assert [rank.rank for rank in recorded.manifest.ranks] == [0, 2]
    assert recorded.manifest.missing_ranks == (1,)
    notes = {note.code: note for note in recorded.notes}
    assert notes["rank-not-recorded"].severity == "warning"
    assert notes["rank-not-recorded"].sentence.startswith(
        "rank 1 (pid 1002): its own profiler records; not recorded"
    )
    assert "ranks-missing" not in notes
    loaded = diagnose.load(tmp_path / "out")
    assert loaded.trace.missing_ranks == (1,)


def test_ranks_of_other_hosts_are_named(start: Start, tmp_path: Path) -> None:
    ranks, _ = start({}, {}, world_size=8)
    recorded = attach(ranks, tmp_path / "out")
    assert recorded.manifest.missing_ranks == (2, 3, 4, 5, 6, 7)
    [note] = [note for note in recorded.notes if note.code == "ranks-missing"]
    assert note.sentence.startswith("of 8 ranks 2-7 were not recorded")
    assert "diagnose merge" in note.sentence


def test_where_all_fail_the_error_is_raised_and_nothing_is_left(
    start: Start, tmp_path: Path
) -> None:
    ranks, agents = start(
        {"arm": refusing("profiler-busy", "it records")}, {"go": refusing("busy")}
    )
    agents[1].answers["arm"] = refusing("profiler-busy", "it records")
    with pytest.raises(ProfilerBusyError, match="it records") as caught:
        attach(ranks, tmp_path / "out")
    assert caught.value.hint
    assert not (tmp_path / "out").exists()
    assert [agent.ops()[-1] for agent in agents] == ["detach", "detach"]


def test_without_an_agent_the_cooperative_route_says_what_to_do(
    start: Start, tmp_path: Path
) -> None:
    ranks, agents = start({})
    agents[0].stop()
    with pytest.raises(AttachError, match="no agent listens in it") as caught:
        attach(ranks, tmp_path / "out")
    assert "diagnose run" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_a_rank_that_cannot_be_reached_is_part_of_the_error_of_the_others(
    start: Start, tmp_path: Path
) -> None:
    ranks, agents = start({"arm": refusing("main-thread-stuck", "it waits")}, {})
    agents[1].stop()
    with pytest.raises(RecordingError, match=r"no agent listens in it; rank 0.*it waits"):
        attach(ranks, tmp_path / "out")


@pytest.mark.parametrize(
    "marks", [[[1, 30, 1], [2, 33, 2], [3, 36, 3], [4, 39, 4]], [[1, 33, 1], [2, 36, 2]]]
)
def test_ranks_that_recorded_different_steps_are_doubted(
    start: Start, tmp_path: Path, marks: list[list[int]]
) -> None:
    ranks, agents = start({}, {})
    healthy = agents[1].answer_go
    agents[1].answers["go"] = lambda request: {**healthy(request), "marks": marks}
    notes = {note.code: note for note in attach(ranks, tmp_path / "out").notes}
    assert notes["ranks-not-aligned"].severity == "warning"


def test_a_window_by_the_clock_is_marked_as_such(start: Start, tmp_path: Path) -> None:
    def go(request: dict[str, Any]) -> dict[str, Any]:
        Path(request["trace"]).write_text('{"traceEvents": []}')
        return {"ok": True, "marks": [], "started_unix_ns": 77}

    ranks, _ = start({"arm": refusing("no-steps"), "go": go})
    recorded = attach(ranks, tmp_path / "out", seconds=0.5)
    window = recorded.manifest.window
    assert window is not None
    assert (window.steps, window.seconds, window.clock) == (None, 0.5, "unix")
    assert recorded.manifest.started_unix_ns == 77
    assert recorded.observer is None
    assert "no-steps" in {note.code for note in recorded.notes}


def test_processes_without_a_rank_are_numbered_and_doubted(start: Start, tmp_path: Path) -> None:
    ranks, agents = start({}, {})
    for agent in agents:
        healthy = agent.answer_status({})
        agent.answers["status"] = lambda request, said=healthy: {
            **said,
            "rank": None,
            "world_size": None,
        }
    nameless = [rank_process(rank.pid, None, None) for rank in ranks]
    recorded = attach(nameless, tmp_path / "out")
    assert [(r.rank, r.pid) for r in recorded.manifest.ranks] == [(0, 1001), (1, 1002)]
    assert "rank-assumed" in {note.code for note in recorded.notes}


def test_two_processes_of_one_rank_are_not_one_job(start: Start, tmp_path: Path) -> None:
    ranks, agents = start({}, {})
    healthy = agents[1].answer_status({})
    agents[1].answers["status"] = lambda request: {**healthy, "rank": 0}
    recorded = attach(ranks, tmp_path / "out")
    assert [rank.pid for rank in recorded.manifest.ranks] == [1001]
    assert any("they are not one job" in note.sentence for note in recorded.notes)


def test_a_trace_that_is_not_there_is_no_recording(start: Start, tmp_path: Path) -> None:
    ranks, agents = start({})
    healthy = agents[0].answer_go

    def go(request: dict[str, Any]) -> dict[str, Any]:
        reply = healthy(request)
        Path(request["trace"]).unlink()
        return reply

    agents[0].answers["go"] = go
    with pytest.raises(WindowLostError, match="it is not"):
        attach(ranks, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_disk_that_fills_up_while_packing_keeps_the_traces(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_compress, "_writer", full)
    ranks, _ = start({})
    said: list[str] = []
    with pytest.raises(OutputError, match="No space left"):
        attach(ranks, tmp_path / "out", progress=said.append)
    assert names(tmp_path / "out") == [
        "rank00000.env.json",
        "rank00000.trace.json",
        "recording.json",
    ]
    assert said[-1] == f"1 whole traces are kept in {tmp_path / 'out'}"


def test_what_was_whole_when_it_was_stopped_late_is_a_recording(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the first of two traces was packed and the second was not."""
    compress = _compress.compress_all

    def stopped(traces: list[Path], progress: Any) -> list[Path]:
        compress(traces[:1], progress)
        raise KeyboardInterrupt

    monkeypatch.setattr(_window, "compress_all", stopped)
    ranks, agents = start({}, {})
    with pytest.raises(KeyboardInterrupt):
        attach(ranks, tmp_path / "out")
    content = manifest.read(tmp_path / "out" / "recording.json")
    assert [rank.trace for rank in content.ranks] == [
        "rank00000.trace.json.gz",
        "rank00001.trace.json",
    ]
    go = next(request for request in agents[0].asked if request["op"] == "go")
    assert content.window == manifest.Window(3, None, "seq", go["start"]["seq"])
    assert [note.code for note in content.notes][-1] == "recording-stopped"
    assert content.observer is not None
    assert [source.rank for source in diagnose.load(tmp_path / "out").sources] == [0, 1]


def test_a_manifest_that_cannot_be_written_leaves_the_traces_as_they_are(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OutputError("no room")

    monkeypatch.setattr(manifest, "write", full)
    ranks, _ = start({})
    said: list[str] = []
    with pytest.raises(OutputError, match="no room"):
        attach(ranks, tmp_path / "out", progress=said.append)
    assert "rank00000.trace.json.gz" in names(tmp_path / "out")
    assert "recording.json" not in names(tmp_path / "out")
    assert said[-1].endswith("it has no manifest, which `diagnose report` can do without")


@pytest.mark.parametrize(
    "wrong",
    [
        {"hosts": 2},
        {"hosts": 0, "store": "node0:1"},
        {"store": "node0:1"},
        {"hosts": 2, "store": "node0:1", "route": collect.Route.kineto_daemon},
    ],
)
def test_several_hosts_need_a_store_and_an_agent(tmp_path: Path, wrong: dict[str, Any]) -> None:
    ranks = [rank_process(FIRST_PID, 0, 1)]
    with pytest.raises(UsageError, match=r"store|agent"):
        collect.attach(ranks, tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


def test_wrong_windows_are_refused_before_anything_else(tmp_path: Path) -> None:
    ranks = [rank_process(FIRST_PID, 0, 1)]
    for wrong in ({"steps": 0}, {"seconds": 0.0}, {"seconds": float("nan")}, {"timeout_s": 0.0}):
        with pytest.raises(UsageError):
            attach(ranks, tmp_path / "out", **wrong)
    with pytest.raises(NoRanksError):
        attach([], tmp_path / "out")
    with pytest.raises(UsageError, match="'by-post'") as caught:
        collect.route_named("by-post")
    assert "kineto-daemon" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_telemetry_is_not_opened_unless_wanted(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, _ = start({})
    recorded = attach(ranks, tmp_path / "out", options=collect.Options(telemetry=False))
    assert recorded.notes == ()
    assert _sensors.Sensors(wanted=False).describe(object()) == {}  # type: ignore[arg-type]
