from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose.agent.protocol import RefusalError
from diagnose.agent.socket_folder import Listener, candidates, usable_folder


def test_candidates() -> None:
    assert candidates({"DIAGNOSE_DIR": "/x"}, 7) == ["/x"]
    assert candidates({"DIAGNOSE_DIR": ""}, 7) == ["/tmp/diagnose-7", "/dev/shm/diagnose-7"]
    assert candidates({}, 7) == ["/tmp/diagnose-7", "/dev/shm/diagnose-7"]


def test_folder_is_made_private(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        folder = usable_folder([str(tmp_path / "a")])
    finally:
        os.umask(old)
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    assert usable_folder([folder]) == folder


def test_the_first_usable_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    good = tmp_path / "good"
    assert usable_folder([str(tmp_path / "file"), str(good), str(tmp_path / "later")]) == str(good)
    assert not (tmp_path / "later").exists()


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777, 0o1777])
def test_folder_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(RefusalError, match="is open to other users"):
        usable_folder([str(folder)])


def test_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(RefusalError, match="is a link"):
        usable_folder([str(tmp_path / "link")])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a folder of somebody else")
def test_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(RefusalError, match="belongs to user 12345"):
        usable_folder([str(folder)])


def test_what_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="cannot be made") as refusal:
        usable_folder([str(tmp_path / "missing" / "folder")])
    assert refusal.value.code == "output"


def _connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(5)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def test_listener_is_private_and_goes(tmp_path: Path) -> None:
    listener = Listener(str(tmp_path))
    try:
        assert listener.path == str(tmp_path / f"{os.getpid()}.sock")
        assert stat.S_IMODE(Path(listener.path).stat().st_mode) == 0o600
        assert list(tmp_path.iterdir()) == [Path(listener.path)]
        assert not os.get_inheritable(listener.socket.fileno())
        assert listener.accept() is None
        with _connect(listener.path):
            accepted = listener.accept()
            assert accepted is not None
            accepted.close()
    finally:
        listener.close()
    assert list(tmp_path.iterdir()) == []


def test_a_stale_socket_is_replaced_and_a_later_one_left_alone(tmp_path: Path) -> None:
    first = Listener(str(tmp_path))
    first.socket.close()  # as after SIGKILL: the file stays
    second = Listener(str(tmp_path))
    first.remove_file()
    try:
        _connect(second.path).close()
    finally:
        second.close()


def test_closing_ends_it_where_another_process_has_a_copy_too(tmp_path: Path) -> None:
    listener = Listener(str(tmp_path))
    number = listener.socket.fileno()
    holder = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[number])
    try:
        os.link(listener.path, tmp_path / "other")  # outlives close: only the socket can refuse
        _connect(str(tmp_path / "other")).close()
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            _connect(str(tmp_path / "other"))
    finally:
        holder.communicate(timeout=10)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_is_not_listened_to(tmp_path: Path) -> None:
    listener = Listener(str(tmp_path))
    try:
        # Open the way in on purpose: then only the credentials are in between.
        for folder in (tmp_path, *tmp_path.parents[:-2]):
            folder.chmod(0o711)
        Path(listener.path).chmod(0o666)
        code = (
            "import os, socket, sys; os.setuid(12345); s = socket.socket(socket.AF_UNIX);"
            "s.connect(sys.argv[1]); s.settimeout(5); print(s.recv(1))"
        )
        other = subprocess.Popen(
            [sys.executable, "-c", code, listener.path], stdout=subprocess.PIPE, text=True
        )
        listener.socket.settimeout(10)
        assert listener.accept() is None
        assert other.communicate(timeout=10)[0] == "b''\n"
    finally:
        listener.close()


def test_path_too_long_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    with pytest.raises(RefusalError, match="too long"):
        Listener(str(folder))


def test_sockets_of_killed_processes_are_swept_and_live_ones_stay(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir(mode=0o700)
    dead = _ended_pid()
    abandoned = socket.socket(socket.AF_UNIX)
    abandoned.bind(str(folder / f"{dead}.sock"))
    abandoned.close()
    served = socket.socket(socket.AF_UNIX)
    served.bind(str(folder / f"{os.getppid()}.sock"))
    served.listen()
    elsewhere = socket.socket(socket.AF_UNIX)
    elsewhere.bind(str(folder / f"{dead + 1_000_000_000}.sock"))
    elsewhere.listen()  # answers, though no such process is here: another container's
    listener = Listener(str(folder))
    try:
        assert sorted(p.name for p in folder.iterdir()) == sorted(
            [
                f"{os.getpid()}.sock",
                f"{os.getppid()}.sock",
                f"{dead + 1_000_000_000}.sock",
            ]
        )
    finally:
        listener.close()
        served.close()
        elsewhere.close()


def _ended_pid() -> int:
    child = subprocess.Popen(["sleep", "0"])
    child.wait()
    return child.pid
