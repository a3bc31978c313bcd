"""What nccl-tests measured reaches the rules: which row, before what else, and what is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from diagnose import cli, engine
from diagnose.findings import Checked, Finding
from diagnose.readers import nccl_tests
from diagnose.rules._facts import Facts
from diagnose.rules._judge import Judging
from diagnose.rules._references import Asked, nccl_tests_reference
from diagnose.rules._settings import Settings
from diagnose.trace import Trace
from tests.unit.readers.test_nccl_tests import NEW
from tests.unit.rules import test_ib_path, test_slow_network
from tests.unit.rules.judging import trace_of, values

MIB_32 = 33_554_432


def table(collective: str, rows: dict[int, float], hosts: str = "aa") -> str:
    """As nccl-tests print it: the tables of ``test_nccl_tests`` with other rows."""
    head, _, _ = NEW.partition("           0             0")
    lines = head.replace("all_gather_perf_mpi", f"{collective}_perf").splitlines()
    devices = next(number for number, line in enumerate(lines) if "Using devices" in line)
    ranks = [
        f"#  Rank {rank:2} Group  0 Pid {rank + 9} on {host} device  0 [0000:02:00] NVIDIA H100"
        for rank, host in enumerate(hosts)
    ]
    lines = lines[: devices + 1] + ranks + lines[devices + 3 :]
    lines += [
        f"{size:12} {size // 4:12}     float     sum      -1   1000.00  {rate:.2f}  {rate:.2f}"
        f"       0   1000.00  {rate / 2:.2f}  {rate / 2:.2f}       0"
        for size, rate in rows.items()
    ]
    return "\n".join(lines) + "\n"


def judged(
    tmp_path: Path, trace: Trace, rule: str, text: str, **thresholds: float
) -> tuple[tuple[Finding, ...], Checked]:
    log = tmp_path / "nccl.log"
    log.write_text(text)
    changed = {rule: replace(engine.rules()[rule].thresholds, **thresholds)}
    judging = Judging(
        settings=Settings(thresholds=changed), select=(rule,), reference=nccl_tests.read(log)
    )
    diagnosis = engine.diagnose(trace, {}, judging=judging, debug=True)
    assert diagnosis.checked is not None
    return diagnosis.findings, diagnosis.checked


def referenced(tmp_path: Path, text: str, asked: Asked) -> tuple[float, str] | None:
    log = tmp_path / "nccl.log"
    log.write_text(text)
    facts = Facts(trace_of(*test_slow_network.ranks()), lambda *_: None, nccl_tests.read(log))
    found = nccl_tests_reference(facts, asked)
    return None if found is None else (found.busbw_gb_per_s, found.words)


def test_the_nearest_size_of_the_same_kind_and_group(tmp_path):
    text = table("all_reduce", {MIB_32 // 2: 70.0, MIB_32: 80.0, MIB_32 * 8: 90.0})
    text += table("all_gather", {MIB_32: 33.0})
    text += table("all_reduce", {MIB_32: 44.0}, hosts="aaaaaaaa")
    asked = Asked("all_reduce", MIB_32 * 1.1, 2, None)
    assert referenced(tmp_path, text, asked) == (
        80.0,
        "nccl-tests' all_reduce of 32.0 MiB on 2 ranks",
    )
    # 96 MiB are 3 times 32 MiB and 2.7 times less than 256.
    assert referenced(tmp_path, text, asked._replace(num_bytes=MIB_32 * 3))[0] == 90.0
    assert referenced(tmp_path, text, asked._replace(kind="all_gather"))[0] == 33.0
    assert referenced(tmp_path, text, asked._replace(group_size=8))[0] == 44.0


def test_no_row_of_another_group_kind_machine_or_far_size(tmp_path):
    text = table("all_reduce", {MIB_32: 80.0})
    asked = Asked("all_reduce", MIB_32, 2, 1)
    assert referenced(tmp_path, text, asked) is not None
    assert referenced(tmp_path, text, asked._replace(group_size=8)) is None
    assert referenced(tmp_path, text, asked._replace(group_size=None)) is None
    assert referenced(tmp_path, text, asked._replace(kind="reduce_scatter")) is None
    # Two ranks on two machines are not two ranks on one.
    assert referenced(tmp_path, text, asked._replace(num_hosts=2)) is None
    assert referenced(tmp_path, text, asked._replace(num_bytes=MIB_32 * 4.1)) is None


def test_a_table_that_says_its_machines_goes_before_one_that_does_not(tmp_path):
    unsaid = table("all_reduce", {MIB_32: 99.0}).replace(" on a device", " of a device")
    text = unsaid + table("all_reduce", {MIB_32 * 2: 40.0}, hosts="ab")
    asked = Asked("all_reduce", MIB_32, 2, 2)
    assert referenced(tmp_path, text, asked) == (
        40.0,
        "nccl-tests' all_reduce of 64.0 MiB on 2 ranks of 2 machines",
    )
    assert referenced(tmp_path, unsaid, asked)[0] == 99.0


def test_slow_network_fires_against_the_table_and_says_so(tmp_path):
    text = table("all_reduce", {MIB_32: 100.0, MIB_32 * 2: 120.0})
    trace = trace_of(*test_slow_network.ranks())
    # The table stands above the 40 GB/s of the configuration, of which 33.6 would be enough.
    findings, _ = judged(tmp_path, trace, "slow-network", text, measured_gb_per_s=40.0)
    [finding] = findings
    evidence = values(finding)
    assert evidence["of_reference_pct"] == pytest.approx(33.554432)
    assert evidence["reference"] == "nccl-tests' all_reduce of 32.0 MiB on 2 ranks"
    assert "33.6 % of 100.0 GB/s (nccl-tests' all_reduce of 32.0 MiB on 2 ranks)" in (
        finding.sentence
    )


def test_slow_network_is_silent_at_what_the_table_says(tmp_path):
    text = table("all_reduce", {MIB_32: 50.0})
    trace = trace_of(*test_slow_network.ranks())
    findings, checked = judged(tmp_path, trace, "slow-network", text)
    assert (findings, checked.clean) == ((), ("slow-network",))


def test_slow_network_is_not_judged_by_a_table_of_something_else(tmp_path):
    trace = trace_of(*test_slow_network.ranks())
    text = table("all_reduce", {MIB_32: 100.0}, hosts="aaaaaaaa")
    _, checked = judged(tmp_path, trace, "slow-network", text)
    assert [one.rule for one in checked.not_checked] == ["slow-network"]
    # What the configuration says holds where the table has no row.
    findings, _ = judged(tmp_path, trace, "slow-network", text, measured_gb_per_s=100.0)
    assert values(findings[0])["reference"] == "measured_gb_per_s of the configuration"


@pytest.mark.parametrize("variable", ["NCCL_P2P_DISABLE", "NCCL_ALGO"])
def test_rules_of_variables_know_the_table(tmp_path, variable):
    rule = {"NCCL_P2P_DISABLE": "transport-fallback", "NCCL_ALGO": "nccl-env-pinned"}[variable]
    trace = trace_of(*test_slow_network.ranks(), env={variable: "1"})
    findings, _ = judged(tmp_path, trace, rule, table("all_reduce", {MIB_32: 100.0}))
    assert values(findings[0])["of_reference_pct"] == pytest.approx(33.554432)
    findings, checked = judged(tmp_path, trace, rule, table("all_reduce", {MIB_32: 50.0}))
    assert (findings, checked.clean) == ((), (rule,))


def test_ib_path_takes_both_runs_from_one_file(tmp_path):
    within = table("all_reduce", {MIB_32: 100.0})
    between = table("all_reduce", {MIB_32: 50.0}, hosts="ab")
    findings, _ = judged(tmp_path, test_ib_path.trace(), "ib-path", within + between)
    evidence = values(findings[0])
    # As in test_ib_path, where both are set by hand.
    assert evidence["of_measured_pct"] == pytest.approx(33.554432)
    assert evidence["within_pct"] == pytest.approx(83.88608)
    assert evidence["reference"] == "nccl-tests' all_reduce of 32.0 MiB on 2 ranks of 2 machines"
    assert evidence["within_reference"] == "nccl-tests' all_reduce of 32.0 MiB on 2 ranks"


def test_ib_path_is_not_judged_by_one_of_the_two_runs(tmp_path):
    for text in (table("all_reduce", {MIB_32: 100.0}), table("all_reduce", {MIB_32: 50.0}, "ab")):
        findings, checked = judged(tmp_path, test_ib_path.trace(), "ib-path", text)
        assert not findings
        assert [one.rule for one in checked.not_checked] == ["ib-path"]


def test_the_option_of_the_command_line_reaches_the_rules(tmp_path, capsys):
    for builder in test_slow_network.ranks():
        builder.write(tmp_path)
    log = tmp_path / "nccl.log"
    log.write_text(table("all_reduce", {MIB_32: 100.0}))
    arguments = ["report", str(tmp_path / "rank*.json"), "--select", "slow-network"]
    arguments += ["--format", "json"]
    assert cli.execute([*arguments, "--nccl-tests", str(log)]) == 0
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert "nccl-tests' all_reduce of 32.0 MiB on 2 ranks" in finding["sentence"]
    assert cli.execute(arguments) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
