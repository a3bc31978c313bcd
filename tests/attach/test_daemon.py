"""A real job whose Kineto asks a daemon: windows by the clock and by iteration."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diagnose.attach.discovery.processes import Process
from diagnose.attach.kineto import daemon
from diagnose.attach.kineto import ipc as kineto_ipc
from diagnose.collect._kineto import window_ns
from diagnose.errors import AttachError

pytest.importorskip("torch")

SECONDS = 0.5
MICROSECONDS_PER_SECOND = 1e6


@pytest.fixture(scope="module")
def job(start_job: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    # A socket's path may have 107 characters, and pytest's folders are long.
    folder = tmp_path_factory.mktemp("k")
    config = folder / "kineto.conf"
    config.write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
    sockets = Path(f"/tmp/diagnose-test-{os.getpid()}")
    sockets.mkdir(mode=0o700)
    traces = folder / "traces"
    traces.mkdir()
    try:
        job = start_job(
            env={
                "KINETO_USE_DAEMON": "1",
                "KINETO_IPC_SOCKET_DIR": str(sockets),
                "KINETO_CONFIG": str(config),
                "KINETO_ONDEMAND_TRACE_DIR": str(traces),
            }
        )
        job.sockets_of_kineto, job.traces = sockets, traces
        job.wait_for_steps(30)
        yield job
    finally:
        for path in sockets.iterdir():
            path.unlink()
        sockets.rmdir()


def events(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_bytes())["traceEvents"]


def optimizer_steps(path: Path) -> int:
    return sum(str(e.get("name", "")).startswith("Optimizer.step#") for e in events(path))


def record(job: Any, folder: Path, **window: Any) -> tuple[daemon.Outcome, list[Path]]:
    paths = [folder / f"rank{rank:05d}.trace.json" for rank in range(2)]
    targets = {Process(pid): path for pid, path in zip(job.pids, paths, strict=True)}
    outcome = daemon.record(targets, **window)
    assert not outcome.failures, outcome.failures
    return outcome, paths


def test_a_window_by_the_clock_begins_on_both_ranks_together(job: Any, tmp_path: Path) -> None:
    outcome, paths = record(job, tmp_path, seconds=SECONDS)
    assert set(outcome.traces.values()) == set(paths)
    for path in paths:
        ops = [e for e in events(path) if e.get("cat") == "cpu_op"]
        span = max(e["ts"] for e in ops) - min(e["ts"] for e in ops)
        assert 0.5 * SECONDS < span / MICROSECONDS_PER_SECOND < 2 * SECONDS
    starts = [outcome.started_unix_ns[pid] for pid in job.pids]
    assert None not in starts
    assert abs(starts[0] - starts[1]) < 0.2e9
    assert list(job.traces.iterdir()) == []
    assert [p.name for p in job.sockets_of_kineto.iterdir() if p.name == "dynolog"] == []


def test_a_window_by_iteration_holds_exactly_its_steps(job: Any, tmp_path: Path) -> None:
    _, paths = record(job, tmp_path, steps=3, step_ns=20_000_000)
    assert [optimizer_steps(path) for path in paths] == [3, 3]
    for path in paths:
        ops = [e for e in events(path) if e.get("cat") == "cpu_op"]
        span_us = max(e["ts"] + e["dur"] for e in ops) - min(e["ts"] for e in ops)
        length_ns = window_ns(path)
        assert length_ns is not None
        assert 0.9 * span_us * 1000 < length_ns < 2 * span_us * 1000
    job.more_steps(20)


def test_a_second_daemon_is_refused(job: Any, tmp_path: Path) -> None:
    name = str(job.sockets_of_kineto / "dynolog")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(name)
        with pytest.raises(AttachError, match="another daemon"):
            record(job, tmp_path, seconds=SECONDS)
    # Nobody listens on it now: it is in nobody's way.
    assert Path(name).exists()
    with kineto_ipc.Endpoint(str(job.sockets_of_kineto)):
        pass
    assert not Path(name).exists()
