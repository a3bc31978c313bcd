"""What is printed of a real recording equals an independent count, figure by figure."""

from __future__ import annotations

import json
import re
from decimal import ROUND_HALF_UP, Decimal

import pytest

from diagnose import cli
from tests.oracle import brute_force

RECORDING = "examples/recordings/straggler"
KEYS = {
    "compute_us": "compute_ns",
    "comm_us": "communication_ns",
    "memory_us": "memory_ns",
    "overlapped_us": "overlapped_ns",
    "exposed_comm_us": "exposed_communication_ns",
    "busy_us": "busy_ns",
    "window_us": "window_ns",
    "idle_us": "idle_ns",
    "step_us": "step_ns",
    "gpu_event_count": "num_ops",
}


@pytest.fixture(scope="module")
def counted(root):
    """For each rank the brute-force measures of the GPU and of its steps."""
    ranks = {}
    for rank in (0, 1):
        ops, marks = brute_force.read(root / RECORDING / f"rank{rank:05d}.trace.json.gz")
        ranks[rank] = (brute_force.by_rank(ops), brute_force.by_step(ops, marks))
    return ranks


@pytest.fixture
def printed(root, monkeypatch, capsys):
    """What a verb prints of the recording."""
    monkeypatch.chdir(root)
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*arguments: str) -> str:
        assert cli.execute([*arguments, RECORDING]) == 0
        return capsys.readouterr().out

    return run


def same(record: dict, measured: dict) -> bool:
    """Whether every figure of a record is the measured one, to the nanosecond."""
    for key, value in record.items():
        if key in KEYS:
            expected = measured.get(KEYS[key])
            if key != "gpu_event_count":
                value = None if value is None else value * 1000
            assert value == expected, key
    return True


def test_the_json_is_exact(printed, counted):
    report = json.loads(printed("report", "--format", "json"), parse_float=Decimal)
    assert [gpu["rank"] for gpu in report["gpus"]] == [0, 1]
    for gpu in report["gpus"]:
        whole, steps = counted[gpu["rank"]]
        assert same(gpu, whole)
        assert [step["step"] for step in gpu["per_step"]] == [s["step"] for s in steps[:-1]]
        assert all(map(same, gpu["per_step"], steps))
        assert same(gpu["unassigned"], steps[-1])
        assert gpu["num_steps"] == len(steps) - 1


def ms(nanoseconds: int | None) -> str:
    if nanoseconds is None:
        return "-"
    return str((Decimal(nanoseconds) / 10**6).quantize(Decimal("0.01"), ROUND_HALF_UP))


def pct(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}"


def block(text: str, title: str) -> list[list[str]]:
    """The rows of a table: cells between its heading and what follows."""
    lines = text.split(f"\n{title}\n")[1].splitlines()
    rows = [line.split() for line in lines if re.match(r"\s*\d", line)]
    return [row for row in rows if row[0] in ("0", "1")]


def test_the_text_shows_these_figures(printed, counted):
    text = printed("report")
    gpus = block(text.split("\nSteps\n")[0], "GPUs")
    assert len(gpus) == 2
    for row in gpus:
        whole = counted[int(row[0])][0]
        times = [ms(whole[f"{name}_ns"]) for name in ("window", *brute_force._KINDS[:2])]
        hidden, exposed = whole["overlapped_ns"], whole["exposed_communication_ns"]
        assert row[2:5] == times
        assert row[5:7] == [ms(hidden), ms(exposed)]
        assert row[7] == pct(hidden, whole["communication_ns"])
        assert row[-1] == ms(whole["idle_ns"])
    steps = block(text.split("\nCollectives\n")[0], "Steps")
    assert len(steps) == 8
    expected = [(rank, step) for rank in (0, 1) for step in counted[rank][1]]
    for row, (rank, step) in zip(steps, expected, strict=True):
        name = "none" if step["step"] is None else step["step"].removeprefix("ProfilerStep#")
        assert row[:3] == [str(rank), "0", name]
        assert row[3] == str(step["num_ops"])
        assert row[4] == ms(step.get("step_ns"))
        assert row[5] == ms(step["communication_ns"])
        assert row[6] == ms(step["exposed_communication_ns"])
        assert row[8] == pct(step["overlapped_ns"], step["communication_ns"])
        assert row[9] == ms(step.get("idle_ns"))


def test_it_says_that_waiting_is_included(printed):
    for arguments in (("report",), ("report", "--format", "markdown"), ("overlap",)):
        text = printed(*arguments)
        assert "exposed" in text
        assert "includes waiting for late ranks" in text


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("report", "--select", "straggler-rank"), "straggler.txt"),
        (("info",), "straggler_info.txt"),
    ],
)
def test_the_whole_output(printed, root, arguments, name):
    expected = (root / "tests/text/real" / name).read_text(encoding="utf-8")
    text = printed(*arguments)
    assert text == expected, f"\n{text}"
