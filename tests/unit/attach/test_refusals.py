"""Why a process cannot be entered, on /proc trees laid out by hand."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from diagnose.attach.injection import refusals
from diagnose.attach.injection.symbols import CLibrary, Interpreter
from diagnose.errors import (
    AttachError,
    NotPythonError,
    OtherUserError,
    ProcessGoneError,
    ProcessorError,
    PtraceRefusedError,
    StuckError,
    TorchMissingError,
)

PID = 4_194_305  # one more than the kernel gives out
FREE = 1 << 19  # CAP_SYS_PTRACE
DAEMON, NOBODY = 1, 65534


class Tree:
    """A /proc with one process and whoever asks; what can be read of its memory is a choice."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / str(PID)
        (self.folder / "task" / str(PID)).mkdir(parents=True)
        (self.folder / "mem").write_bytes(b"")
        (self.folder / "maps").write_text(
            "7f0000000000-7f0000001000 r-xp 00000000 08:01 12    /lib/libtorch_cpu.so\n"
        )
        self.status()
        self.asking()

    def status(self, *, state: str = "S (sleeping)", uid: int = NOBODY, **lines: object) -> None:
        letter = state[0]
        fields = " ".join(["0"] * 25)
        (self.folder / "stat").write_text(f"{PID} (a) b) {letter} 1 {fields}\n")
        known: dict[str, object] = {
            "State": state,
            "Tgid": PID,
            "TracerPid": 0,
            "Uid": "\t".join([str(uid)] * 4),
            "Seccomp": 0,
            **lines,
        }
        text = "Name:\ta\n" + "".join(f"{key}:\t{value}\n" for key, value in known.items())
        (self.folder / "status").write_text(text)
        (self.folder / "task" / str(PID) / "status").write_text(text)

    def asking(self, *, uid: int = NOBODY, capabilities: int = 0) -> None:
        own = self.root / "self"
        own.mkdir(exist_ok=True)
        ids = "\t".join([str(uid)] * 4)
        (own / "status").write_text(f"Uid:\t{ids}\nCapEff:\t{capabilities:016x}\n")

    def forbid_memory(self) -> None:
        # Root may open any file, but a link to itself leads nowhere for root too.
        (self.folder / "mem").unlink()
        (self.folder / "mem").symlink_to("mem")

    def yama(self, scope: int) -> None:
        folder = self.root / "sys/kernel/yama"
        folder.mkdir(parents=True)
        (folder / "ptrace_scope").write_text(f"{scope}\n")

    def namespaces(self, theirs: str, ours: str) -> None:
        for whose, name in ((str(PID), theirs), ("self", ours)):
            (self.root / whose / "ns").mkdir()
            (self.root / whose / "ns/user").symlink_to(f"user:[{name}]")

    def explain(self, *, machine: str = "x86_64", torch: bool = True) -> AttachError | None:
        return refusals.explain(PID, str(self.root), torch=torch, machine=machine)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """All is well: memory can be read, and Python 3.12 on glibc is found in it."""
    found = Interpreter((3, 12), False, "/usr/bin/python3.12", 1, 2, 3, 4)
    monkeypatch.setattr(refusals, "supported_interpreter", lambda process: found)
    monkeypatch.setattr(refusals, "c_library", lambda process: CLibrary(1, 2, 3, 4, 5))
    return Tree(tmp_path)


def check(answer: AttachError | None, kind: type[AttachError], message: str, hint: str) -> None:
    assert type(answer) is kind
    assert message in answer.message
    assert str(PID) in answer.message
    assert hint in answer.hint


def test_nothing_speaks_against_it(tree: Tree) -> None:
    assert tree.explain() is None


def test_no_such_process(tmp_path: Path) -> None:
    answer = refusals.explain(PID, str(tmp_path), machine="x86_64")
    check(answer, ProcessGoneError, "there is no such process", "lists the ranks")


def test_a_thread_is_no_process(tree: Tree) -> None:
    tree.status(Tgid=4000)
    check(tree.explain(), ProcessGoneError, "is a thread of process 4000", "give 4000")


def test_zombie(tree: Tree) -> None:
    tree.status(state="Z (zombie)")
    check(tree.explain(), ProcessGoneError, "has ended", "job's own log")


def test_diagnose_itself() -> None:
    answer = refusals.explain(os.getpid(), machine="x86_64")
    assert answer is not None
    assert answer.message == f"process {os.getpid()} is diagnose itself"
    assert "diagnose.record" in answer.hint


@pytest.mark.parametrize("machine", ["aarch64", "ppc64le", "i686"])
def test_another_processor(tree: Tree, machine: str) -> None:
    answer = tree.explain(machine=machine)
    check(answer, ProcessorError, f"x86-64 only, and this is {machine}", "`diagnose run`")


