"""A process that has been watched enough waits for its neighbours, and leaves nothing running."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from diagnose.agent import early_end

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (*early_end._LOCAL_SIZE, "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    monkeypatch.setitem(sys.modules, "torch.cuda", SimpleNamespace(device_count=lambda: 8))
    return monkeypatch


@pytest.mark.parametrize(
    ("variables", "ranks"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "4"}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "16"}, 2),
        ({"LOCAL_WORLD_SIZE": "many"}, 1),
        # Processes that the job has started itself: as many as there are ranks, on one host.
        ({"WORLD_SIZE": "8"}, 8),
        # More ranks than GPUs here: on several hosts, and how many here nobody says.
        ({"WORLD_SIZE": "16"}, 1),
    ],
)
def test_how_many_ranks_this_host_has(
    alone: pytest.MonkeyPatch, variables: dict[str, str], ranks: int
) -> None:
    for name, value in variables.items():
        alone.setenv(name, value)
    assert early_end._local_ranks() == ranks


def test_it_waits_for_the_others_but_not_for_ever(
    alone: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alone.setenv("LOCAL_WORLD_SIZE", "2")
    alone.setattr(early_end, "_OTHERS_S", 0.3)
    began = time.monotonic()
    early_end._meet_others(str(tmp_path))
    assert time.monotonic() - began >= 0.3
    assert (tmp_path / f"{os.getpid()}.end").exists()
    (tmp_path / "1.end").touch()
    alone.setattr(early_end, "_OTHERS_S", 60.0)
    early_end._meet_others(str(tmp_path))
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(("finish", "said"), [("True", "synchronised\n"), ("False", "")])
def test_status_0_whatever_goes_wrong(tmp_path: Path, finish: str, said: str) -> None:
    script = (
        "import sys, types\n"
        "from diagnose.agent import early_end\n"
        "def synchronize():\n"
        "    print('synchronised')\n"
        "    raise RuntimeError('a CUDA error')\n"
        "sys.modules['torch.cuda'] = types.SimpleNamespace(\n"
        "    is_initialized=lambda: True, synchronize=synchronize, device_count=lambda: 1)\n"
        f"early_end.leave({str(tmp_path / 'gone')!r}, finish_work={finish})\n"
        "print('not here')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, said, "")


def test_daemons_of_multiprocessing_are_ended() -> None:
    context = multiprocessing.get_context("spawn")
    daemon = context.Process(target=time.sleep, args=(60,), daemon=True)
    other = context.Process(target=time.sleep, args=(60,))
    daemon.start()
    other.start()
    try:
        early_end._end_daemons()
        daemon.join(30)
        assert daemon.exitcode == -15
        assert other.is_alive()
    finally:
        for process in (daemon, other):
            process.kill()
            process.join(30)
