"""Races as findings, and what the check says of what it watched."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.cli._sanitized_job import Checked, refuse_unwritable, verdict
from diagnose.errors import RecordingError, UsageError
from diagnose.findings import Finding
from diagnose.readers.sanitizer import Frame, Race, Use
from diagnose.readers.sanitizer_lines import Watched
from diagnose.reporters import Page
from diagnose.reporters._check_sync import Check, sentences, write
from diagnose.rules._sanitized import NOT_SEEN, findings

MM = Use("aten::mm(Tensor self, Tensor mat2) -> Tensor", 0x1F, False, ("mat2",))
MUL = Use("aten::mul.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", 0, True, ("out",), True)
MM = replace(MM, stack=(Frame("/a/train.py", 41, "step"),))
MUL = replace(MUL, stack=(Frame("/a/train.py", 7, "main"), Frame("/a/train.py", 38, "step")))
RACE = Race(4096, MM, MUL, pid=8, rank=1, device=1, steps=(1, 2), count=2)
WATCHED = (
    Watched(7, 0, 3, 50, ended="steps", torch="2.11.0"),
    Watched(8, 1, 3, 52, ended="steps", torch="2.11.0"),
)


def check(found: tuple[Finding, ...] = (), watched: tuple[Watched, ...] = WATCHED) -> Check:
    return Check(found, watched, NOT_SEEN, 3)


def test_a_finding_in_full() -> None:
    [found] = findings([RACE], [7, 8])
    assert found.sentence == (
        "aten::mm on stream 0x1f reads what aten::mul on stream 0 writes, "
        "and nothing orders them (train.py:41 after train.py:38)."
    )
    assert (found.rule, found.severity, found.confidence) == (
        "missing-stream-sync",
        "critical",
        "high",
    )
    assert found.key == (
        "missing-stream-sync@aten::mm in train.py:step after aten::mul in train.py:step"
    )
    assert {one.key: one.value for one in found.evidence} == {
        "kind": "read after write",
        "first": "aten::mul writing out, its result on stream 0",
        "first_stack": "/a/train.py(38): step < /a/train.py(7): main",
        "second": "aten::mm reading mat2 on stream 0x1f",
        "second_stack": "/a/train.py(41): step",
        "num_seen": 2,
        "steps": "1-2",
        "ranks": "1",
    }
    assert [(gpu.source, gpu.device, gpu.rank) for gpu in found.where.gpus] == [(1, 1, 1)]
    assert found.advice[0].code == (
        "torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())"
    )


@pytest.mark.parametrize(
    ("second", "first", "said"),
    [
        (False, True, "reads what aten::mul on stream 0 writes"),
        (True, False, "overwrites what aten::mul on stream 0 reads"),
        (True, True, "overwrites what aten::mul on stream 0 writes"),
    ],
)
def test_the_kinds(second: bool, first: bool, said: str) -> None:
    race = replace(RACE, second=replace(MM, writes=second), first=replace(MUL, writes=first))
    assert said in findings([race])[0].sentence


def test_ranks_and_handles_of_one_place_are_one_finding_and_the_commonest_comes_first() -> None:
    elsewhere = replace(RACE, pid=7, rank=0, device=0, second=replace(MM, stream=0x99), steps=(3,))
    other = replace(RACE, second=replace(MM, stack=(Frame("/a/b.py", 1, "f"),)), count=9)
    most, both = findings([RACE, other, elsewhere], [7, 8])
    assert "b.py:1" in most.sentence
    evidence = {one.key: one.value for one in both.evidence}
    assert (evidence["num_seen"], evidence["steps"], evidence["ranks"]) == (4, "1-3", "0-1")
    assert [gpu.rank for gpu in both.where.gpus] == [0, 1]


def test_after_a_collective_it_is_no_certainty_and_a_backward_has_no_line() -> None:
    """Another stream that calls work.wait() waits for NCCL's, which the sanitizer cannot tell."""
    reduced = Use("c10d::allreduce_(Tensor[] tensors) -> Tensor[]", 5, True)
    [found] = findings([replace(RACE, first=reduced)])
    assert [fix.code for fix in found.advice][:2] == [
        "torch.cuda.current_stream().wait_stream(side)",
        "work.wait()",
    ]
    assert "(train.py:41 after no line of Python)" in found.sentence
    assert (found.severity, found.confidence) == ("warning", "medium")
    assert "work.wait()" in found.caveats[0]
    # The collective itself has to be behind what its stream waits for, as any operator.
    [found] = findings([replace(RACE, second=reduced)])
    assert (found.severity, found.confidence) == ("critical", "high")


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_text_of_a_job_cannot_move_the_cursor(form: str) -> None:
    evil = replace(MM, stack=(Frame("/a/\x1b[2Jx.py", 1, "f\r\n"),))
    text = write(check(findings([replace(RACE, second=evil)])), form, Page())
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)


