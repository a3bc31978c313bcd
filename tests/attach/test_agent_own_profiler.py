"""A job with a scheduled profiler of its own, under continuous attempts to record: it wins."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.agent.controller import Controller

pytest.importorskip("torch")


def test_the_jobs_own_traces_stay_whole(start_job, tmp_path: Path) -> None:
    job = start_job("own_profiler.py", ranks=1, agent=True)
    (pid,) = job.pids
    log = job.folder / "windows.0"
    answers: Counter[str] = Counter()
    lengths = []
    num_checked = 0
    end = time.monotonic() + 10
    with Controller(job.sockets / f"{pid}.sock") as controller:
        number = 0
        while time.monotonic() < end:
            number += 1
            armed = controller.ask("arm")
            if not armed["ok"]:
                answers[armed["code"]] += 1
                time.sleep(0.01 * (number % 5))
                continue
            trace = tmp_path / f"{number}.json"
            start = {"step": armed["marks"][-1][0] + 3 + number % 4}
            checked = number % 2 == 0
            beside = {"check_sync": str(tmp_path / f"{number}.et.json")} if checked else {}
            steps = 1 + number % 5
            reply = controller.ask("go", start=start, steps=steps, trace=str(trace), **beside)
            answers[reply.get("code", "ok")] += 1
            if reply["ok"]:
                lengths.append(len(reply["marks"]) - 1 == steps)
                if checked:
                    num_checked += 1
                    assert reply["check_sync"].get("path") == beside["check_sync"], reply
                assert json.loads(trace.read_text())["traceEvents"]
    assert job.wait_until(lambda: len(log.read_text().split()) > 20, 20, "own windows")
    job.finish()
    # As many operators in each of the job's traces, whatever we did meanwhile.
    assert len(set(log.read_text().split())) == 1
    assert set(answers) <= {"ok", "profiler-busy", "job-profiler", "start-missed"}, answers
    assert answers["ok"] >= 3, answers
    assert answers["profiler-busy"] + answers["job-profiler"] >= 3, answers
    assert all(lengths)
    assert num_checked >= 1
    left = [path.suffix for path in tmp_path.iterdir()]
    assert left == [".json"] * (answers["ok"] + num_checked)
