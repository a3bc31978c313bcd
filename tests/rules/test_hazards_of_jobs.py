"""Whole jobs recorded with ``check_sync`` on an H200: right ones, and two that wait too little.

benchmarks/gpu/hazards/jobs.py has them: what is missing stands in their source, and which of one
buffer and two is faster was measured before anything was recorded (``measured.json``).
"""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path

import pytest

from diagnose import engine, readers
from diagnose.findings import Diagnosis, Finding
from diagnose.rules._judge import Judging

DATA = Path(__file__).resolve().parents[1] / "data" / "check_sync"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "check-sync.md"
RACE, ONE_BUFFER = "missing-stream-sync", "single-buffered-transfer"
RIGHT = ("fsdp", "healthy", "one_buffer", "tiny_buckets", "two_buffers")
RACY = {
    "batch_not_waited": (
        "aten::addmm on stream 7 (the default) reads what aten::copy_ on stream 13 writes"
    ),
    "gradients_not_waited": (
        "aten::_fused_adamw_ on stream 7 (the default) overwrites what all_reduce "
        "(record_param_comms) on stream 20 writes"
    ),
}


@cache
def diagnosed(name: str) -> Diagnosis:
    return engine.diagnose(readers.read([str(DATA / name)]), {}, judging=Judging())


def findings(name: str, rule: str) -> list[Finding]:
    return [one for one in diagnosed(name).findings if one.rule == rule]


def test_every_job_is_judged():
    assert {path.name for path in DATA.iterdir()} == {*RIGHT, *RACY}


@pytest.mark.parametrize("name", RACY)
def test_a_missing_wait_is_the_first_finding_and_critical(name):
    first = diagnosed(name).findings[0]
    assert (first.rule, first.severity) == (RACE, "critical")
    assert first.sentence.startswith(RACY[name])
    assert len(findings(name, RACE)) == 1
    stack = {one.key: one.value for one in first.evidence}["second_stack"]
    assert "hazards/jobs.py" in str(stack)


def test_a_baseline_accepts_a_race_at_its_place_alone():
    (found,) = findings("batch_not_waited", RACE)
    subject = "aten::addmm in jobs.py:step after aten::copy_ in jobs.py:fetch"
    assert found.key == f"{RACE}@stream 7,13@{subject}"


@pytest.mark.parametrize("name", RIGHT)
def test_right_jobs_have_no_finding_although_all_they_launched_is_seen(name):
    assert findings(name, RACE) == []
    checked = diagnosed(name).checked
    assert checked is not None
    (seen,) = checked.seen
    said = re.search(
        r"Of ([\d,]+) GPU operations ([\d,]+) have known memory; "
        r"not seen: ([\d,]+) launched before the window\. ",
        seen.sentence,
    )
    assert said is not None, seen.sentence
    total, known, before = (int(number.replace(",", "")) for number in said.groups())
    assert known == total - before > 40


def test_the_page_says_how_much_was_seen():
    rows = re.findall(r"\| (\d+ of [\d,]+) \|$", PAGE.read_text(), re.MULTILINE)
    jobs = ("healthy", "tiny_buckets", "fsdp", "gradients_not_waited", "one_buffer")
    assert rows == [known(name) for name in (*jobs, "two_buffers", "batch_not_waited")]


def known(name: str) -> str:
    for found in findings(name, RACE):
        return {one.key: str(one.value) for one in found.evidence}["known"]
    checked = diagnosed(name).checked
    assert checked is not None
    numbers = re.search(r"Of ([\d,]+) GPU operations ([\d,]+) ", checked.seen[0].sentence)
    assert numbers is not None
    return f"{numbers[2]} of {numbers[1]}"


def test_the_only_buffer_costs_what_a_second_one_saves():
    (found,) = findings("one_buffer", ONE_BUFFER)
    assert findings("two_buffers", ONE_BUFFER) == []
    took = [
        json.loads((DATA / name / "measured.json").read_text())["step_ms"]
        for name in ("one_buffer", "two_buffers")
    ]
    assert found.gain.high_ns is not None
    # At most what the finding says, and in this job, where the GPU does nothing else, all of it.
    assert took[0] - took[1] == pytest.approx(found.gain.high_ns / 1e6, rel=0.1)


@pytest.mark.parametrize("harm", ["lost", "cut off", "of another recording"])
def test_without_its_execution_trace_a_racing_job_is_not_called_right(tmp_path, harm):
    folder = tmp_path / "recording"
    shutil.copytree(DATA / "batch_not_waited", folder)
    path = folder / "rank00000.execution_trace.json.gz"
    if harm == "lost":
        path.unlink()
    elif harm == "cut off":
        path.write_bytes(path.read_bytes()[:3000])
    else:
        shutil.copyfile(DATA / "healthy" / path.name, path)
    diagnosis = engine.diagnose(readers.read([str(folder)]), {}, judging=Judging())
    checked = diagnosis.checked
    assert checked is not None
    (missing,) = [one for one in checked.not_checked if one.rule == RACE]
    assert "--check-sync" in missing.remedy
    notes = {"lost": "file-missing", "cut off": "execution-trace-unreadable"}
    wanted = notes.get(harm, "execution-trace-apart")
    assert wanted in {note.code for note in diagnosis.trace.notes}
