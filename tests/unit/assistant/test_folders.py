"""Only what lies under the given folders is read, wherever links lead."""

from __future__ import annotations

import json
import os

import pytest

from diagnose.assistant.folders import Folders
from diagnose.errors import InputNotFoundError, UsageError
from diagnose.recording import load
from tests.builder import TraceBuilder


@pytest.fixture
def tree(tmp_path):
    """``inside`` may be read; ``outside`` holds a trace that may not."""
    for name in ("inside/job", "outside"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        TraceBuilder(rank=0, world_size=1).kernel("gemm", 0, 5).write(folder)
    return tmp_path


def refused(tree, path):
    with pytest.raises(UsageError, match="leads outside") as caught:
        Folders([tree / "inside"]).allowed(str(path))
    assert "diagnose mcp FOLDER" in caught.value.hint


def test_a_folder_and_a_file(tree):
    folders = Folders([tree / "inside"])
    job = tree / "inside/job"
    assert folders.allowed(str(job)) == str(job)
    assert folders.allowed(f"{job}/rank00000.trace.json") == f"{job}/rank00000.trace.json"
    assert folders.allowed("job") == str(job)


def test_relative_to_the_working_directory_first(tree, monkeypatch):
    monkeypatch.chdir(tree / "inside/job")
    folders = Folders([tree / "inside"])
    assert folders.allowed("rank00000.trace.json").endswith("job/rank00000.trace.json")
    assert folders.allowed("..") == str(tree / "inside")


def test_outside_is_refused_whether_it_exists_or_not(tree):
    refused(tree, tree / "outside")
    refused(tree, tree / "outside/nothing")
    refused(tree, tree / "inside/../outside/rank00000.trace.json")
    refused(tree, "/etc/passwd")
    refused(tree, f"{tree}/inside-too")
    refused(tree, "../outside")


def test_links_are_followed_before_anything_is_compared(tree):
    (tree / "inside/link").symlink_to(tree / "outside")
    refused(tree, tree / "inside/link")
    (tree / "inside/trace.json").symlink_to(tree / "outside/rank00000.trace.json")
    refused(tree, tree / "inside/trace.json")


@pytest.mark.parametrize("name", ["rank00001.trace.json", "rank00000.env.json"])
def test_a_link_in_a_folder_does_not_lead_out(tree, name):
    (tree / "inside/job" / name).symlink_to(tree / "outside/rank00000.trace.json")
    refused(tree, tree / "inside/job")


def test_a_linked_folder_below_does_not_lead_out(tree):
    (tree / "inside/jobs").mkdir()
    (tree / "inside/jobs/a").symlink_to(tree / "outside")
    refused(tree, tree / "inside/jobs")


def test_the_manifest_does_not_lead_out(tree):
    job = tree / "inside/job"
    named = [{"rank": 0, "trace": "../../outside/rank00000.trace.json"}]
    (job / "recording.json").write_text(json.dumps({"format": 1, "ranks": named}))
    path = Folders([tree / "inside"]).allowed(str(job))
    # Such a manifest is not used: what lies in the folder is read instead.
    assert [source.path for source in load(path).sources] == [f"{job}/rank00000.trace.json"]
    (job / "recording.json").unlink()
    (job / "recording.json").symlink_to(tree / "outside/rank00000.trace.json")
    refused(tree, job)


@pytest.mark.parametrize("path", ["", "a\0b", "s3://bucket/trace.json", "file:///etc/passwd"])
def test_no_path_at_all(tree, path):
    with pytest.raises(UsageError, match="not a path on this machine"):
        Folders([tree]).allowed(path)


def test_nothing_there(tree):
    with pytest.raises(InputNotFoundError, match="no such file") as caught:
        Folders([tree]).allowed(f"{tree}/*.json")
    assert "globs are not taken" in caught.value.hint


def test_a_pipe_is_not_opened(tree):
    os.mkfifo(tree / "inside/pipe.json")
    with pytest.raises(UsageError, match="a pipe or device"):
        Folders([tree]).allowed(str(tree / "inside/pipe.json"))


def test_a_loop_of_links(tree):
    (tree / "inside/loop").symlink_to(tree / "inside/loop")
    with pytest.raises((UsageError, InputNotFoundError)):
        Folders([tree / "inside"]).allowed(str(tree / "inside/loop"))


def test_a_folder_that_is_not_there(tree):
    with pytest.raises(UsageError, match="no such folder"):
        Folders([tree / "nowhere"])
