"""What a report says of the cost of overlap and of a step."""

from __future__ import annotations

import json

import pytest

from diagnose import cli
from diagnose.analysis import Unavailable
from diagnose.analyzers.power.tables import POWER_SUMMARY, table_of
from diagnose.findings import Diagnosis
from diagnose.reporters._costs import absent_costs, cost_sentences
from tests.text import jobs


def energies(*rows):
    trace = jobs.two_ranks()
    given = [{"source": at, "device": 0, "num_ranks": 1, **row} for at, row in enumerate(rows)]
    return list(cost_sentences(Diagnosis(trace, {"power": table_of(POWER_SUMMARY, given)})))


def known(joules):
    low, high = joules - 1, joules + 1
    return {"step_energy_j": joules, "step_energy_low_j": low, "step_energy_high_j": high}


def test_energy_of_a_step_on_one_gpu_and_on_several():
    assert energies(known(16.5)) == [
        "Energy of a step: 16.5 J (15.5 to 17.5) on the GPU of rank 0."
    ]
    shared = {**known(16.5), "num_ranks": 2}
    assert energies(shared)[0].endswith("on the GPU of rank 0 (2 ranks share it).")
    # Least to most; in brackets from the lowest low to the highest high end.
    assert energies(known(18.0), known(16.5)) == [
        "Energy of a step: 16.5 to 18.0 J (15.5 to 19.0) on 2 GPUs."
    ]


def test_energy_of_a_step_that_is_not_known_has_its_reason():
    said = energies({"step_energy_why": "the step lasts 40 ms"})
    assert said == ["Energy of a step: unknown; the step lasts 40 ms."]
    said = energies(known(16.5), {"why": "no telemetry was recorded for rank 1"})
    assert said[1] == (
        "Energy of a step on the GPU of rank 1: unknown; no telemetry was recorded for rank 1."
    )


def test_an_analysis_that_failed_is_not_hidden():
    trace = jobs.two_ranks()
    absent = {"contention": Unavailable("too few pairs"), "power": Unavailable("no telemetry")}
    assert absent_costs(Diagnosis(trace, {}, absent)) == {"contention", "balance", "power"}
    absent["power"] = Unavailable("the analysis 'power_summary' failed: ZeroDivisionError: x")
    assert absent_costs(Diagnosis(trace, {}, absent)) == {"contention", "balance"}


@pytest.mark.parametrize("only", [(), ("--only", "launches")])
def test_the_report_says_of_contention_what_its_verb_says(recordings, capsys, only):
    """Twins are told by input shapes: without operators nothing is said, rather than otherwise."""
    path = str(recordings / "healthy")
    assert cli.execute(["report", path, "--format", "json", *only]) == 0
    report = json.loads(capsys.readouterr().out)
    missing = {entry["table"]: entry["because"] for entry in report["unavailable"]}
    if only:
        assert report["contention"] is None
        assert report["overlap_balance"] == []
        assert "only launches was loaded" in missing["contention"]
        return
    assert not missing.keys() & {"contention", "balance", "power"}
    assert cli.execute(["contention", path, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert report["contention"] == told["summary"]
    assert report["overlap_balance"] == told["windows"]
    assert cli.execute(["power", path, "--format", "json"]) == 0
    assert report["power"] == json.loads(capsys.readouterr().out)["gpus"]
