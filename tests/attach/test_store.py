"""Reaching every rank of a real job over its own TCPStore, with torchrun's store and without."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from diagnose import manifest
from diagnose.attach.hosts import JobStore
from diagnose.errors import AttachError

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def job(start_job: Any) -> Any:
    job = start_job(env={"DIAGNOSE_STORE": "1", "SLEEP": "0.01"}, agent=True)
    job.wait_for_steps(20)
    environ = Path(f"/proc/{job.pids[0]}/environ").read_bytes().split(b"\0")
    [port] = [entry for entry in environ if entry.startswith(b"MASTER_PORT=")]
    job.address = f"127.0.0.1:{int(port.partition(b'=')[2])}"
    return job


def open_all(store: JobStore) -> list[Any]:
    ranks, world = store.ranks()
    assert ([rank.rank for rank in ranks], world) == ([0, 1], 2)
    return [store.channel(rank) for rank in ranks]


def together(calls: list[Any]) -> list[Any]:
    results: list[Any] = [None] * len(calls)

    def call(number: int) -> None:
        results[number] = calls[number]()

    threads = [threading.Thread(target=call, args=(n,)) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_a_window_is_recorded_on_all_ranks_and_comes_back(job: Any, tmp_path: Path) -> None:
    with JobStore.open(job.address) as store:
        channels = open_all(store)
        statuses = together([lambda c=c: c.ask("status") for c in channels])
        assert [status["pid"] for status in statuses] == job.pids
        armed = together([lambda c=c: c.ask("arm", marks=2, timeout_s=20) for c in channels])
        start = max(reply["marks"][-1][0] for reply in armed) + 20
        replies = together(
            [
                lambda c=c: c.ask("go", start={"step": start}, stride=1, steps=3, timeout_s=40)
                for c in channels
            ]
        )
        steps = [[mark[0] for mark in reply["marks"]] for reply in replies]
        assert steps == [list(range(start, start + 4))] * 2
        for rank, channel in enumerate(channels):
            path = tmp_path / f"rank{rank:05d}.trace.json.gz"
            channel.fetch(path)
            events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
            names = {str(event.get("name")) for event in events}
            assert sum(name.startswith("ProfilerStep#") for name in names) == 3
        together([lambda c=c: c.ask("detach") for c in channels])
    job.wait_until(lambda: not list(job.sockets.glob("store-*")), 10, "the traces to be removed")


def test_whoever_goes_without_a_word_leaves_the_agents_free(job: Any) -> None:
    with JobStore.open(job.address) as store:
        for channel in open_all(store):
            channel.send("arm", marks=100_000, timeout_s=60)
    # The store says that the controller has left: the next one need not wait for a timeout.
    with JobStore.open(job.address) as store:
        channels = open_all(store)
        together([lambda c=c: c.ask("status") for c in channels])
    job.more_steps(20)


def sequence_numbers(folder: Path, rank: int) -> list[int]:
    """Of the boundaries of the window, as the agent wrote them into the trace."""
    text = gzip.decompress((folder / f"rank{rank:05d}.trace.json.gz").read_bytes())
    marks = json.loads(text)["diagnose_marks"]
    return [seq for _, seq, _ in (json.loads(marks) if isinstance(marks, str) else marks)]


def test_two_controllers_record_the_same_steps_and_merge(job: Any, tmp_path: Path) -> None:
    """As on two hosts: each attaches to one rank, and knows of the other through the store."""
    folders = [tmp_path / "host0", tmp_path / "host1"]
    diagnose = [sys.executable, "-m", "diagnose"]
    controllers = [
        subprocess.Popen(
            [
                *(*diagnose, "attach", str(pid), "--hosts", "2", "--store", job.address),
                *("--no-report", "-o", str(folder)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for pid, folder in zip(job.pids, folders, strict=True)
    ]
    for controller in controllers:
        said, _ = controller.communicate(timeout=90)
        assert controller.returncode == 0, said
        assert said.splitlines()[-1].startswith("recorded 3 steps of rank "), said
    numbers = [sequence_numbers(folder, rank) for rank, folder in enumerate(folders)]
    assert len(numbers[0]) == 4
    assert numbers[0] == numbers[1]
    windows = [manifest.read(folder / "recording.json").window for folder in folders]
    assert windows[0] == windows[1] == manifest.Window(3, None, "seq", numbers[0][0])

    command = [*diagnose, "merge", str(tmp_path / "both"), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    merged = manifest.read(tmp_path / "both" / "recording.json")
    assert [rank.rank for rank in merged.ranks] == [0, 1]
    assert (merged.window, merged.missing_ranks) == (windows[0], ())
    codes = {note.code for note in merged.notes}
    assert not codes & {"windows-apart", "clocks-differ", "ranks-missing", "ranks-not-aligned"}


def test_a_controller_that_ends_while_it_waits_is_not_met(job: Any, tmp_path: Path) -> None:
    """Ctrl-C before the others came; whoever comes next meets the one after it."""
    command = [sys.executable, "-m", "diagnose", "attach", str(job.pids[0])]
    command += ["--hosts", "2", "--store", job.address, "-o", str(tmp_path / "out")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "other hosts" in line:
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=15)
    assert process.returncode == 130, said
    assert not (tmp_path / "out").exists()
    with JobStore.open(job.address) as one, JobStore.open(job.address) as two:
        meetings = [one.meeting(2), two.meeting(2)]
        together([lambda m=m: m.join(10) for m in meetings])
        heard = together([lambda m=m: m.exchange(m.seat, 10) for m in meetings])
        assert heard == [[0, 1], [0, 1]]


def test_nobody_there_is_an_error_with_a_remedy(start_job: Any) -> None:
    with pytest.raises(AttachError, match="cannot be reached"):
        JobStore.open("127.0.0.1:9", timeout_s=1)


def test_the_job_is_not_changed_and_ends_by_itself(job: Any, untouched_losses: Any) -> None:
    job.finish()
    for rank in range(2):
        losses = job.losses(rank)
        length = min(len(losses), len(untouched_losses[rank]))
        assert length > 100
        assert losses[:length] == untouched_losses[rank][:length]
