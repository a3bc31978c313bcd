"""Handing over a script, against a stand-in for ``sys.remote_exec``: it came with CPython 3.14."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from diagnose.attach.injection import remote_exec
from diagnose.attach.injection.symbols import Interpreter
from diagnose.errors import NotPythonError, OutputError, PtraceRefusedError

PID = 4711


def interpreter(*version: int) -> Interpreter:
    return Interpreter((version[0], version[1]), False, "", 1, 2, 3, 4)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc with one process, whose Python is as new as this one, which counts as 3.14."""
    folder = tmp_path / str(PID)
    (folder / "root" / "tmp").mkdir(parents=True)
    (folder / "status").write_text("Uid:\t{0}\t{0}\t{0}\t{0}\n".format(os.geteuid()))
    monkeypatch.setattr(remote_exec, "FIRST", sys.version_info[:2])
    monkeypatch.setattr(
        remote_exec, "supported_interpreter", lambda process: interpreter(*sys.version_info)
    )
    return tmp_path


def scripts(proc: Path) -> list[Path]:
    return sorted((proc / str(PID) / "root").rglob("*.py"))


def test_the_script_is_handed_over(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []
    monkeypatch.setattr(
        sys, "remote_exec", lambda pid, path: asked.append((pid, path)), raising=False
    )
    with remote_exec.run(PID, "started = 1\n", root=str(proc)):
        (script,) = scripts(proc)
        # The process sees its own root: the same name without what leads to it from here.
        assert asked == [(PID, f"/tmp/{script.name}")]
        assert script.stat().st_mode & 0o777 == 0o600
        unlinked: list[str] = []
        monkeypatch.setattr(os, "unlink", unlinked.append)
        names: dict[str, object] = {}
        exec(compile(script.read_text(), "script", "exec"), names)
        monkeypatch.undo()
        assert unlinked == [f"/tmp/{script.name}"]
        assert names["started"] == 1
    assert scripts(proc) == []


def test_a_script_that_removed_itself(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "remote_exec", lambda pid, path: None, raising=False)
    handed_over = remote_exec.run(PID, "pass\n", root=str(proc))
    scripts(proc)[0].unlink()
    handed_over.close()
    handed_over.close()


@pytest.mark.parametrize("error", [PermissionError(1, "not permitted"), RuntimeError("disabled")])
def test_refused(proc: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, path: str) -> None:
        raise error

    monkeypatch.setattr(sys, "remote_exec", refuse, raising=False)
    with pytest.raises(PtraceRefusedError, match=f"process {PID}: .* not allowed") as caught:
        remote_exec.run(PID, "pass\n", root=str(proc))
    assert "PYTHON_DISABLE_REMOTE_DEBUG" in caught.value.hint
    assert scripts(proc) == []


def test_interrupted(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(pid: int, path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "remote_exec", interrupt, raising=False)
    with pytest.raises(KeyboardInterrupt):
        remote_exec.run(PID, "pass\n", root=str(proc))
    assert scripts(proc) == []


def test_no_folder_in_common(proc: Path) -> None:
    (proc / str(PID) / "root" / "tmp").rmdir()
    with pytest.raises(OutputError, match="/tmp, /dev/shm, /var/tmp"):
        remote_exec.run(PID, "pass\n", root=str(proc))


@pytest.mark.parametrize(
    ("ours", "theirs", "fits"),
    [
        ((3, 14), (3, 14), True),
        ((3, 15), (3, 15), True),
        ((3, 15), (3, 14), False),
        ((3, 14), (3, 13), False),
        ((3, 13), (3, 13), False),
    ],
)
def test_versions(
    ours: tuple[int, int],
    theirs: tuple[int, int],
    fits: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "version_info", (*ours, 0, "final", 0))
    process = remote_exec.Process(PID)
    if fits:
        remote_exec.refuse_versions(process, interpreter(*theirs))
        return
    with pytest.raises(NotPythonError) as caught:
        remote_exec.refuse_versions(process, interpreter(*theirs))
    assert f"runs CPython {theirs[0]}.{theirs[1]} and diagnose {ours[0]}.{ours[1]}" in str(
        caught.value
    )
