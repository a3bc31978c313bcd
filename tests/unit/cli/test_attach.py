"""``diagnose attach`` up to the recording itself: which job, which folder, what is said."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagnose import collect, manifest
from diagnose.attach.discovery import discover
from diagnose.attach.discovery.discover import Job, RankProcess, Survey
from diagnose.cli import _recording, execute
from diagnose.cli._recording import Narrator, stoppable
from diagnose.collect import Options, Recorded, Route
from diagnose.manifest import Manifest, RankFiles, Window


def job(name: str, *pids: int) -> Job:
    ranks = tuple(
        RankProcess(pid, n, n, len(pids), name, "torchrun", name, 0, "node1")
        for n, pid in enumerate(pids)
    )
    return Job(name, name, ranks)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Instead of recording, what would be recorded."""
    calls: list[dict[str, Any]] = []

    def attach(target: Any, output: Path, **options: Any) -> Recorded:
        calls.append({"target": target, "output": output, **options})
        ranks = (RankFiles(0, "rank00000.trace.json"), RankFiles(1, "rank00001.trace.json"))
        return Recorded(Path(output), Manifest(ranks, 2, window=Window(3)))

    monkeypatch.setattr(collect, "attach", attach)
    monkeypatch.chdir(tmp_path)
    return calls


def on_this_host(monkeypatch: pytest.MonkeyPatch, *jobs: Job) -> None:
    monkeypatch.setattr(discover, "survey", lambda: Survey(jobs))


def attach(*arguments: str) -> int:
    return execute(["attach", "--no-report", *arguments])


def test_the_only_job_is_recorded_with_what_was_asked_for(
    recorded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    only = job("train.py", 101, 102)
    on_this_host(monkeypatch, only)
    assert attach("-o", "out", "--seconds", "2", "--stacks", "--no-shapes", "--timeout", "9") == 0
    [call] = recorded
    assert call["target"] == list(only.ranks)
    assert call["output"] == Path("out")
    assert (call["steps"], call["seconds"], call["timeout_s"]) == (3, 2.0, 9.0)
    assert call["route"] is Route.auto
    assert call["options"] == Options(shapes=False, stacks=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "train.py: torchrun, ranks 0, 1 of 2, processes 101, 102" in err
    assert err.splitlines()[-1] == "recorded 3 steps of ranks 0, 1 of 2 into out"


def test_without_a_name_the_folder_is_called_after_the_time(
    recorded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_this_host(monkeypatch, job("train.py", 101))
    monkeypatch.setattr(_recording.time, "strftime", lambda form: "20260102-030405")
    assert attach() == 0
    assert recorded[0]["output"] == Path("recording-20260102-030405")


def test_several_jobs_are_listed_and_not_guessed(
    recorded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    on_this_host(monkeypatch, job("llama", 101, 102), job("bert", 201))
    assert attach() == 2
    said = capsys.readouterr().err
    assert "2 jobs run on this host" in said
    assert "llama: torchrun" in said
    assert "bert: torchrun" in said
    assert recorded == []


def test_a_person_at_a_terminal_is_asked(
    recorded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    llama, bert = job("llama", 101, 102), job("bert", 201)
    on_this_host(monkeypatch, llama, bert)
    answers = iter([7, 0, 2])  # what is on no list is asked again
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(answers))
    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    monkeypatch.setattr(Narrator, "__call__", lambda self, text: None)
    assert attach() == 0
    assert recorded[0]["target"] == list(bert.ranks)
    said = capsys.readouterr().err
    assert "1  llama: torchrun" in said
    assert "2  bert: torchrun" in said


def test_a_job_is_chosen_by_name_or_process(
    recorded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    llama, bert = job("llama", 101, 102), job("bert", 201)
    on_this_host(monkeypatch, llama, bert)
    assert attach("--job", "bert") == 0
    assert attach("102") == 0
    assert [call["target"] for call in recorded] == [list(bert.ranks), [llama.ranks[1]]]


def test_processes_of_different_jobs_are_not_one_recording(
    recorded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    on_this_host(monkeypatch, job("llama", 101, 102), job("bert", 201))
    assert attach("101", "201") == 2
    assert "belong to different jobs" in capsys.readouterr().err
    assert recorded == []


def test_all_jobs_get_a_folder_each(
    recorded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    same = [job("a/b", 101), job("a:b", 201), job("c", 301)]
    on_this_host(monkeypatch, *same)
    assert attach("--all", "-o", "out") == 0
    folders = [Path("out/a-b-0"), Path("out/a-b-1"), Path("out/c")]
    assert [call["output"] for call in recorded] == folders


def test_a_store_is_a_target_of_its_own(
    recorded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    on_this_host(monkeypatch)
    assert attach("--store", "node0:29500", "-o", "out") == 0
    assert recorded[0]["target"] == "node0:29500"
    assert attach("--store", "node0:29500", "4711") == 2
    assert "--store reaches a whole job" in capsys.readouterr().err


def test_an_unknown_route_is_refused_with_those_there_are(
    recorded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    on_this_host(monkeypatch, job("train.py", 101))
    assert attach("--route", "by-post") == 2
    assert "cooperative, inject, remote-exec, kineto-daemon" in capsys.readouterr().err


def test_with_no_job_it_says_so(
    recorded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    on_this_host(monkeypatch)
    assert attach() == 2
    assert "error: no training process was found" in capsys.readouterr().err


def test_the_report_follows(monkeypatch: pytest.MonkeyPatch, recordings: Path, capsys: Any) -> None:
    on_this_host(monkeypatch, job("train.py", 101, 102))
    content = manifest.read(recordings / "healthy" / "recording.json")
    content = replace(content, window=Window(3))
    monkeypatch.setattr(
        collect, "attach", lambda *_, **__: Recorded(recordings / "healthy", content)
    )
    assert execute(["attach", "-o", "out"]) == 0
    assert "ranks 0-1 of 2 | 3 steps" in capsys.readouterr().out


def test_what_goes_on_is_a_line_each_where_there_is_no_terminal(capsys: Any) -> None:
    with Narrator() as say:
        say("one")
        say("one")
        say("two \x1b[31m")
        say.keep("three")
    assert capsys.readouterr().err == "one\ntwo \\x1b[31m\nthree\n"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_end_what_goes_on_once(name: str) -> None:
    number = signal.Signals[name]
    before = signal.getsignal(number)
    said: list[str] = []

    def record() -> None:
        with stoppable(said.append):
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), number)  # while the job is let go
                assert said == ["letting the job go; once more to leave at once"]

    with pytest.raises(KeyboardInterrupt):
        record()
    assert signal.getsignal(number) is before


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable(print):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
