"""What may be opened, by which key; how it is loaded, kept, and let go."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dashboard import library as library_module
from dashboard.library import Library, Opening
from diagnose.errors import DiagnoseError, InputNotFoundError
from tests.builder import TraceBuilder


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is listed is never a second old."""
    monkeypatch.setattr(library_module, "_SCAN_S", -1.0)


class Loaded:
    """What a load gives; as large as it says."""

    def __init__(self, key: str, num_bytes: int) -> None:
        self.key, self.num_bytes = key, num_bytes


def recording(folder: Path, *, names: tuple[str, ...] = ("rank0.json",)) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text('{"traceEvents": []}')
    return folder


def loading(num_bytes: int = 100) -> tuple[Callable[..., Any], list[str]]:
    done: list[str] = []

    def load(key: str, label: str, paths: Any, progress: Callable[[int], None]) -> Loaded:
        done.append(key)
        progress(7)
        return Loaded(key, num_bytes)

    return load, done


def opened(library: Library, key: str) -> Opening:
    entry = library.entry(key)
    assert entry is not None
    others = set(threading.enumerate())
    opening = library.open(entry)
    assert opening.finished.wait(20)
    # The loading thread makes room after it said that it is done.
    for thread in set(threading.enumerate()) - others:
        thread.join(5)
    return opening


def test_recordings_of_folders_files_and_below(tmp_path: Path) -> None:
    recording(tmp_path / "many" / "a")
    recording(tmp_path / "many" / "deep" / "er" / "b")
    recording(tmp_path / "many" / "too" / "far" / "down" / "here")
    recording(tmp_path / "one")
    alone = recording(tmp_path / "file") / "rank0.json"
    (tmp_path / "many" / "text").mkdir()
    (tmp_path / "many" / "text" / "readme.txt").write_text("no trace")
    library = Library([str(tmp_path / "many"), str(tmp_path / "one"), str(alone)])
    assert [(one.key, one.label) for one in library.entries()] == [
        ("many-a", "many/a"),
        ("many-deep-er-b", "many/deep/er/b"),
        ("one", "one"),
        ("rank0.json", "rank0.json"),
    ]
    assert library.entries()[0].num_bytes == len('{"traceEvents": []}')


def test_two_of_a_name_have_keys_of_their_own(tmp_path: Path) -> None:
    first, second = recording(tmp_path / "x" / "r"), recording(tmp_path / "y" / "r")
    assert [one.key for one in Library([str(first), str(second)]).entries()] == ["r", "r~2"]


def test_what_is_not_there_is_an_error() -> None:
    with pytest.raises(InputNotFoundError, match="no/such"):
        Library(["no/such"])


@pytest.mark.parametrize("key", ["../one", "/etc/passwd", "..%2Fone", "one/../one", "", "."])
def test_a_key_is_no_path(tmp_path: Path, key: str) -> None:
    recording(tmp_path / "one"), recording(tmp_path / "two")
    library = Library([str(tmp_path / "two"), str(tmp_path / "one")])
    assert library.entry(key) is None
    assert library.shown(key) is None


def test_one_recording_needs_no_key_two_do(tmp_path: Path) -> None:
    recording(tmp_path / "all" / "a")
    library = Library([str(tmp_path / "all")])
    entry = library.entry(None)
    assert entry is not None
    assert entry.key == "all-a"
    # Another one appears while the server runs.
    recording(tmp_path / "all" / "b")
    assert [one.key for one in library.entries()] == ["all-a", "all-b"]
    assert library.entry(None) is None


def test_a_link_out_of_the_folder_is_listed_and_refused(tmp_path: Path) -> None:
    secret = recording(tmp_path / "elsewhere")
    root = recording(tmp_path / "given" / "good").parent
    (root / "bad").mkdir()
    (root / "bad" / "rank0.json").symlink_to(secret / "rank0.json")
    (root / "whole").symlink_to(secret)
    load, done = loading()
    library = Library([str(root)], load=load)
    assert [(one.key, bool(one.refused)) for one in library.entries()] == [
        ("given-bad", True),
        ("given-good", False),
    ]
    error = opened(library, "given-bad").error
    assert error is not None
    assert "rank0.json is a link out of the folders that were given" in error.message
    assert done == []


