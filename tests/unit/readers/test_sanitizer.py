"""What the sanitizer said of the gallery of hazards on an H200, read back, and damaged text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diagnose.readers.sanitizer import Frame, Race, Use, parse
from diagnose.readers.sanitizer_lines import Watched, read_folder

TEXTS = Path(__file__).resolve().parents[2] / "data" / "sanitizer"
NAMES = sorted({path.name.split(".")[0] for path in TEXTS.glob("*.txt")})

# By hand from what was planted (kind, second and first operator, streams) and from the source of
# the programs: stream True is the default one. `training_with_prefetch` plants a copy_ inside of
# `tensor.to(device)`, which the sanitizer sees as the _to_copy around it.
PLANTED = {
    "broken_chain": ("RW", "aten::mul", False, "aten::mul", False),
    "consumer_does_not_wait": ("RW", "aten::mm", False, "aten::mul", False),
    "event_not_polled": ("RW", "aten::mul", True, "aten::mul", False),
    "event_recorded_too_early": ("RW", "aten::mul", True, "aten::mul", False),
    "event_waited_by_wrong_stream": ("RW", "aten::mul", False, "aten::mul", False),
    "input_not_ready": ("RW", "aten::mm", False, "aten::mul", True),
    "one_buffer_too_few": ("WR", "aten::mul", False, "aten::add_", True),
    "output_used_too_early": ("RW", "aten::mul", True, "aten::mm", False),
    "overwritten_while_read": ("WR", "aten::fill_", True, "aten::mm", False),
    "prefetch_without_wait": ("RW", "aten::mul", True, "aten::copy_", False),
    "training_with_prefetch": ("RW", "aten::div", True, "aten::_to_copy", False),
    "two_writers": ("WW", "aten::fill_", True, "aten::mul", False),
    "update_beside_reduction": ("RW", "aten::add_", True, "aten::mul_", False),
    "wait_missing_every_second_step": ("RW", "aten::mul", True, "aten::mul", False),
}


def text(name: str, twin: str) -> str:
    return (TEXTS / f"{name}.{twin}.txt").read_text()


def kind(race: Race) -> str:
    return "".join("W" if use.writes else "R" for use in (race.second, race.first))


def test_the_gallery_is_whole() -> None:
    assert len(NAMES) == 21
    assert len(PLANTED) == 14


@pytest.mark.parametrize("name", NAMES)
def test_the_racy_twin(name: str) -> None:
    races = parse(text(name, "racy"))
    if name not in PLANTED:  # the sanitizer is blind to it
        assert races == ()
        return
    [race] = races
    second, first = race.second, race.first
    found = (kind(race), second.name, second.stream == 0, first.name, first.stream == 0)
    assert found == PLANTED[name]
    assert second.own is not None
    assert first.own is not None
    assert {second.own.file, first.own.file} == {"hazards/programs.py"}
    assert race.allocated[-1].file == "site-packages/torch/cuda/_sanitizer.py"


@pytest.mark.parametrize("name", NAMES)
def test_the_repaired_twin(name: str) -> None:
    # event.query() is not seen: the one false alarm.
    assert len(parse(text(name, "repaired"))) == (name == "event_not_polled")


def test_a_race_in_full() -> None:
    [race] = parse(text("consumer_does_not_wait", "racy"))
    assert race.data_ptr == 139974661898240
    assert (race.second.stream, race.first.stream) == (514746064, 514693568)
    assert race.second.operator.startswith("aten::mm.out(Tensor self")
    assert (race.second.arguments, race.second.output) == (("mat2",), False)
    assert (race.first.arguments, race.first.output) == (("out",), True)
    assert race.second.own == Frame("hazards/programs.py", 65, "step")
    assert race.first.own == Frame("hazards/programs.py", 61, "step")
    assert race.second.own.place == "programs.py:65"
    assert (len(race.second.stack), len(race.first.stack), len(race.allocated)) == (11, 11, 14)


def test_only_the_output_is_written() -> None:
    [race] = parse(text("training_with_prefetch", "racy"))
    assert (race.first.writes, race.first.arguments, race.first.output) == (True, (), True)


def test_several_races_behind_a_launchers_prefix() -> None:
    both = text("two_writers", "racy") + "noise\n" + text("input_not_ready", "racy")
    prefixed = "\n".join(f"[rank1]: {line}" for line in both.splitlines())
    assert parse(prefixed) == parse(both)
    assert [race.first.name for race in parse(both)] == ["aten::mul", "aten::mul"]


def test_text_that_is_cut_off_anywhere() -> None:
    whole = text("two_writers", "racy")
    [race] = parse(whole)
    for end in range(0, len(whole), 7):
        for found in parse(whole[:end]):
            assert found.data_ptr == race.data_ptr
            assert race.second.name.startswith(found.second.name)
    assert parse("CSAN detected a possible data race on tensor with data pointer 1") == ()


@pytest.mark.parametrize("before", ["data pointer ", "by stream ", "line "])
def test_numbers_that_are_none(before: str) -> None:
    whole = text("two_writers", "racy")
    at = whole.index(before) + len(before)
    for race in parse(whole[:at] + "9" * 5000 + whole[at:]):
        assert race.data_ptr < 1 << 64


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/x/lib/python3.12/site-packages/torch/_ops.py", False),
        ("C:\\x\\site-packages\\torch\\_ops.py", False),
        ("/y/diagnose/agent/sanitizer.py", False),
        ("<frozen runpy>", False),
        ("/home/a/torch/train.py", True),
        ("/x/site-packages/torchvision/ops.py", True),
    ],
)
def test_whose_frame_it_is(file: str, own: bool) -> None:
    inner, outer = Frame(file, 2, "f"), Frame("/a/train.py", 1, "g")
    assert Use("aten::mm", 0, True, stack=(outer, inner)).own == (inner if own else outer)


ACCESS = {
    "operator": "aten::add_.Tensor(Tensor(a!) self) -> Tensor(a!)",
    "stream": 7,
    "writes": True,
    "arguments": ["self"],
    "output": True,
    "stack": [["/a/train.py", 3, "main"]],
}


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def test_the_lines_of_a_process(tmp_path: Path) -> None:
    race = {"kind": "race", "pid": 9, "id": 0, "step": 1, "device": 2, "data_ptr": 5}
    race |= {"second": ACCESS, "first": {**ACCESS, "stream": 0, "writes": False}}
    written = lines(
        {**race, "allocated": []},
        {"kind": "step", "pid": 9, "step": 1, "launches": 10, "failures": 0, "rank": 1},
        {"kind": "again", "pid": 9, "id": 0, "count": 4, "steps": [1, 3]},
    )
    (tmp_path / "9.jsonl").write_text(written + '{"kind": "again", "pid": 9, "id"')
    end = {"kind": "end", "pid": 8, "why": "steps", "steps": 3, "launches": 12, "failures": 1}
    end |= {"races_left_out": 2, "gpu_available": True, "rank": 0, "torch": "2.11.0"}
    (tmp_path / "8.jsonl").write_text(lines(end))
    watched, [found] = read_folder(tmp_path)
    assert watched == (Watched(8, 0, 3, 12, 1, 2, True, "steps", "2.11.0"), Watched(9, 1, 1, 10))
    second = Use(ACCESS["operator"], 7, True, ("self",), True, (Frame("/a/train.py", 3, "main"),))
    assert found.second == second
    assert (found.first.stream, found.first.writes) == (0, False)
    assert (found.pid, found.rank, found.device, found.data_ptr) == (9, 1, 2, 5)
    assert (found.steps, found.count, found.allocated) == ((1, 3), 4, ())


def test_a_process_without_a_sanitizer_says_so(tmp_path: Path) -> None:
    said = {"kind": "unusable", "pid": 4, "why": "missing", "torch": "1.12.1"}
    (tmp_path / "4.jsonl").write_text(lines(said))
    assert read_folder(tmp_path) == ((Watched(4, ended="missing", torch="1.12.1"),), ())


@pytest.mark.parametrize(
    "damage",
    [
        *("", "{", "[]", "null"),
        '{"kind": "race"}',
        '{"kind": "again", "pid": 1, "id": 4}',
        '{"kind": "step", "pid": 1, "step": 1e999, "launches": 1, "failures": 0}',
    ],
)
def test_damaged_lines_are_passed_over(tmp_path: Path, damage: str) -> None:
    good = lines({"kind": "step", "pid": 1, "step": 2, "launches": 3, "failures": 0, "rank": None})
    (tmp_path / "1.jsonl").write_text(f"{damage}\n{good}{damage}\n")
    assert read_folder(tmp_path) == ((Watched(1, None, 2, 3),), ())
