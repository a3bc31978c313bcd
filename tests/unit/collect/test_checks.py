"""Execution traces of the same window: where they are asked to, which arrive, what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diagnose.attach.session import Member
from diagnose.collect._checks import Checks
from diagnose.collect._folder import RecordingFolder
from tests.unit.attach.fake_agent import OwnProcess


@pytest.fixture
def folder(tmp_path: Path) -> RecordingFolder:
    return RecordingFolder.create(tmp_path / "out")


def member(tmp_path: Path, rank: int, *, here: bool = True) -> Member:
    process = OwnProcess(tmp_path) if here else None
    return Member(object(), 4711 + rank, rank=rank, process=process)  # type: ignore[arg-type]


def whole(path: str) -> dict[str, Any]:
    return {"check_sync": {"path": path, "bytes": 2, "events_annotated": True, "reason": ""}}


def test_nothing_is_asked_for_unless_wanted(folder: RecordingFolder, tmp_path: Path) -> None:
    checks, one = Checks(folder, wanted=False), member(tmp_path, 0)
    assert checks.asked(one) is None
    checks.fetch([one], {one: {}})
    (folder.path / "rank00000.execution_trace.json").write_text("{}")
    checks.find([one])
    assert (checks.paths, checks.notes([one], {one: {}})) == ({}, [])


def test_a_file_lies_beside_the_trace_and_is_fetched(
    folder: RecordingFolder, tmp_path: Path
) -> None:
    checks, one = Checks(folder, wanted=True), member(tmp_path, 12)
    asked = checks.asked(one)
    assert asked == str(folder.path / "rank00012.execution_trace.json")
    Path(asked).write_text("{}")
    checks.fetch([one], {one: whole(asked)})
    assert checks.paths == {one: Path(asked)}
    assert checks.notes([one], {one: whole(asked)}) == []


def test_a_second_try_finds_the_place_empty(folder: RecordingFolder, tmp_path: Path) -> None:
    checks, one = Checks(folder, wanted=True), member(tmp_path, 0)
    asked = checks.asked(one)
    assert asked is not None
    Path(asked).write_text("of a window that is thrown away")
    assert checks.asked(one) == asked
    assert not Path(asked).exists()


def test_over_a_store_there_is_none(folder: RecordingFolder, tmp_path: Path) -> None:
    checks, far = Checks(folder, wanted=True), member(tmp_path, 0, here=False)
    assert checks.asked(far) is None
    checks.fetch([far], {far: {}})
    [note] = checks.notes([far], {far: {}})
    assert "it was reached over a store, which sends traces alone" in note.sentence


def test_of_a_rank_without_a_trace_nothing_stays(folder: RecordingFolder, tmp_path: Path) -> None:
    checks, one, lost = Checks(folder, wanted=True), member(tmp_path, 0), member(tmp_path, 1)
    replies = {}
    for each in (one, lost):
        asked = checks.asked(each)
        assert asked is not None
        Path(asked).write_text("{}")
        replies[each] = whole(asked)
    checks.fetch([one], replies)
    assert [path.name for path in folder.path.iterdir()] == ["rank00000.execution_trace.json"]
    assert list(checks.paths) == [one]


@pytest.mark.parametrize("said", [{}, {"check_sync": None}, {"check_sync": "yes"}])
def test_an_agent_of_an_older_version_does_not_know_it(
    folder: RecordingFolder, tmp_path: Path, said: dict[str, Any]
) -> None:
    checks, one = Checks(folder, wanted=True), member(tmp_path, 0)
    checks.asked(one)
    checks.fetch([one], {one: said})
    assert checks.paths == {}
    [note] = checks.notes([one], {one: said})
    assert "of an older torch-diagnose" in note.sentence


def test_a_file_that_is_not_there_is_said(folder: RecordingFolder, tmp_path: Path) -> None:
    checks, one = Checks(folder, wanted=True), member(tmp_path, 0)
    asked = checks.asked(one)
    assert asked is not None
    checks.fetch([one], {one: whole(asked)})
    [note] = checks.notes([one], {one: whole(asked)})
    assert note.code == "execution-trace-missing"
    assert "but it is not" in note.sentence


def test_after_a_stop_what_is_whole_is_found(folder: RecordingFolder, tmp_path: Path) -> None:
    checks = Checks(folder, wanted=True)
    packed, both, plain, none = (member(tmp_path, rank) for rank in range(4))
    for rank, suffix in ((0, ".gz"), (1, ".gz"), (1, ""), (2, ""), (3, ".part")):
        (folder.path / f"rank{rank:05d}.execution_trace.json{suffix}").write_text("{}")
    checks.find([packed, both, plain, none])
    assert {each.rank: path.name for each, path in checks.paths.items()} == {
        0: "rank00000.execution_trace.json.gz",
        1: "rank00001.execution_trace.json.gz",
        2: "rank00002.execution_trace.json",
    }
    replies = {each: whole("x") for each in (packed, both, plain, none)}
    [note] = checks.notes(replies, replies)
    assert note.sentence.startswith("rank 3: no execution trace (it had not arrived")
