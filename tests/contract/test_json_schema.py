"""The JSON is a contract: real output fits its schema, and the schema leaves nothing open."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
from importlib import resources

import jsonschema
import pytest

from diagnose import engine, readers
from diagnose.analysis import Unavailable
from diagnose.findings import (
    Checked,
    Cost,
    Diagnosis,
    Evidence,
    Finding,
    Fix,
    Gain,
    Headline,
    NotChecked,
    Span,
    Threshold,
    Where,
)
from diagnose.reporters import Page, _overlap
from diagnose.schema import Detail
from diagnose.trace import Gpu
from tests.builder import TraceBuilder, build_trace

BY = ("rank", "step", "stream", "group", "collective")


def schema(name: str) -> dict:
    text = resources.files("diagnose").joinpath("schemas", f"{name}.schema.json").read_text()
    return json.loads(text)


def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema(name))


def rendered(diagnosis: Diagnosis) -> dict:
    out = io.StringIO()
    engine.reporters()["json"].render(diagnosis, out, Page())
    return json.loads(out.getvalue(), parse_constant=pytest.fail)


def tiny() -> TraceBuilder:
    builder = TraceBuilder().step(1, 0, 50).kernel("gemm", 0, 10.001, launch=1)
    return builder.copy("HtoD", 20, 5)


@pytest.fixture(scope="module")
def healthy(recordings):
    return readers.read(str(recordings / "healthy"), detail=Detail.LAUNCHES)


@pytest.fixture(scope="module")
def report(healthy) -> dict:
    diagnosis = engine.diagnose(healthy, debug=True)
    found = dataclasses.replace(finding(healthy.gpus[1]), folded=(finding(healthy.gpus[0]),))
    missing = {"x": Unavailable("why", "what to do")}
    checked = Checked(
        not_checked=(NotChecked("pcie-link-degraded", "Slow link", "no telemetry", "record it"),),
        failed=(NotChecked("host-sync", "Waits", "KeyError: 7"),),
        clean=("launch-bound",),
        not_applicable=("amd-sdma-off",),
        accepted=(found,),
        headline=Headline(2, 2, 39e6, 92.0, 4.0, 0.5, 3.5, None),
        settings="diagnose.toml",
    )
    return rendered(Diagnosis(diagnosis.trace, diagnosis.tables, missing, (found,), checked))


def finding(gpu: Gpu) -> Finding:
    """One with something in every field."""
    return Finding(
        rule="straggler-rank",
        title="Everybody waits for one rank",
        severity="warning",
        confidence="high",
        sentence="rank 1 is late by 3 ms",
        key="straggler-rank@rank 1",
        where=Where(gpus=(gpu,), streams=(7,), steps=("s",), spans=(Span(0, 1000, 2500),)),
        evidence=(
            Evidence("lost_ns", "lost", 3_000_000.0, "min_lost_pct"),
            Evidence("operator", "operator", "aten::item"),
            Evidence("clock_mhz", "clock", float("nan")),
        ),
        thresholds=(Threshold("min_lost_pct", 5.0, 5.0, "judgement"),),
        cost=Cost(3_000_000.0, "waiting"),
        gain=Gain("replay", "", ("no-straggler",), 1e6, 2e6, 3e6, 4e7),
        advice=(Fix("Look at it.", "nvidia-smi"), Fix("And again.")),
        caveats=("Jitter.",),
    )


@pytest.mark.parametrize("name", ["report", "overlap"])
def test_the_schemas_are_valid(name):
    jsonschema.Draft202012Validator.check_schema(schema(name))


def test_a_real_report_fits(report):
    validator("report").validate(report)
    assert len(report["gpus"]) == 2
    assert [len(gpu["per_step"]) for gpu in report["gpus"]] == [3, 3]
    assert report["collectives"]
    [found] = report["findings"]
    assert [one["value"] for one in found["evidence"]] == [3000, "aten::item", None]
    assert found["evidence"][0]["key"] == "lost_us"
    assert found["gain"]["likely_pct"] == 5.0
    assert [one["rule"] for one in found["explains"]] == ["straggler-rank"]


@pytest.mark.parametrize("detail", [Detail.GPU, Detail.LAUNCHES])
def test_a_report_of_little_fits(detail):
    trace = build_trace(tiny(), detail=detail)
    document = rendered(engine.diagnose(trace, debug=True))
    validator("report").validate(document)
    gpu = document["gpus"][0]
    assert gpu["rank"] is None
    assert gpu["overlap_pct"] is None
    assert gpu["compute_us"] == 10.001
    assert (gpu["per_step"] is None) == (detail is Detail.GPU)
    # The copy has no launch: it belongs to no step.
    assert (gpu["unassigned"] is None) == (detail is Detail.GPU)


def test_a_trace_without_gpu_work_fits():
    document = rendered(engine.diagnose(build_trace(TraceBuilder(rank=0).step(1, 0, 5))))
    validator("report").validate(document)
    assert document["gpus"] == []
    assert document["quality"]["verdict"] == "not to be trusted"


@pytest.mark.parametrize("by", BY)
def test_every_overlap_table_fits(healthy, by):
    table = engine.run(engine.analyzers()["overlap"], healthy, by=by)
    text = _overlap.write(Diagnosis(healthy, {"overlap": table}), by, "json", Page())
    document = json.loads(text, parse_constant=pytest.fail)
    validator("overlap").validate(document)
    assert all((by in row) == (by != "rank") or by == "rank" for row in document["rows"])


def objects(document, path=()):
    if isinstance(document, dict):
        yield path
        for key, value in document.items():
            yield from objects(value, (*path, key))
    elif isinstance(document, list) and document:
        yield from objects(document[0], (*path, 0))


def test_a_key_that_is_not_described_fails_at_every_depth(report):
    check, paths = validator("report"), list(objects(report))
    assert ("gpus", 0, "per_step", 0) in paths
    assert ("gpus", 0, "unassigned") in paths
    for path in paths:
        changed = copy.deepcopy(report)
        place = changed
        for key in path:
            place = place[key]
        place["surprise"] = 1
        assert not check.is_valid(changed), path


def described(part: dict, path: tuple[str, ...] = ()):
    for key, value in part.get("properties", {}).items():
        yield (*path, key), value
        yield from described(value, (*path, key))
    for name, definition in part.get("$defs", {}).items():
        yield from described(definition, (*path, name))


@pytest.mark.parametrize("name", ["report", "overlap"])
def test_every_key_says_what_it_is_and_in_which_unit(name):
    units = {"_us": "icroseconds", "_pct": "percent", "_gb_per_s": "10^9 bytes per second"}
    found = list(described(schema(name)))
    assert found
    for path, value in found:
        if "$ref" not in value:
            assert value["description"], path
        for suffix, unit in units.items():
            if path[-1].endswith(suffix):
                assert unit in value["description"], path
        if path[-1].endswith("comm_us") and path[-1].startswith("exposed"):
            assert "waiting for late ranks" in value["description"]
