"""What must hold of a recording of several GPUs: the checks themselves, on kept recordings."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

from benchmarks.gpu import several, several_checks, two_ranks
from benchmarks.gpu.several_checks import Check, busbw_alone, checks

ROOT = Path(__file__).parents[3]
RECORDINGS = ROOT / "examples" / "recordings"
MIB = 1 << 20
# Of two ranks: 32 MiB in 0.1 ms are 33.6e6 / 0.1e-3 * 2 (2 - 1) / 2 = 335.5 GB/s.
ALONE = {"all_reduce": {str(MIB): 0.02, str(32 * MIB): 0.1, str(256 * MIB): 0.8}}


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    path = tmp_path / "alone.json"
    path.write_text(json.dumps(ALONE))
    return path


def of(folder: Path, job: str, alone: Path) -> dict[str, Check]:
    return {check.name: check for check in checks(folder, job, alone)}


@pytest.mark.parametrize(
    ("kind", "size", "world", "expected"),
    [
        ("all_reduce", 32 * MIB, 2, 32 * MIB / 0.1e-3 / 1e9),
        ("all_reduce", 32 * MIB, 8, 32 * MIB / 0.1e-3 / 1e9 * 14 / 8),
        ("all_gather", 32 * MIB, 4, 32 * MIB / 0.1e-3 / 1e9 * 3 / 4),
        ("send_recv", 32 * MIB, 4, 32 * MIB / 0.1e-3 / 1e9),
        # Half way from 32 to 256 MiB takes half way from 0.1 to 0.8 ms; beyond, in proportion.
        ("all_reduce", 144 * MIB, 2, 144 * MIB / 0.45e-3 / 1e9),
        ("all_reduce", 512 * MIB, 2, 512 * MIB / 1.6e-3 / 1e9),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(kind, size, world, expected):
    assert busbw_alone(kind, size, ALONE["all_reduce"], world) == pytest.approx(expected)


def test_all_holds_of_a_right_recording(alone):
    found = of(RECORDINGS / "healthy", "healthy", alone)
    assert [one.name for one in found.values() if not one.holds] == []
    assert found["same step"].saw == "(3, 4, 5)"
    assert re.match(r"33,\d+,\d+ bytes: 3\d\d\.\d GB/s", found["bus bandwidth of all_reduce"].saw)


def test_a_fault_is_found_where_it_was_planted_and_not_elsewhere(alone):
    found = of(RECORDINGS / "straggler", "straggler", alone)
    assert all(one.holds for one in found.values())
    assert found["finds straggler-rank"].saw == "on ranks [(1,)]"
    planted_elsewhere = of(RECORDINGS / "straggler", "healthy", alone)
    assert not planted_elsewhere["finds nothing else"].holds
    missed = of(RECORDINGS / "healthy", "straggler", alone)
    assert not missed["finds straggler-rank"].holds


def test_another_bandwidth_fails(tmp_path):
    slow = tmp_path / "alone.json"
    slow.write_text(json.dumps({"all_reduce": {str(32 * MIB): 0.2}}))
    assert not of(RECORDINGS / "healthy", "healthy", slow)["bus bandwidth of all_reduce"].holds


def test_windows_of_other_steps_fail(tmp_path, alone):
    folder = tmp_path / "recording"
    shutil.copytree(RECORDINGS / "healthy", folder)
    path = folder / "rank00001.trace.json.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    path.write_bytes(gzip.compress(text.replace("ProfilerStep#5", "ProfilerStep#6").encode()))
    assert not of(folder, "healthy", alone)["same step"].holds


def test_the_jobs_are_the_same_in_all_places():
    text = (ROOT / "benchmarks" / "gpu" / "jobs" / "several.py").read_text()
    assert f"JOBS = {several.JOBS}".replace("'", '"') in text
    assert set(several_checks.MUST) == set(several.JOBS)


def test_ranks_share_a_gpu_only_where_there_are_too_few(monkeypatch):
    monkeypatch.setattr(two_ranks, "num_gpus", lambda: 4)
    assert two_ranks.environment(4) == {}
    assert two_ranks.environment(8)["ALL_ON_GPU0"] == "1"
    assert two_ranks.launcher(4)[3:5] == ["--nproc-per-node", "4"]