def test_a_debugger_is_there_before(tree: Tree) -> None:
    """Also one that traces another thread than the main one."""
    other = tree.folder / "task" / str(PID + 1)
    other.mkdir()
    (other / "status").write_text("State:\tS (sleeping)\nTracerPid:\t99\n")
    check(tree.explain(), PtraceRefusedError, "traced by process 99", "end process 99")


def test_another_user(tree: Tree) -> None:
    tree.forbid_memory()
    tree.asking(uid=DAEMON)
    tree.yama(1)
    check(tree.explain(), OtherUserError, "and this is user", "as the user of the job, or as root")


def test_a_program_with_a_borrowed_user(tree: Tree) -> None:
    """Effectively ours, but it was started by somebody else: the kernel asks for all three."""
    tree.forbid_memory()
    tree.status(Uid=f"{DAEMON}\t{NOBODY}\t{NOBODY}\t{NOBODY}")
    assert type(tree.explain()) is OtherUserError


def test_root_of_a_container(tree: Tree) -> None:
    tree.forbid_memory()
    tree.asking(uid=0, capabilities=0xA80425FB)  # what docker leaves by default
    check(tree.explain(), PtraceRefusedError, "lacks CAP_SYS_PTRACE", "--cap-add SYS_PTRACE")


@pytest.mark.parametrize(
    ("scope", "message", "hint"),
    [
        (1, "by its own parents (kernel.yama.ptrace_scope is 1)", "kernel.yama.ptrace_scope=0"),
        (2, "by root", "run as root"),
        (3, "by nobody until the next boot", "start the job with `diagnose run`"),
    ],
)
def test_yama(tree: Tree, scope: int, message: str, hint: str) -> None:
    tree.forbid_memory()
    tree.yama(scope)
    check(tree.explain(), PtraceRefusedError, message, hint)


def test_yama_that_forbids_it_to_root_too(tree: Tree) -> None:
    tree.forbid_memory()
    tree.asking(uid=0, capabilities=FREE)
    tree.yama(3)
    check(tree.explain(), PtraceRefusedError, "by nobody", "`diagnose run`")


def test_another_user_namespace(tree: Tree) -> None:
    tree.forbid_memory()
    tree.asking(uid=0, capabilities=FREE)
    tree.namespaces("4026531837", "4026532500")
    check(tree.explain(), PtraceRefusedError, "user namespace", "from the host as root")


def test_a_security_module_or_a_program_with_rights_of_its_own(tree: Tree) -> None:
    tree.forbid_memory()
    tree.yama(0)
    tree.namespaces("4026531837", "4026531837")
    check(tree.explain(), PtraceRefusedError, "may not be traced: it runs under", "run as root")


def test_stopped(tree: Tree) -> None:
    tree.status(state="T (stopped)")
    check(tree.explain(), StuckError, "is stopped", f"kill -CONT {PID}")


def test_strict_seccomp(tree: Tree) -> None:
    tree.status(Seccomp=1)
    check(tree.explain(), PtraceRefusedError, "strict seccomp", "process that trains")


def test_a_seccomp_filter_as_in_containers_is_fine(tree: Tree) -> None:
    tree.status(Seccomp=2)
    assert tree.explain() is None


def test_shadow_stack(tree: Tree) -> None:
    tree.status(x86_Thread_features="shstk wrss")
    check(tree.explain(), PtraceRefusedError, "shadow stack", "`diagnose run`")


def test_features_that_are_no_shadow_stack(tree: Tree) -> None:
    tree.status(x86_Thread_features="", x86_Thread_features_locked="shstk")
    assert tree.explain() is None


def test_not_python(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: object) -> Interpreter:
        raise NotPythonError(f"process {PID}: no CPython found in it", hint="another one")

    monkeypatch.setattr(refusals, "supported_interpreter", refuse)
    check(tree.explain(), NotPythonError, "no CPython", "another one")


def test_torch_is_not_loaded(tree: Tree) -> None:
    (tree.folder / "maps").write_text(
        "7f0000000000-7f0000001000 r-xp 00000000 08:01 12    /lib/libtorn.so\n"
        "7f0000002000-7f0000003000 rw-p 00000000 00:00 0 \n"
    )
    check(tree.explain(), TorchMissingError, "has not loaded PyTorch", "training has begun")
    assert tree.explain(torch=False) is None


def test_it_is_asked_quickly(tree: Tree) -> None:
    """A job has hundreds of threads, and is looked at rank by rank."""
    for number in range(500):
        folder = tree.folder / "task" / str(PID + 1 + number)
        folder.mkdir()
        (folder / "status").write_text("TracerPid:\t0\n")
    begun = time.process_time()
    assert tree.explain() is None
    assert time.process_time() - begun < 1
