"""The verbs ``rules`` and ``explain``, and what options about rules do to ``report``."""

from __future__ import annotations

import json
import re

import pytest

from diagnose import cli, engine
from tests.unit.rules.test_straggler_rank import ranks


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Three ranks of which the last is late: one finding at least."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "traces"
    folder.mkdir()
    for builder in ranks(500, 510, 900):
        builder.write(folder)
    return str(folder)


def report(job: str, *options: str) -> int:
    return cli.execute(["report", job, *options])


def rules_of(out: str) -> list[str]:
    return [one["rule"] for one in json.loads(out)["findings"]]


def test_select_and_ignore(job, capsys):
    assert report(job, "--format", "json", "--select", "straggler-rank,host-sync") == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["rule"] for one in document["findings"]] == ["straggler-rank"]
    assert document["not_checked"] == []
    assert document["clean"] == ["host-sync"]
    assert report(job, "--format", "json", "--ignore", "straggler-rank") == 0
    assert "straggler-rank" not in rules_of(capsys.readouterr().out)


@pytest.mark.parametrize("option", ["--select", "--ignore"])
def test_a_rule_that_does_not_exist_is_refused(job, capsys, option):
    assert report(job, option, "stragler-rank") == 2
    said = capsys.readouterr().err
    assert f"{option}: there is no rule 'stragler-rank'" in said
    assert "did you mean straggler-rank?" in said


def test_fail_on_sets_the_exit_status(job, capsys):
    select = ("--select", "straggler-rank", "--format", "json")
    assert report(job, *select) == 0
    [found] = json.loads(capsys.readouterr().out)["findings"]
    order = ["hint", "info", "warning", "critical"]
    for level in order:
        expected = 1 if order.index(found["severity"]) >= order.index(level) else 0
        assert report(job, *select, "--fail-on", level) == expected
    assert report(job, "--select", "host-sync", "--fail-on", "hint") == 0
    assert report(job, "--fail-on", "grave") == 2


def test_a_baseline_accepts_what_is_there(job, tmp_path, capsys):
    baseline = str(tmp_path / "accepted.json")
    select = ("--select", "straggler-rank,exposed-communication")
    assert report(job, *select, "--write-baseline", baseline, "--fail-on", "hint") == 1
    keys = [one["key"] for one in json.loads((tmp_path / "accepted.json").read_text())["accepted"]]
    assert "straggler-rank@rank 2" in keys
    capsys.readouterr()
    assert report(job, *select, "--baseline", baseline, "--fail-on", "hint") == 0
    text = capsys.readouterr().out
    assert "Accepted by the baseline: " in text
    assert "straggler-rank@rank 2" in text
    assert "nothing that was found here" not in text
    assert report(job, "--select", "straggler-rank", "--baseline", baseline) == 0
    others = len(keys) - 1
    said = "1 entry of it matches" if others == 1 else f"{others} entries of it match"
    assert f"{said} nothing that was found here" in " ".join(capsys.readouterr().out.split())
    # Written again, it still holds what it accepted.
    again = str(tmp_path / "again.json")
    assert report(job, *select, "--baseline", baseline, "--write-baseline", again) == 0
    assert (tmp_path / "again.json").read_text() == (tmp_path / "accepted.json").read_text()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read the baseline"),
        ("{", "is not JSON"),
        ("[]", "is no baseline of format 1"),
        ('{"format": 2, "accepted": []}', "is no baseline of format 1"),
        ('{"format": 1, "accepted": [{}]}', "has no key"),
    ],
)
def test_a_baseline_that_is_none_is_refused(job, tmp_path, capsys, content, said):
    path = tmp_path / "b.json"
    if content is not None:
        path.write_text(content)
    assert report(job, "--baseline", str(path)) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "--write-baseline" in err


def test_a_baseline_never_replaces_an_input(job, capsys):
    trace = f"{job}/rank00000.trace.json"
    assert cli.execute(["report", trace, "--write-baseline", trace]) == 2
    assert "would replace it" in capsys.readouterr().err


def test_a_baseline_that_cannot_be_written_is_told_with_its_option(job, tmp_path, capsys):
    assert report(job, "--write-baseline", str(tmp_path / "missing" / "b.json")) == 2
    assert "give --write-baseline a file in a folder that exists" in capsys.readouterr().err


def test_rules_that_the_settings_ignore_are_named(job, tmp_path, capsys):
    config = tmp_path / "mine.toml"
    config.write_text('ignore = ["work-imbalance"]\n')
    assert report(job, "--config", str(config)) == 0
    text = capsys.readouterr().out
    assert "Left out by choice: work-imbalance." in text
    assert f"Settings from {config}" in re.sub(r"\s+", " ", text)
    assert report(job, "--config", str(config), "--select", "host-sync") == 0
    assert "Settings from" not in capsys.readouterr().out


