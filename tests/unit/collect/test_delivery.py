"""How a trace comes from the process that writes it into the folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from diagnose.attach.discovery.processes import Process
from diagnose.collect._delivery import Direct, Sent, Spooled, delivery
from diagnose.errors import OutputError, WindowLostError


class Elsewhere(Process):
    """This process, as if it saw other files."""

    def __init__(self, *, same: bool = False, uid: int | None = None) -> None:
        super().__init__(os.getpid())
        self._same, self._uid = same, uid

    @property
    def same_mount_namespace(self) -> bool:
        return self._same

    @property
    def uid(self) -> int:
        return os.geteuid() if self._uid is None else self._uid


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    return folder


def test_the_same_user_with_the_same_files_writes_directly(tmp_path: Path) -> None:
    target = tmp_path / "rank00000.trace.json"
    way = delivery(Process(os.getpid()), "/nowhere", target)
    assert isinstance(way, Direct)
    assert way.asked == str(target)
    with pytest.raises(WindowLostError, match="it is not"):
        way.arrive()
    target.touch()
    assert way.arrive() == target


@pytest.mark.parametrize("process", [Elsewhere(same=False), Elsewhere(same=True, uid=12345)])
def test_a_container_or_another_user_writes_into_the_agents_folder(
    tmp_path: Path, process: Process
) -> None:
    assert isinstance(delivery(process, "/s", tmp_path / "rank00000.trace.json"), Spooled)


def test_a_spooled_trace_is_fetched_and_removed_there(tmp_path: Path, spool: Path) -> None:
    way = Spooled(Elsewhere(), str(spool), tmp_path / "rank00007.trace.json")
    asked = Path(way.asked)
    assert asked.parent == spool
    assert asked.name.startswith(f"{os.getpid()}-")
    assert asked.name.endswith(".trace.json")
    asked.write_text("a trace")
    assert way.arrive() == tmp_path / "rank00007.trace.json"
    assert (tmp_path / "rank00007.trace.json").read_text() == "a trace"
    assert list(spool.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank00007.trace.json", "spool"]


def test_what_was_never_fetched_is_removed_too(tmp_path: Path, spool: Path) -> None:
    way = Spooled(Elsewhere(), str(spool), tmp_path / "rank00000.trace.json")
    Path(way.asked).touch()
    Path(way.asked + ".part").touch()
    way.discard()
    way.discard()
    assert list(spool.iterdir()) == []


def test_a_link_in_the_agents_folder_is_not_followed(tmp_path: Path, spool: Path) -> None:
    """Who records as root must not be led to a file that only root may read."""
    secret = tmp_path / "secret"
    secret.write_text("of root")
    way = Spooled(Elsewhere(), str(spool), tmp_path / "rank00000.trace.json")
    Path(way.asked).symlink_to(secret)
    with pytest.raises(OutputError, match="cannot be fetched"):
        way.arrive()
    assert not (tmp_path / "rank00000.trace.json").exists()
    assert not (tmp_path / "rank00000.trace.json.part").exists()
    assert secret.read_text() == "of root"


def test_a_file_of_somebody_else_is_not_taken(tmp_path: Path, spool: Path) -> None:
    """A process may mount or link what only root may read at the name that it was told."""
    way = Spooled(Elsewhere(uid=os.geteuid() + 1), str(spool), tmp_path / "rank00000.trace.json")
    Path(way.asked).write_text("of root")
    with pytest.raises(OutputError, match="not a file of that process"):
        way.arrive()
    other = Spooled(Elsewhere(), str(spool), tmp_path / "rank00001.trace.json")
    (tmp_path / "mine").write_text("linked")
    os.link(tmp_path / "mine", other.asked)
    with pytest.raises(OutputError, match="not a file of that process"):
        other.arrive()
    assert not list(tmp_path.glob("rank*"))


def test_a_pipe_in_the_agents_folder_is_not_waited_for(tmp_path: Path, spool: Path) -> None:
    way = Spooled(Elsewhere(), str(spool), tmp_path / "rank00000.trace.json")
    os.mkfifo(way.asked)
    with pytest.raises(OutputError, match="not a file of that process"):
        way.arrive()


def test_a_trace_of_another_host_comes_compressed(tmp_path: Path) -> None:
    way = Sent(lambda path: path.write_bytes(b"packed"), tmp_path / "rank00000.trace.json")
    assert way.arrive() == tmp_path / "rank00000.trace.json.gz"
    assert (tmp_path / "rank00000.trace.json.gz").read_bytes() == b"packed"
