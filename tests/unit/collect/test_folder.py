"""The folder of a recording: what is refused, what is kept, what is removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from diagnose.collect import _folder
from diagnose.collect._folder import RecordingFolder
from diagnose.errors import OutputError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    folder = RecordingFolder.create(tmp_path / "a" / "b")
    assert folder.path == tmp_path / "a" / "b"
    assert names(folder.path) == []
    assert folder.file(3, "trace.json") == tmp_path / "a" / "b" / "rank00003.trace.json"


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    assert RecordingFolder.create(tmp_path).path == tmp_path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to fear links of others")
@pytest.mark.parametrize(("owner", "mode"), [(65534, 0o700), (0, 0o777), (0, 0o1777), (0, 0o770)])
def test_root_writes_into_no_folder_that_others_may_change(
    tmp_path: Path, owner: int, mode: int
) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, owner, -1)
    folder.chmod(mode)
    with pytest.raises(OutputError, match="other users may change this folder") as caught:
        RecordingFolder.create(folder)
    assert caught.value.hint
    assert names(folder) == []
    assert RecordingFolder.create(folder / "new").path == folder / "new"


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "recording.json"])
def test_a_folder_with_anything_in_it_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(OutputError, match="not empty") as caught:
        RecordingFolder.create(tmp_path)
    assert caught.value.hint
    assert (tmp_path / name).read_text() == "mine"


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be used for the recording"):
        RecordingFolder.create(tmp_path / "file")
    with pytest.raises(OutputError, match="cannot be used for the recording"):
        RecordingFolder.create(tmp_path / "file" / "out")


def test_a_folder_that_cannot_be_written_is_refused_and_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_folder, "_probe", full)
    with pytest.raises(OutputError, match="No space left"):
        RecordingFolder.create(tmp_path / "a" / "b")
    assert names(tmp_path) == []


def test_without_a_whole_trace_all_of_it_goes(tmp_path: Path) -> None:
    folder = RecordingFolder.create(tmp_path / "a" / "b")
    for name in ("rank00000.trace.json.part", "rank00000.telemetry.csv", "rank00000.env.json"):
        (folder.path / name).touch()
    assert folder.clear_up() == []
    assert names(tmp_path) == []


def test_a_folder_that_was_there_stays_with_what_others_put_into_it(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    folder = RecordingFolder.create(tmp_path / "mine")
    (folder.path / "rank00000.telemetry.csv").touch()
    (folder.path / "somebody-elses").touch()
    assert folder.clear_up() == []
    assert names(tmp_path / "mine") == ["somebody-elses"]


def test_whole_traces_are_kept_and_partial_files_go(tmp_path: Path) -> None:
    folder = RecordingFolder.create(tmp_path / "out")
    whole = ["rank00000.trace.json.gz", "rank00001.trace.json"]
    for name in (*whole, "rank00001.trace.json.gz.part", ".recording-x.tmp", "rank00001.env.json"):
        (folder.path / name).touch()
    assert [path.name for path in folder.clear_up()] == whole
    assert names(folder.path) == [whole[0], "rank00001.env.json", whole[1]]


def test_relative_names_are_fixed_before_anybody_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that writes has a current folder of its own."""
    monkeypatch.chdir(tmp_path)
    assert RecordingFolder.create(Path("out")).path == Path.cwd() / "out"
