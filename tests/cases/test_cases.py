"""Every expectation of every case, through ``diagnose.readers.read`` and the analyses."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cases import mapping, runner

DATA = Path(__file__).parent / "data"
LARGE_COPIES = 50_000
TEXT_BYTES = 299_790_076


def runs() -> list[tuple[Path, dict[str, Any], dict[str, Any]]]:
    """(folder, case, run) of every run of every case."""
    found = []
    for path in sorted(DATA.glob("*/expected.json")):
        case = json.loads(path.read_text())
        found += [(path.parent, case, run) for run in case["runs"]]
    return found


def name_of(folder: Path, run: dict[str, Any], *more: str) -> str:
    return "-".join([folder.name, run["files"][0].removesuffix(" OUT"), *more])


def small() -> list[Any]:
    """Runs to compare now; files that a script makes are made plain and compressed."""
    found = []
    for folder, case, run in runs():
        if is_large(run) or case["kind"] == "attach":
            continue
        suffixes = ["", ".gz"] if " " in run["files"][0] else [""]
        for suffix in suffixes:
            label = name_of(folder, run, *([suffix] if suffix else []))
            found.append(pytest.param(folder, case, run, suffix, id=label))
    return found


def is_large(run: dict[str, Any]) -> bool:
    return f" {LARGE_COPIES} " in run["files"][0]


@pytest.mark.parametrize(("folder", "case", "run", "suffix"), small())
def test_case(folder, case, run, suffix, tmp_path):
    files = runner.make_files(folder, run["files"], tmp_path, suffix)
    given = runner.Run(files, case["tolerance_us"])
    assert list(runner.failures(given, run["expect"])) == []


ATTACH = [(folder, run) for folder, case, run in runs() if case["kind"] == "attach"]


@pytest.mark.parametrize(("folder", "run"), ATTACH, ids=[f.name for f, _ in ATTACH])
def test_attach_case(folder, run):
    assert list(mapping.failures([folder / name for name in run["files"]], run["expect"])) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"uuid": [2]}, "uuid: [1], expected [2]"),
        ({"mig": [2]}, "mig: [{'parent': 2, 'mig': True}], expected [2]"),
        ({"ambiguous-short-uuid": []}, "ambiguous-short-uuid: unknown"),
        ({"unheard-of": [0]}, "there are"),
    ],
)
def test_an_attach_case_can_fail(change, complaint):
    [(folder, run)] = [found for found in ATTACH if found[0].name == "attach-which-gpu-is-cuda0"]
    expect = {"mapping": run["expect"]["mapping"] | change}
    assert complaint in "".join(mapping.failures([folder / "input.json"], expect))
    assert "only a mapping" in "".join(mapping.failures([folder / "input.json"], {"hosts": []}))


LARGE = [(folder, case, run) for folder, case, run in runs() if is_large(run)]


@pytest.fixture(scope="module")
def large_file(tmp_path_factory):
    """The text of the large case: writing it takes longer than reading it, so once for all."""
    [(folder, _, run)] = LARGE
    (file,) = runner.make_files(folder, run["files"], tmp_path_factory.mktemp("large"))
    yield file
    file.unlink()


def compressed(file, target):
    """The same as ``.gz``. Fast rather than small: what is read is the same text."""
    with file.open("rb") as text, gzip.open(target, "wb", compresslevel=1) as packed:
        shutil.copyfileobj(text, packed, 2**20)
    return target


@pytest.mark.large
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(("case", "run"), [(c, r) for _, c, r in LARGE], ids=[LARGE[0][0].name])
def test_large_case_in_bounded_memory(case, run, suffix, large_file, tmp_path):
    """All columns of 300 MB of text, and the analyses, in less memory than the text alone."""
    file = compressed(large_file, tmp_path / "trace.json.gz") if suffix else large_file
    answer = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.cases.runner",
            str(file),
            json.dumps(run["expect"]),
            str(case["tolerance_us"]),
        ],
        env={**os.environ, "PYTHONPATH": str(DATA.parents[2])},
        cwd=DATA.parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    if suffix:
        file.unlink()
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["failures"] == []
    assert found["peak_bytes"] < TEXT_BYTES


def test_there_are_cases():
    assert len({folder for folder, _, _ in runs()}) >= 28
    assert len(LARGE) == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"unheard_of": 1}, "unheard_of: the runner does not know"),
        ({"load": "partial"}, "load: ok"),
        ({"must_warn": ["truncated"]}, "no note 'truncated'"),
        ({"must_warn": ["hello"]}, "unknown word 'hello'"),
        ({"gpu_event_count": 6}, "gpu_event_count: 5"),
        ({"steps": 2}, "steps: [1]"),
        ({"steps": 2, "any_of": [{"ranks": [0]}, {"ranks": [1]}]}, "steps: [1]"),
        ({"any_of": [{"ranks": [1]}, {"ranks": [2]}]}, "ranks: [0]"),
        ({"gpus": []}, "gpus: [(0, 0)]"),
        ({"gpus": [{"rank": None, "device": 0}]}, "gpus: [(0, 0)]"),
        ({"gpus": [{"rank": 0, "device": 0, "compute_us": 310.002}]}, "compute_us: 310.0"),
        ({"gpus": [{"rank": 0, "device": 0, "overlap_pct": None}]}, "overlap_pct: 85.0"),
        ({"gpus": [{"rank": 0, "device": 0, "colour": 1}]}, "does not know 'colour'"),
        ({"per_step": [{"step": "ProfilerStep#8"}]}, "no row for 'ProfilerStep#8'"),
        ({"classification": [{"name": "no such", "class": "compute"}]}, "classification"),
        ({"collectives": [{"bytes": 1}]}, "bytes"),
        ({"contention": [{"kernel": "no such", "slowdown": 1.1}]}, "contention: "),
        ({"findings": {"must": [{"id": "host-sync"}]}}, "no 'host-sync'"),
        ({"findings": {"must_not": ["no-such-rule"]}}, "there is no rule 'no-such-rule'"),
        ({"findings": {"may": []}}, "does not know ['may']"),
    ],
)
def test_the_runner_can_fail(change, complaint):
    """On a file that is fine, a wrong expectation has to be noticed."""
    run = runner.Run([DATA / "scale-many-copies" / "seed.json"], 0.001)
    assert any(complaint in failure for failure in runner.failures(run, change))