def test_a_link_within_the_folder_is_one_recording_more(tmp_path: Path) -> None:
    root = recording(tmp_path / "given" / "good").parent
    (root / "latest").symlink_to(root / "good")
    assert [one.refused for one in Library([str(root)]).entries()] == ["", ""]


def test_a_folder_that_vanishes_takes_its_recordings_along(tmp_path: Path) -> None:
    library = Library([str(recording(tmp_path / "one"))])
    shutil.rmtree(tmp_path / "one")
    assert library.entries() == ()


def test_it_is_loaded_once_and_anew_when_files_change(tmp_path: Path) -> None:
    folder = recording(tmp_path / "one")
    load, done = loading()
    library = Library([str(folder)], load=load)
    first = opened(library, "one")
    assert (first.done_bytes, first.shown.key) == (7, "one")
    assert opened(library, "one") is first
    assert library.shown("one") is library.shown(None) is first.shown
    (folder / "rank1.json").write_text("{}")
    assert opened(library, "one") is not first
    os.utime(folder / "rank1.json", (1e9, 2e9))
    opened(library, "one")
    assert done == ["one", "one", "one"]


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    library = Library([str(recording(tmp_path / "one"))])
    opening = opened(library, "one")
    assert opening.shown is not None  # empty, but a trace
    (tmp_path / "one" / "rank0.json").write_text('{"traceEvents": [{]')
    error = opened(library, "one").error
    assert isinstance(error, DiagnoseError)
    assert "rank0.json" in error.message


@pytest.mark.parametrize(
    ("problem", "said"),
    [(MemoryError(), "one: memory ran out"), (KeyError("x"), "one: reading it failed: KeyError")],
)
def test_a_crash_is_told_and_tried_again_after_a_while(
    tmp_path: Path, problem: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any) -> Any:
        raise problem

    library = Library([str(recording(tmp_path / "one"))], load=load)
    opening = opened(library, "one")
    assert opening.error is not None
    assert opening.error.message.startswith(said)
    assert opened(library, "one") is opening
    monkeypatch.setattr(library_module, "_RETRY_S", 0.0)
    assert opened(library, "one") is not opening


def several(tmp_path: Path, limit: int) -> Library:
    for name in "abc":
        recording(tmp_path / "all" / name)
    # Each keeps 2.5 times 100 bytes.
    return Library([str(tmp_path / "all")], limit_bytes=limit, load=loading()[0])


def test_the_one_looked_at_longest_ago_leaves(tmp_path: Path) -> None:
    library = several(tmp_path, 500)
    first, second = opened(library, "all-a"), opened(library, "all-b")
    # Looked at ten and twenty seconds ago, the one that was loaded first last.
    first.used_s -= 10
    second.used_s -= 20
    opened(library, "all-c")
    assert [library.shown(f"all-{name}") is not None for name in "abc"] == [True, False, True]


def test_what_is_asked_for_together_stays_together(tmp_path: Path) -> None:
    """Else a comparison would load one, drop the other, load that, and so on for ever."""
    library = several(tmp_path, 300)
    opened(library, "all-a").used_s -= 60
    opened(library, "all-b")
    assert library.shown("all-a") is None
    opened(library, "all-c")
    assert [library.shown(f"all-{name}") is not None for name in "abc"] == [False, True, True]


def test_the_newest_stays_however_large(tmp_path: Path) -> None:
    library = several(tmp_path, 1)
    assert opened(library, "all-a").shown is library.shown("all-a")


def test_a_recording_is_found_by_its_folder(tmp_path: Path) -> None:
    library = Library([str(tmp_path)])
    folder = recording(tmp_path / "new")
    entry = library.at(folder)
    assert entry is not None
    assert entry.paths == (str(folder),)
    assert library.at(tmp_path / "other") is None


def test_a_real_recording_is_loaded_with_its_progress(tmp_path: Path) -> None:
    TraceBuilder(rank=0, world_size=1).kernel("gemm", 10, 50).write(tmp_path)
    library = Library([str(tmp_path)])
    opening = opened(library, library.entries()[0].key)
    assert opening.shown is not None
    assert len(opening.shown.trace.gpu_ops) == 1
    assert opening.done_pct == 100
