"""Which findings the shipped recordings must and must not give, and how often that is right.

Each recording was made with one behaviour induced on purpose (examples/recordings/README.md).
Only what ``expected.json`` lists is judged. Precision and recall count these pairs:
a must that is found is right, a must_not that is found is a false alarm.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from diagnose import engine, readers
from diagnose.findings import SEVERITIES, Diagnosis, Finding
from diagnose.rules._judge import Judging

ROOT = Path(__file__).resolve().parents[2]
EXPECTED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "expected.json").read_text()
)


@cache
def diagnosed(name: str) -> Diagnosis:
    trace = readers.read([str(ROOT / "examples" / "recordings" / name)])
    return engine.diagnose(trace, {}, judging=Judging())


@cache
def found(name: str) -> tuple[Finding, ...]:
    return tuple(one for top in diagnosed(name).findings for one in top.everything())


def is_there(name: str, wanted: Any) -> bool:
    rule, rank = (wanted, None) if isinstance(wanted, str) else (wanted["rule"], wanted["rank"])
    same = [one for one in found(name) if one.rule == rule]
    return any(rank is None or one.where.ranks == (rank,) for one in same)


def pairs(key: str) -> list[Any]:
    return [
        pytest.param(
            name, wanted, id=f"{name}-{wanted if isinstance(wanted, str) else wanted['rule']}"
        )
        for name, expected in EXPECTED.items()
        for wanted in expected[key]
    ]


@pytest.mark.parametrize(("name", "wanted"), pairs("must"))
def test_what_was_induced_is_found(name, wanted):
    assert is_there(name, wanted), [one.rule for one in found(name)]


@pytest.mark.parametrize(("name", "wanted"), pairs("must_not"))
def test_what_was_not_is_not(name, wanted):
    assert wanted in engine.rules()
    assert not is_there(name, wanted)


@pytest.mark.parametrize(
    "name", [n for n, expected in EXPECTED.items() if "none_above" in expected]
)
def test_a_healthy_job_has_nothing_grave(name):
    most = SEVERITIES.index(EXPECTED[name]["none_above"])
    grave = [one for one in found(name) if SEVERITIES.index(one.severity) > most]
    assert [(one.rule, one.severity, one.sentence) for one in grave] == []


@pytest.mark.parametrize("name", EXPECTED)
def test_no_rule_crashes(name):
    assert diagnosed(name).checked.failed == ()


def test_precision_and_recall(capsys):
    musts = [is_there(*param.values) for param in pairs("must")]
    alarms = [is_there(*param.values) for param in pairs("must_not")]
    right, wrong, missed = sum(musts), sum(alarms), len(musts) - sum(musts)
    precision = right / (right + wrong) if right + wrong else 0.0
    recall = right / (right + missed)
    with capsys.disabled():
        sys.stdout.write(
            f"\nfindings on {len(EXPECTED)} recordings: precision {precision:.2f} "
            f"({wrong} false alarms of {len(alarms)}), recall {recall:.2f} "
            f"({right} of {len(musts)})\n"
        )
    assert (precision, recall) == (1.0, 1.0)


def test_every_recording_of_the_table_is_there():
    folder = ROOT / "examples" / "recordings"
    assert sorted(EXPECTED) == sorted(path.name for path in folder.iterdir() if path.is_dir())
