"""The file of races stays small and whole, whatever the job does and says."""

from __future__ import annotations

import enum
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diagnose.agent import race_log
from diagnose.agent.race_log import RaceLog


class Kind(enum.Enum):
    READ = 1
    WRITE = 2


def use(operator: str, line: int, file: str = "/a/train.py") -> Any:
    frames = [SimpleNamespace(filename=file, lineno=line, name="main")]
    return SimpleNamespace(
        operator=operator,
        stream=7,
        type=Kind.WRITE,
        aliases=["self"],
        is_output=False,
        stack_trace=frames,
    )


def race(line: int = 1, **options: Any) -> Any:
    second = use(options.pop("operator", "aten::mm"), line, **options)
    first = use("aten::mul", 2)
    return SimpleNamespace(
        data_ptr=1, current_access=second, previous_access=first, allocation_stack_trace=None
    )


def nowhere() -> None:
    return None


def written(folder: Path) -> list[dict[str, Any]]:
    text = (folder / f"{os.getpid()}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_races_are_bounded_and_those_left_out_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race_log, "_MOST_RACES", 2)
    log = RaceLog(str(tmp_path))
    for line in (1, 2, 3, 4, 2):
        log.race(race(line), 1, nowhere)
    log.counts(last=True)
    assert log.left_out == 2
    assert [(one["kind"], one["id"]) for one in written(tmp_path)] == [
        ("race", 0),
        ("race", 1),
        ("again", 0),
        ("again", 1),
    ]
    assert written(tmp_path)[-1]["count"] == 2


def test_bytes_are_bounded_and_the_end_is_still_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race_log, "_MOST_BYTES", 3000)
    log = RaceLog(str(tmp_path))
    for step in range(1, 500):
        log.race(race(step), step, nowhere)
        log.counts(last=False)
        log.write(kind="step", step=step)
    log.counts(last=True)
    log.write(kind="end", why="steps")
    lines = written(tmp_path)
    races = sum(one["kind"] == "race" for one in lines)
    assert races + log.left_out == 499
    assert 0 < races < 10
    assert lines[-1]["kind"] == "end"
    again = [one["id"] for one in lines if one["kind"] == "again"]
    assert set(again) == set(range(races))


def test_steps_and_text_are_bounded(tmp_path: Path) -> None:
    log = RaceLog(str(tmp_path))
    for step in range(1, 301):
        log.race(race(operator="x" * 1_000_000, file="/" + "y" * 1_000_000), step, nowhere)
    log.counts(last=True)
    first, again = written(tmp_path)
    assert (again["count"], len(again["steps"])) == (300, 100)
    assert len(first["second"]["operator"]) == len(first["second"]["stack"][0][0]) == 1000


def test_any_text_is_a_line_of_ascii(tmp_path: Path) -> None:
    evil = 'aten::\udcff\n\x1b[2J"\u2028'
    log = RaceLog(str(tmp_path))
    log.race(race(operator=evil, file=evil), 1, nowhere)
    [line] = (tmp_path / f"{os.getpid()}.jsonl").read_bytes().split(b"\n")[:-1]
    assert line.isascii()
    assert json.loads(line)["second"]["operator"] == evil


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    log = RaceLog(str(tmp_path / "gone"))
    log.race(race(), 1, nowhere)
    log.counts(last=True)
