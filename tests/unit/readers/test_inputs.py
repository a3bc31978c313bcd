"""What a person gave, as trace files with what belongs to each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diagnose.errors import InputError, InputNotFoundError, UsageError
from diagnose.readers import inputs
from diagnose.readers.inputs import Inputs, TraceFile


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def names(found: Inputs, folder: Path) -> list[str]:
    return [str(Path(trace.path).relative_to(folder)) for trace in found.traces]


def manifest(folder: Path, *entries: dict[str, object], **more: object) -> None:
    content = {"format": 1, "ranks": list(entries), **more}
    (folder / "recording.json").write_text(json.dumps(content))


def codes(found: Inputs) -> list[str]:
    return [note.code for note in found.notes]


def test_a_file_a_list_and_a_path_object(tmp_path: Path) -> None:
    touch(tmp_path, "b.json", "a.whatever")
    assert inputs.find(str(tmp_path / "b.json")).traces == [TraceFile(str(tmp_path / "b.json"))]
    found = inputs.find([tmp_path / "b.json", str(tmp_path / "a.whatever")])
    assert names(found, tmp_path) == ["b.json", "a.whatever"]
    assert not any(trace.found for trace in found.traces)


def test_a_folder_stands_for_the_traces_in_it(tmp_path: Path) -> None:
    touch(tmp_path, "rank1.json.gz", "rank0.pt.trace.json", "x.zip", "bare", "README.md")
    touch(tmp_path, ".hidden.json", "expected.json", "notes.csv", "a.tar.gz", "LICENSE")
    touch(tmp_path, "rank0.env.json", "rank0.telemetry.csv", "deeper/rank9.json")
    found = inputs.find(tmp_path)
    assert names(found, tmp_path) == ["bare", "rank0.pt.trace.json", "rank1.json.gz", "x.zip"]
    assert all(trace.found for trace in found.traces)
    assert found.notes == []


def test_a_folder_without_traces_stands_for_its_subfolders(tmp_path: Path) -> None:
    touch(tmp_path, "log/rank0/a.pt.trace.json", "log/rank1/b.pt.trace.json", "README.md")
    found = inputs.find(tmp_path)
    expected = ["log/rank0/a.pt.trace.json", "log/rank1/b.pt.trace.json"]
    assert names(found, tmp_path) == expected


def test_a_folder_of_recordings_is_not_one_job(tmp_path: Path) -> None:
    for name in ("healthy", "straggler"):
        touch(tmp_path, f"{name}/rank0.json")
        manifest(tmp_path / name, {"rank": 0, "trace": "rank0.json"})
    with pytest.raises(UsageError, match=r"holds 2 recordings \(.*healthy.*straggler\)"):
        inputs.find(tmp_path)
    assert names(inputs.find(tmp_path / "healthy"), tmp_path) == ["healthy/rank0.json"]


def test_a_folder_with_one_recording_below(tmp_path: Path) -> None:
    touch(tmp_path, "out/run1/rank0.json", "out/run1/other.json")
    manifest(tmp_path / "out/run1", {"rank": 0, "trace": "rank0.json"})
    assert names(inputs.find(tmp_path), tmp_path) == ["out/run1/rank0.json"]


def test_the_search_for_folders_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a/b/c/d/rank0.json", "a/b/c/d/e/rank1.json")
    assert names(inputs.find(tmp_path), tmp_path) == ["a/b/c/d/rank0.json"]
    touch(tmp_path, "q/x", "r/README.md", "s/README.md")
    assert len(inputs.find(tmp_path).traces) == 2
    monkeypatch.setattr(inputs, "_MAX_FOLDERS", 3)
    with pytest.raises(InputNotFoundError, match="gave up after 3"):
        inputs.find(tmp_path)


def test_a_subfolder_that_cannot_be_listed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "good/rank0.json", "secret/rank1.json")
    listed = inputs.files.entries

    def entries(folder: str) -> tuple[list[str], list[str]]:
        if folder.endswith("secret"):
            raise InputError(f"{folder}: cannot be listed (Permission denied)")
        return listed(folder)

    monkeypatch.setattr(inputs.files, "entries", entries)
    found = inputs.find(tmp_path)
    assert names(found, tmp_path) == ["good/rank0.json"]
    assert codes(found) == ["folder-unreadable"]


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError, match="no trace in this folder or below"):
        inputs.find(tmp_path)
    touch(tmp_path, "README.md")
    with pytest.raises(InputNotFoundError, match="no trace in this folder or below"):
        inputs.find(tmp_path)
    with pytest.raises(InputNotFoundError, match="no such file or folder"):
        inputs.find(tmp_path / "none.json")
    with pytest.raises(InputNotFoundError, match="no such file or folder"):
        inputs.find(f"{tmp_path}/*.json")
    with pytest.raises(InputNotFoundError, match="none of the 1 matches looks like a trace"):
        inputs.find(f"{tmp_path}/*")
    with pytest.raises(UsageError, match="no input"):
        inputs.find([])
    with pytest.raises(UsageError, match="is not a path"):
        inputs.find("")


def test_a_glob(tmp_path: Path) -> None:
    touch(tmp_path, "rank0.json", "rank1.json", "rank0.env.json", "README.md", "s/rank2.json")
    found = inputs.find(f"{tmp_path}/*")
    assert names(found, tmp_path) == ["rank0.json", "rank1.json", "s/rank2.json"]
    assert found.traces[0].environment == str(tmp_path / "rank0.env.json")
    assert names(inputs.find(f"{tmp_path}/**/rank[12].json"), tmp_path) == [
        "rank1.json",
        "s/rank2.json",
    ]


def test_a_name_that_only_looks_like_a_glob(tmp_path: Path) -> None:
    touch(tmp_path, "rank[0].json")
    assert names(inputs.find(tmp_path / "rank[0].json"), tmp_path) == ["rank[0].json"]


def test_a_file_given_twice_is_read_once(tmp_path: Path) -> None:
    touch(tmp_path, "rank0.json", "rank1.json")
    found = inputs.find([tmp_path, tmp_path / "rank1.json", f"{tmp_path}/./rank0.json"])
    assert names(found, tmp_path) == ["rank0.json", "rank1.json"]
    assert [trace.found for trace in found.traces] == [False, False]


def test_environment_and_telemetry_beside_a_trace(tmp_path: Path) -> None:
    touch(tmp_path, "rank00000.trace.json.gz", "rank00000.env.json", "rank00000.telemetry.csv")
    touch(tmp_path, "rank00001.pt.trace.json", "rank00001.env.json")
    first, second = inputs.find(tmp_path).traces
    assert first.environment == str(tmp_path / "rank00000.env.json")
    assert first.telemetry == str(tmp_path / "rank00000.telemetry.csv")
    assert second.environment == str(tmp_path / "rank00001.env.json")
    assert second.telemetry is None


def test_environment_and_telemetry_given(tmp_path: Path) -> None:
    touch(tmp_path, "t/rank0.json", "t/rank1.json", "e/env.json", "e/rank1.telemetry.csv")
    found = inputs.find([tmp_path / "t/rank0.json", tmp_path / "e/env.json"])
    assert found.traces[0].environment == str(tmp_path / "e/env.json")
    found = inputs.find(
        [tmp_path / "t", tmp_path / "e/env.json", tmp_path / "e/rank1.telemetry.csv"]
    )
    assert [(t.environment, t.telemetry) for t in found.traces] == [(None, None), (None, None)]
    assert codes(found) == ["environment-unassigned", "telemetry-unassigned"]
    with pytest.raises(InputNotFoundError, match="no trace"):
        inputs.find(tmp_path / "e/env.json")


def test_a_recording(tmp_path: Path) -> None:
    touch(tmp_path, "zero.json", "one.json", "zero.env", "t.csv", "unlisted.json")
    manifest(
        tmp_path,
        {"rank": 5, "trace": "zero.json", "env": "zero.env", "telemetry": "t.csv"},
        {"rank": 6, "trace": "one.json"},
        world_size=8,
    )
    for given in (tmp_path, tmp_path / "recording.json"):
        found = inputs.find(given)
        assert names(found, tmp_path) == ["zero.json", "one.json"]
        assert [trace.manifest_rank for trace in found.traces] == [5, 6]
        assert [trace.world_size for trace in found.traces] == [8, 8]
        assert found.traces[0].environment == str(tmp_path / "zero.env")
        assert found.traces[0].telemetry == str(tmp_path / "t.csv")
        assert found.notes == []


def test_traces_that_a_manifest_does_not_name(tmp_path: Path) -> None:
    touch(tmp_path, "rank0.json", "rank1.json", "old.trace.json", "notes.json")
    manifest(tmp_path, {"rank": 0, "trace": "rank0.json"})
    found = inputs.find(tmp_path)
    assert names(found, tmp_path) == ["rank0.json"]
    (note,) = found.notes
    assert (note.code, note.severity, note.count) == ("trace-unlisted", "warning", 2)
    assert "old.trace.json, rank1.json" in note.sentence


def test_of_a_file_and_a_link_to_it_the_name_that_tells_the_rank_is_kept(tmp_path: Path) -> None:
    touch(tmp_path, "rank3.json")
    for link in ("copy.json", "zzz.json"):
        (tmp_path / link).symlink_to("rank3.json")
    found = inputs.find(tmp_path)
    assert names(found, tmp_path) == ["rank3.json"]
    assert [(note.code, note.severity) for note in found.notes] == [("same-file", "info")] * 2


def test_files_that_a_manifest_names_in_vain(tmp_path: Path) -> None:
    touch(tmp_path, "zero.json")
    manifest(
        tmp_path,
        {"rank": 0, "trace": "zero.json", "env": "zero.env.json"},
        {"rank": 1, "trace": "one.json"},
    )
    found = inputs.find(tmp_path)
    assert names(found, tmp_path) == ["zero.json"]
    (note,) = found.notes
    assert (note.code, note.severity, note.count) == ("file-missing", "warning", 2)
    assert "rank 0: zero.env.json, rank 1: one.json" in note.sentence


@pytest.mark.parametrize("content", ["{", "{}", '{"format": 2, "ranks": []}', ""])
def test_a_manifest_of_no_use_is_said_and_the_traces_are_read(tmp_path: Path, content: str) -> None:
    touch(tmp_path, "rank0.json")
    (tmp_path / "recording.json").write_text(content)
    found = inputs.find(tmp_path)
    assert names(found, tmp_path) == ["rank0.json"]
    assert codes(found) == ["manifest-unreadable"]


def test_a_manifest_whose_traces_are_all_missing(tmp_path: Path) -> None:
    manifest(tmp_path, {"rank": 0, "trace": "gone.json"})
    with pytest.raises(InputNotFoundError, match=r"not there \(rank 0: gone\.json\)"):
        inputs.find(tmp_path)
    touch(tmp_path, "other.json")
    assert codes(inputs.find(tmp_path)) == ["file-missing"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a/rank0.pt.trace.json.gz", "a/rank0"),
        ("rank00000.trace.json", "rank00000"),
        ("host.123.json", "host.123"),
        ("no-suffix", "no-suffix"),
        ("json", "json"),
        ("memory://b/rank0.json", "memory://b/rank0"),
    ],
)
def test_the_stem_of_a_trace(path: str, expected: str) -> None:
    assert inputs.stem(path) == expected
