"""The JSON of the verbs across ranks fits its schema, and the schema leaves nothing open."""

from __future__ import annotations

import copy
import json
from importlib import resources

import jsonschema
import pytest

from diagnose import cli
from tests.text import jobs

NAMES = ("ranks", "stalls", "critical_path", "comparison", "contention", "whatif")


def schema(name):
    text = resources.files("diagnose").joinpath("schemas", f"{name}.schema.json").read_text()
    return json.loads(text)


def validator(name):
    return jsonschema.Draft202012Validator(schema(name))


def said(capsys, *arguments):
    assert cli.execute([*arguments, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def documents(capsys, recordings, name):
    path = str(recordings / "straggler")
    if name == "comparison":
        other = str(recordings / "host_sync")
        yield said(capsys, "compare", path, other)
        yield said(capsys, "compare", path, other, "--fail-on-regression", "50")
    elif name == "whatif":
        yield said(capsys, "whatif", path)
        yield said(capsys, "whatif", path, "--change", "no-straggler", "--change", "cuda-graph")
        yield said(capsys, "whatif", "--list")
    elif name == "stalls":
        for by in ("cause", "step", "interval"):
            yield said(capsys, "stalls", path, "--by", by)
    elif name == "contention":
        for by in ("collective", "family", "kernel", "step"):
            yield said(capsys, "contention", path, "--by", by)
        yield said(capsys, "contention", path, "--alone", str(recordings / "host_sync"))
    else:
        yield said(capsys, name.replace("_", "-"), path)


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_is_valid_and_real_output_fits(name, recordings, capsys):
    jsonschema.Draft202012Validator.check_schema(schema(name))
    for document in documents(capsys, recordings, name):
        validator(name).validate(document)


def objects(document, path=()):
    if isinstance(document, dict):
        yield path
        for key, value in document.items():
            yield from objects(value, (*path, key))
    elif isinstance(document, list) and document:
        yield from objects(document[0], (*path, 0))


@pytest.mark.parametrize("name", NAMES)
def test_a_key_that_is_not_described_fails_at_every_depth(name, recordings, capsys):
    document = next(documents(capsys, recordings, name))
    # One row of each list is enough, and keeps this fast.
    document = {k: v[:1] if isinstance(v, list) else v for k, v in document.items()}
    check, paths = validator(name), list(objects(document))
    assert len(paths) > 1
    for path in paths:
        changed = copy.deepcopy(document)
        place = changed
        for key in path:
            place = place[key]
        place["surprise"] = 1
        assert not check.is_valid(changed), path


def described(part):
    for value in part.get("properties", {}).items():
        yield value
        yield from described(value[1])
    for inner in (part.get("items"), *part.get("oneOf", ())):
        if inner is not None:
            yield from described(inner)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_says_what_it_is_and_in_which_unit(name):
    units = {"_us": "icroseconds", "_pct": "ercent", "_gb_per_s": "10^9 bytes per second"}
    found = list(described(schema(name)))
    assert len(found) > 10
    for key, value in found:
        assert value["description"], key
        for suffix, unit in units.items():
            if key.endswith(suffix):
                assert unit in value["description"], key
        if key in ("exposed_comm_us", "exposed_us"):
            assert "waiting for late ranks" in value["description"]


def test_hostile_names_reach_no_terminal(tmp_path, capsys):
    """What a name holds stays text, in every verb that prints names."""
    from tests.builder import TraceBuilder

    builder = TraceBuilder(rank=0, world_size=1)
    for step in range(3):
        t = step * 100
        builder.step(step + 1, t, 100)
        builder.kernel(jobs.HOSTILE, t + 10, 20, launch=t + 1)
        builder.collective("allreduce", t + 40, 20, group=jobs.HOSTILE, launch=t + 2)
    path = str(builder.write(tmp_path))
    for arguments in (["stalls", path], ["stalls", path, "--by", "interval"]):
        assert cli.execute(arguments) == 0
        assert "\x1b" not in capsys.readouterr().out
    for arguments in (["critical-path", path], ["compare", path, path]):
        assert cli.execute(arguments) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\\x1b[31m" in out
        assert max(len(line) for line in out.splitlines()) <= 130
