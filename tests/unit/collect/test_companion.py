"""What the child of ``diagnose.record`` writes for its rank, and what it leaves alone."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from diagnose import manifest
from diagnose.collect import companion
from diagnose.errors import RecordingError


def a_rank(folder: Path, rank: int = 0) -> companion._Rank:
    """A rank that has exported its trace."""
    (folder / f"rank{rank:05d}.trace.json").write_text('{"traceEvents": []}')
    about = {"folder": str(folder), "rank": rank, "world_size": 2, "pid": os.getpid()}
    return companion._Rank({**about, "steps": 3, "telemetry": False})


def test_the_environment_and_the_manifest_are_written(tmp_path: Path) -> None:
    rank = a_rank(tmp_path)
    rank.finish({"environment": {"torch": "2.13.0", "gpu": {"uuid": "GPU-1"}}})
    rank.clear_up()
    assert json.loads((tmp_path / "rank00000.env.json").read_text())["torch"] == "2.13.0"
    [entry] = manifest.read(tmp_path / "recording.json").ranks
    assert (entry.env, entry.gpu_uuid) == ("rank00000.env.json", "GPU-1")


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_in_the_place_of_the_environment_is_not_followed(
    tmp_path: Path, dangling: bool
) -> None:
    folder, victim = tmp_path / "recording", tmp_path / "victim"
    folder.mkdir()
    if not dangling:
        victim.write_text("precious")
    env = folder / "rank00000.env.json"
    env.symlink_to(victim)
    rank = a_rank(folder)
    with pytest.raises(RecordingError, match=r"rank00000\.env\.json exists already") as refused:
        rank.finish({"environment": {"torch": "2.13.0"}})
    rank.clear_up()
    assert refused.value.hint
    assert env.is_symlink()  # what is not ours is not taken away either
    assert victim.exists() is not dangling
    assert dangling or victim.read_text() == "precious"
    assert not (folder / "recording.json").exists()


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "rank00000.env.json").write_text("of another job")
    rank = a_rank(tmp_path)
    with pytest.raises(RecordingError, match="exists already"):
        rank.finish({"environment": {}})
    rank.clear_up()
    assert (tmp_path / "rank00000.env.json").read_text() == "of another job"


def test_a_rank_that_does_not_come_to_its_end_takes_its_environment_away(tmp_path: Path) -> None:
    (tmp_path / manifest.FILE_NAME).write_text("not a manifest")
    rank = a_rank(tmp_path)
    with pytest.raises(Exception, match=r"recording\.json"):
        rank.finish({"environment": {"torch": "2.13.0"}})
    assert (tmp_path / "rank00000.env.json").exists()
    rank.clear_up()
    assert not (tmp_path / "rank00000.env.json").exists()


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / companion.LOCK_NAME).symlink_to(tmp_path / "elsewhere")
    rank = a_rank(tmp_path)
    with pytest.raises(OSError, match=companion.LOCK_NAME):
        rank.finish({"environment": {}})
    assert not (tmp_path / "elsewhere").exists()


def test_readings_go_on_until_those_of_the_end_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.4 s: sensors lag by 0.15 s, are renewed every 0.1 s, and three readings are wanted."""
    happened: list[Any] = []

    class SamplerOfNothing:
        notes = ()

        def stop(self) -> SamplerOfNothing:
            happened.append("stopped")
            return self

    monkeypatch.setattr("time.sleep", happened.append)
    rank = a_rank(tmp_path)
    rank._sampler = SamplerOfNothing()  # type: ignore[assignment]
    rank.finish({"environment": {}})
    assert happened[:2] == [0.4, "stopped"]


def checked(folder: Path, said: Any, execution_trace: str | None = "{}") -> companion._Rank:
    """A rank whose job recorded with ``check_sync``, and has answered this."""
    rank = a_rank(folder)
    rank._about = {**rank._about, "check_sync": True}
    if execution_trace is not None:
        (folder / "rank00000.execution_trace.json").write_text(execution_trace)
    rank.finish({"environment": {}, "reply": {} if said is None else {"check_sync": said}})
    rank.clear_up()
    return rank


def test_an_execution_trace_is_compressed_and_entered(tmp_path: Path) -> None:
    checked(tmp_path, {"path": "x", "bytes": 2, "events_annotated": True, "reason": ""})
    content = manifest.read(tmp_path / "recording.json")
    assert content.ranks[0].execution_trace == "rank00000.execution_trace.json.gz"
    packed = (tmp_path / "rank00000.execution_trace.json.gz").read_bytes()
    assert gzip.decompress(packed) == b"{}"
    assert not (tmp_path / "rank00000.execution_trace.json").exists()
    assert {note.code for note in content.notes} == {"ranks-missing"}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"error": "the job has its own", "events_annotated": True}, "the job has its own"),
        ({"path": "x", "events_annotated": True}, "No such file"),
        (None, "no execution trace"),
    ],
)
def test_an_execution_trace_that_is_missing_is_a_note(
    tmp_path: Path, said: Any, words: str
) -> None:
    checked(tmp_path, said, execution_trace=None)
    content = manifest.read(tmp_path / "recording.json")
    assert content.ranks[0].execution_trace is None
    [note] = [note for note in content.notes if note.code == "execution-trace-missing"]
    assert words in note.sentence