def test_nothing_found_is_said_with_what_was_watched_and_what_cannot_be_seen() -> None:
    text = " ".join(write(check(), "text", Page()).split())
    assert text.startswith(
        "No missing synchronisation in 3 steps of ranks 0-1 (102 operators with tensors on a GPU)."
    )
    assert all(one in text for one in NOT_SEEN)
    assert "diagnose attach --check-sync" in text


def test_what_failed_or_was_left_out_is_said() -> None:
    one = replace(WATCHED[0], failures=4, races_left_out=1200)
    said = " ".join(sentences(check((), (one,))))
    assert "failed at 4 operators" in said
    assert "1,200 further reports" in said


def test_json() -> None:
    text = write(check(findings([RACE], [7, 8])), "json", Page())
    said = json.loads(text)
    assert said["schema_version"] == 1
    assert said["processes"][1] == {
        "pid": 8,
        "rank": 1,
        "num_steps": 3,
        "num_operators": 52,
        "num_failures": 0,
        "num_races_left_out": 0,
        "ended": "steps",
        "torch": "2.11.0",
    }
    [found] = said["findings"]
    assert (found["rule"], found["ranks"]) == ("missing-stream-sync", [1])
    assert found["where"]["gpus"] == [{"rank": 1, "device": 1, "source": "process 8"}]


@pytest.mark.parametrize(
    ("status", "processes", "kind", "said"),
    [
        (1, [Watched(7, gpu_available=False)], UsageError, "no GPU that PyTorch can use"),
        (0, [Watched(7, gpu_available=True)], UsageError, "no process of the job used a GPU"),
        (0, [], RecordingError, "reported"),
        (9, [], RecordingError, "ended with status 9"),
        (9, [Watched(7)], RecordingError, "ended with status 9"),
        (1, [Watched(7, steps=2, launches=5)], RecordingError, "status 1 after 2 of 3 steps"),
        (0, [Watched(7, ended="missing", torch="1.12")], UsageError, "1.12 has no CUDA sanitizer"),
        (0, [Watched(7, ended="unknown", torch="9.0")], RecordingError, "sanitizer of PyTorch 9.0"),
        (0, [Watched(7, steps=3, launches=5, failures=5)], RecordingError, "failed at all of 5"),
        (1, [WATCHED[0], Watched(8, 1, 2, 9)], RecordingError, "status 1 after 3 of 3 steps"),
    ],
)
def test_why_nothing_can_be_said(status: int, processes: list[Watched], kind: type, said: str):
    problem = verdict(Checked(status, tuple(processes), ()), 3)
    assert isinstance(problem, kind)
    assert said in str(problem)
    assert problem.hint


def test_a_job_that_failed_with_races_is_not_said_to_have_none() -> None:
    problem = verdict(Checked(1, (Watched(7, steps=2, launches=5),), (RACE,)), 3)
    assert "; missing synchronisation was seen until then" in str(problem)


@pytest.mark.parametrize("status", [0, 1])
def test_a_check_that_is_whole_has_no_problem(status: int) -> None:
    """What a wrapper does when its training has ended early is not the check's concern."""
    assert verdict(Checked(status, WATCHED, ()), 3) is None


def test_fewer_steps_than_wanted_are_said() -> None:
    late = replace(WATCHED[0], steps=1, ended="seconds")
    assert "less than the 3 steps wanted: the time was over" in " ".join(
        sentences(check((), (late,)))
    )
    early = replace(WATCHED[0], steps=2, ended="exit")
    assert "wanted: the job ended." in " ".join(sentences(check((), (early,))))
    assert "less than the 3 steps wanted of rank 1: the job ended." in " ".join(
        sentences(check((), (WATCHED[0], replace(WATCHED[1], steps=1, ended=""))))
    )
    assert "wanted" not in " ".join(sentences(check()))


def test_markdown_escapes_what_a_job_says() -> None:
    evil = replace(MM, stack=(Frame("/a/x.py", 1, "f`|<b>@all"),))
    text = write(check(findings([replace(RACE, second=evil)])), "markdown", Page())
    assert text.startswith("### Missing synchronisation\n\n#### 1. missing-stream-sync: ")
    assert "<b>" not in text
    assert "@all" not in text
    assert "&lt;b&gt;&#64;all" in text


def test_many_findings_are_cut_for_people_and_whole_for_scripts() -> None:
    races = [replace(RACE, second=replace(MM, operator=f"aten::op{n}")) for n in range(60)]
    both = check(findings(races))
    text = " ".join(write(both, "text", Page()).split())
    assert text.count("missing-stream-sync:") == 50
    assert "10 further findings with `--format json`." in text
    assert len(json.loads(write(both, "json", Page()))["findings"]) == 60


def test_a_folder_is_refused_as_output_before_the_job_runs(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing" / "found.json"):
        with pytest.raises(UsageError, match="cannot write"):
            refuse_unwritable(place)
    refuse_unwritable(tmp_path / "found.json")
