"""The table of docs/check-sync.md: what was planted, what the sanitizer and the recording said.

All three are data of the same programs; the table is written by hand, and the reasons in it are.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest

import diagnose
from diagnose.analyzers.hazards.stacks import stack
from diagnose.readers.sanitizer import Race, Use, parse
from diagnose.rules._sanitized import findings

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
PLANTED = json.loads((DATA / "hazards" / "planted.json").read_text())
FALSE_ALARM = "; a false alarm when repaired"
DEFAULT = 7
"""The number that a profile gives to the default stream, whose handle is 0."""


class Access(NamedTuple):
    """An operator and whose stream it is on: ``default``, ``side`` or ``host``."""

    operator: str
    lane: str
    function: str = ""


class Pair(NamedTuple):
    kind: str
    second: Access
    first: Access

    def same_as(self, other: Pair) -> bool:
        """Whether kind, streams and functions are the same; names of operators may differ."""
        return self.kind == other.kind and all(
            a.lane == b.lane and (not a.function or not b.function or a.function == b.function)
            for a, b in ((self.second, other.second), (self.first, other.first))
        )


def planted(name: str) -> Pair:
    def access(text: str) -> Access:
        operator, _, lane = re.sub(r" \(.*?\)", "", text).partition(" on ")
        return Access(operator, lane if lane in ("default", "host") else "side")

    facts = PLANTED[name]
    return Pair(facts["kind"], access(facts["second"]), access(facts["first"]))


def sanitized(name: str, twin: str = "racy") -> set[Pair]:
    def access(use: Use) -> Access:
        function = use.own.function if use.own else ""
        return Access(use.name, "side" if use.stream else "default", function)

    def kind(race: Race) -> str:
        words = {True: "write", False: "read"}
        return f"{words[race.second.writes]}-after-{words[race.first.writes]}"

    races = parse((DATA / "sanitizer" / f"{name}.{twin}.txt").read_text())
    return {Pair(kind(race), access(race.second), access(race.first)) for race in races}


@cache
def recorded(name: str, twin: str = "racy") -> frozenset[Pair]:
    recording = diagnose.load(DATA / "hazards" / f"{name}.{twin}")
    trace, table = recording.trace, recording.hazards()
    pairs = set()
    for row in table.to_dict("records"):
        ends = []
        for end in ("second", "first"):
            stream, op = row[f"{end}_stream"], int(row[f"{end}_op_row"])
            lane = "host" if pd.isna(stream) else "default" if stream == DEFAULT else "side"
            places = stack(trace, op)
            function = places[0].rpartition(" ")[2] if places else ""
            operator = trace.strings[int(trace.host_ops["name"][op])]
            ends.append(Access(operator, lane, function))
        pairs.add(Pair(row["hazard"].replace("_", "-"), *ends))
    return frozenset(pairs)


def said(name: str, found: set[Pair] | frozenset[Pair]) -> str:
    """A cell of the table; anything but the planted pair fails."""
    if not found:
        return "nothing"
    [pair] = found
    wanted = planted(name)
    assert pair.same_as(wanted)
    ends = ((pair.second, wanted.second), (pair.first, wanted.first))
    other = [found.operator for found, want in ends if found.operator != want.operator]
    return "the pair" + "".join(f", as `{operator}`" for operator in other)


def row(name: str) -> list[str]:
    """All cells but the reason."""
    facts = PLANTED[name]
    operators = [re.sub(r"^\S+", r"`\g<0>`", facts[end]) for end in ("second", "first")]
    alarm = FALSE_ALARM if sanitized(name, "repaired") else ""
    return [
        f"`{name}`",
        f"{facts['kind'].replace('-', ' ')}: {', '.join(operators)}",
        said(name, sanitized(name)) + alarm,
        said(name, recorded(name)),
    ]


def written() -> dict[str, list[str]]:
    """The rows of the page, by the name of the program."""
    page = (ROOT / "docs" / "check-sync.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`) \|(.*)\|$", page, re.MULTILINE)
    return {name: [name, *(cell.strip() for cell in cells.split("|"))] for name, cells in rows}


@pytest.mark.parametrize("name", PLANTED)
def test_the_table_says_what_the_data_say_and_why_they_differ(name: str) -> None:
    cells = written()[f"`{name}`"]
    assert cells[:-1] == row(name)
    assert bool(cells[-1]) == (cells[2:-1] != ["the pair", "the pair"])


def test_the_table_is_whole_and_the_page_counts_right() -> None:
    assert list(written()) == [f"`{name}`" for name in sorted(PLANTED)]
    found = [sum(bool(one(name)) for name in PLANTED) for one in (sanitized, recorded)]
    assert found == [14, 20]
    page = (ROOT / "docs" / "check-sync.md").read_text(encoding="utf-8")
    assert "the sanitizer alone found 14, the recording 20." in " ".join(page.split())


@pytest.mark.parametrize("name", PLANTED)
def test_both_name_the_same_pair_where_the_sanitizer_finds_it(name: str) -> None:
    for seen in sanitized(name):
        [other] = recorded(name)
        assert seen.same_as(other)
        assert seen.second.function == other.second.function == "step"


@pytest.mark.parametrize("name", PLANTED)
def test_in_repaired_twins_only_the_sanitizer_raises_an_alarm(name: str) -> None:
    assert not recorded(name, "repaired")
    assert bool(sanitized(name, "repaired")) == (name == "event_not_polled")


@pytest.mark.parametrize("name", PLANTED)
def test_the_findings_of_both_are_of_one_rule_and_one_kind(name: str) -> None:
    """The report and the live check say the same of the same program, in the same fields."""
    races = parse((DATA / "sanitizer" / f"{name}.racy.txt").read_text())
    report = diagnose.load(DATA / "hazards" / f"{name}.racy").diagnosis()
    for live in findings(races):
        assert report.checked is not None
        assert not any(one.rule == live.rule for one in report.checked.not_checked)
        [found] = [one for one in report.findings if one.rule == live.rule]
        assert (found.severity, found.confidence) == (live.severity, live.confidence)
        assert found.title == live.title
        ours = {one.key: one.value for one in live.evidence}
        theirs = {one.key: one.value for one in found.evidence}
        assert {"first", "first_stack", "second", "second_stack"} <= ours.keys() & theirs.keys()
        assert ours["kind"] == theirs["kind"]
        # Behind the operator stands what it does, and where: streams have other names.
        assert str(ours["second"]).split()[0] == str(theirs["second"]).split()[0]


LIVE = json.loads((DATA / "sanitizer" / "check_sync.json").read_text())
"""What ``diagnose check-sync`` said of the same programs on an H200."""


def test_check_sync_ran_on_every_twin() -> None:
    twins = {(one["program"], one["twin"]) for one in LIVE}
    assert twins == {(name, twin) for name in PLANTED for twin in ("racy", "repaired")}
    assert {one["status"] for one in LIVE} == {0}


@pytest.mark.parametrize("name", PLANTED)
def test_check_sync_finds_what_the_sanitizer_finds_without_its_false_alarm(name: str) -> None:
    said = {one["twin"]: one["findings"] for one in LIVE if one["program"] == name}
    assert said["repaired"] == []
    pairs = set()
    for severity, sentence in said["racy"]:
        assert severity == "critical"
        words = re.match(r"(\S+) on stream (\S+) \w+ what (\S+) on stream (\S+) ", sentence)
        assert words is not None
        ends = [(words[1], words[2]), (words[3], words[4])]
        pairs.add(tuple((op, "default" if at == "0" else "side") for op, at in ends))
    by_itself = {
        tuple((end.operator, end.lane) for end in (pair.second, pair.first))
        for pair in sanitized(name)
    }
    # One that PyTorch's mode ends at, or further ones behind it, where the job goes on.
    assert by_itself <= pairs
    assert bool(by_itself) == bool(pairs)