def test_config_changes_thresholds_and_the_report_says_so(job, tmp_path, capsys):
    config = tmp_path / "mine.toml"
    config.write_text("[rules.straggler-rank]\nmin_lost_pct = 45\n")
    select = ("--select", "straggler-rank")
    assert report(job, *select, "--config", str(config)) == 0
    text = capsys.readouterr().out
    assert "holds the others up in" not in text.split("Across ranks")[0]
    assert f"Settings from {config}" in text
    (tmp_path / "diagnose.toml").write_text("[rules.straggler-rank]\nmin_lost_pct = 30\n")
    assert report(job, *select, "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    [found] = document["findings"]
    [threshold] = [one["threshold"] for one in found["evidence"] if one["key"] == "lost_pct"]
    assert (threshold["value"], threshold["default"]) == (30, 5)
    assert document["settings"] == str(tmp_path / "diagnose.toml")


def test_text_has_finding_evidence_gain_and_advice(job, capsys):
    assert report(job, "--select", "straggler-rank") == 0
    text = capsys.readouterr().out
    section = text.split("\nFindings\n")[1].split("\nAcross ranks\n")[0]
    assert "straggler-rank: Everybody waits for one rank" in section
    assert "the others lose a step 390.0 us" in section
    assert "share of the step 39.0 % [min_lost_pct 5]" in section
    assert "do 1. " in section
    assert all(len(line) <= 100 for line in section.splitlines())


def test_markdown_escapes_and_numbers_the_advice(job, capsys):
    assert report(job, "--select", "straggler-rank", "--format", "markdown") == 0
    text = capsys.readouterr().out
    assert "#### 1. straggler-rank: Everybody waits for one rank (" in text
    assert "\\[min\\_lost\\_pct 5\\]" in text
    assert "\n1. " in text


def test_what_is_not_checked_is_grouped_by_its_reason(job, capsys):
    assert report(job, "--select", "power-capped,debug-env-on") == 0
    text = capsys.readouterr().out
    assert "Not checked: no telemetry: power-capped; record with" in text
    assert "Not checked: the environment of the job is not known: debug-env-on;" in text


def test_rules_lists_all(capsys):
    assert cli.execute(["rules"]) == 0
    text = capsys.readouterr().out
    assert cli.execute(["rules", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rules"]
    assert [row["rule"] for row in rows] == list(engine.rules())
    for row in rows:
        assert row["rule"] in text
    [straggler] = [row for row in rows if row["rule"] == "straggler-rank"]
    assert straggler["needs"] == ["communication", "several ranks"]
    assert straggler["thresholds"][0]["name"] == "min_lost_pct"


@pytest.mark.parametrize("rule", engine.rules())
def test_explain_prints_the_page(rule, capsys):
    assert cli.execute(["explain", rule]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{rule}: ")
    for section in engine.rules()[rule].page.sections:
        assert f"\n{section}\n" in text
    assert all(len(line) <= 100 for line in text.splitlines()), rule


def test_whatever_is_pointed_to_can_be_explained(capsys):
    assert cli.execute(["explain", "folklore"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    named = {name for part in re.findall(r"\(see ([a-z, -]+)\)", said) for name in part.split(", ")}
    assert cli.execute(["rules", "--format", "json"]) == 0
    for row in json.loads(capsys.readouterr().out)["rules"]:
        named |= set(row["explains"])
    assert len(named) > 10
    assert named <= set(engine.rules())


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("folklore", "Set CUDA_DEVICE_MAX_CONNECTIONS=8."),
        ("variables", "NCCL_MAX_NCHANNELS"),
        ("HSA_OVERSUBSCRIPTION", "not found (no effect)"),
        ("cuda_device_max_connections", "documented, default 8"),
        ("NCCL_MAX_NCHANNELS", "deprecated"),
        ("check-sync", "missing-stream-sync"),
        ("Races", "missing-stream-sync"),
    ],
)
def test_explain_knows_folklore_and_variables(topic, said, capsys):
    assert cli.execute(["explain", topic]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("topic", "hint"),
    [
        ("hostsync", "host-sync"),
        ("NCCL_ALGOS", "NCCL_ALGO"),
        ("xyzzy", "diagnose rules"),
        ("XYZZY_1", "diagnose explain variables"),
    ],
)
def test_explain_says_what_it_may_have_been(topic, hint, capsys):
    assert cli.execute(["explain", topic]) == 2
    assert hint in capsys.readouterr().err
