"""What `missing-stream-sync` proves from real recordings of programs with one missing wait each.

``planted.json`` says what was planted (written with the programs, benchmarks/gpu/hazards, before
anything looked at their recordings). The table that is printed (program, planted, found, false)
is that of docs/check-sync.md, beside what the sanitizer said.
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from diagnose import engine, readers
from diagnose.findings import Diagnosis, Finding
from diagnose.rules._judge import Judging

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "hazards"
PLANTED: dict[str, dict[str, Any]] = json.loads((DATA / "planted.json").read_text())
RULE = "missing-stream-sync"
DEFAULT_STREAM = 7
INVISIBLE = frozenset({"graph_beside_eager"})
"""What a recording cannot show, as the page says: the memory that a CUDA graph's inside uses."""
KINDS = {"reuse": "memory reused"}
"""Of a kind in planted.json: what the finding calls it, where that is not the same in words."""


class Use(NamedTuple):
    operator: str
    place: str
    """``host``, ``default`` or ``side``: a stream that is not the default one."""


@cache
def diagnosed(name: str, twin: str) -> Diagnosis:
    judging = Judging(select=(RULE,))
    return engine.diagnose(readers.read([str(DATA / f"{name}.{twin}")]), {}, judging=judging)


def findings(name: str, twin: str) -> tuple[Finding, ...]:
    return tuple(one for one in diagnosed(name, twin).findings if one.rule == RULE)


def planted_use(text: str) -> Use:
    """As planted.json has it: ``aten::copy_ (to the GPU) on side``."""
    operator, _, place = text.rpartition(" on ")
    operator = operator.partition(" ")[0]
    # A job of one rank has no description of its collectives.
    operator = "a collective (record_param_comms)" if operator.startswith("c10d::") else operator
    return Use(operator, place if place in ("default", "host") else "side")


def found_uses(finding: Finding) -> tuple[Use, Use]:
    """The earlier and the later one, from the finding's sentence."""
    said = re.match(
        r"(.+?) on (the host|stream \d+) .*? (?:what|while) (.+?) on (the host|stream \d+) ",
        finding.sentence,
    )
    assert said is not None, finding.sentence
    later, earlier = Use(said[1], place(said[2])), Use(said[3], place(said[4]))
    return earlier, later


def place(text: str) -> str:
    if text == "the host":
        return "host"
    return "default" if text == f"stream {DEFAULT_STREAM}" else "side"


def is_planted(name: str, finding: Finding) -> bool:
    facts = PLANTED[name]
    wanted = planted_use(facts["first"]), planted_use(facts["second"])
    kinds = {one.key: one.value for one in finding.evidence}["kind"].replace(" ", "-")
    return found_uses(finding) == wanted and kinds == KINDS.get(
        facts["kind"], facts["kind"]
    ).replace(" ", "-")


@pytest.mark.parametrize("name", sorted(PLANTED.keys() - INVISIBLE))
def test_every_planted_hazard_is_found_and_critical(name):
    right = [one for one in findings(name, "racy") if is_planted(name, one)]
    assert len(right) == 1, [one.sentence for one in findings(name, "racy")]
    assert (right[0].severity, right[0].confidence) == ("critical", "high")


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_nothing_else_is_found_in_a_racy_twin(name):
    others = [one.sentence for one in findings(name, "racy") if not is_planted(name, one)]
    assert others == []


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_nothing_is_found_in_a_repaired_twin(name):
    assert [one.sentence for one in findings(name, "repaired")] == []
    checked = diagnosed(name, "repaired").checked
    assert checked is not None
    assert checked.clean == (RULE,)


def row(name: str) -> str:
    facts = PLANTED[name]
    racy = findings(name, "racy")
    right = sum(is_planted(name, one) for one in racy)
    false = len(racy) - right + len(findings(name, "repaired"))
    first, second = facts["first"], facts["second"]
    return f"| `{name}` | {facts['kind']} | {first} | {second} | {right} | {false} |"


def test_the_table(capsys):
    rows = [row(name) for name in sorted(PLANTED)]
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(rows) + "\n")
    assert [name for name in sorted(PLANTED) if not row(name).endswith("| 1 | 0 |")] == [*INVISIBLE]


def test_what_a_graph_holds_is_said_to_be_invisible():
    (seen,) = diagnosed("graph_beside_eager", "racy").checked.seen
    assert "not seen: 6 inside of CUDA graphs" in seen.sentence
