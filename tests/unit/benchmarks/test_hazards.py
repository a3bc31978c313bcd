"""The gallery of hazards and the recordings kept of it.

The kept ones are whole, tell no machine's paths, and were what is said; a dry run makes its files.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import diagnose
from benchmarks.gpu.hazards import keep

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "hazards"
PLANTED = json.loads((DATA / "planted.json").read_text())
MACHINE = re.compile(r'(?<![\w.])/(?:home|opt|root|tmp|usr|var|work)/[^"]*')


def test_every_recording_has_its_twin():
    folders = {path.name for path in DATA.iterdir() if path.is_dir()}
    assert len(PLANTED) == 21
    assert folders == {f"{name}.{twin}" for name in PLANTED for twin in ("racy", "repaired")}


@pytest.mark.parametrize("name", PLANTED)
def test_racy_twins_came_out_wrong_where_planted_and_repaired_ones_never(name):
    facts = PLANTED[name]
    wrong = [count > 0 for count in facts["wrong_elements"]["racy"]]
    assert wrong == [step in facts["racy_steps"] for step in facts["recorded_steps"]]
    assert facts["wrong_elements"]["repaired"] == [0, 0, 0]


@pytest.mark.parametrize("twin", ["racy", "repaired"])
@pytest.mark.parametrize("name", PLANTED)
def test_a_recording_loads_and_tells_no_paths(name, twin):
    folder = DATA / f"{name}.{twin}"
    for path in folder.iterdir():
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        assert not MACHINE.findall(text), path.name
    trace = diagnose.load(folder).trace
    assert len(trace.gpu_ops)
    assert len(trace.host_ops)


TRACE = """{"schemaVersion": 1, "traceEvents": [
  {"ph": "X", "cat": "python_function", "name": "/home/me/hazards/recorder.py(130): start",
   "ts": 1, "dur": 9, "args": {"Python id": 1, "Python parent id": null}},
  {"ph": "X", "cat": "python_function", "name": "inside", "ts": 2, "dur": 3,
   "args": {"Python id": 2, "Python parent id": 1}},
  {"ph": "X", "cat": "python_function", "name": "/home/me/hazards/programs.py(40): step",
   "ts": 20, "dur": 9, "args": {"Python id": 3, "Python parent id": null}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mul", "ts": 21, "dur": 2, "args": {}}
], "traceName": "/tmp/h/rank00000.trace.json"}"""


def written(folder, modified):
    """One program's recordings as the gallery leaves them, compressed at the given time."""
    names = {**dict.fromkeys(keep.FACTS, ""), "program": "one", "sanitizer": True}
    result = {**names, "recorded_steps": [2, 3, 4]}
    for twin, wrong in (("racy", [7, 7, 1, 2, 3]), ("repaired", [0] * 5)):
        recording = folder / "one" / twin
        recording.mkdir(parents=True)
        for name, text in ((keep.TRACE, TRACE), (keep.EXECUTION_TRACE, '{"nodes": []}')):
            (recording / name).write_bytes(gzip.compress(text.encode(), 1, mtime=modified))
        environment = {"gpu": {"uuid": "GPU-1"}, "env": {"PLACE": "/home/me", "RANK": "0"}}
        (recording / keep.ENVIRONMENT).write_text(json.dumps(environment))
        (recording / "sanitizer.json").write_text('{"status": 0, "races": 0}')
        result[twin] = {"elements": 9, "wrong_elements_per_step": wrong}
    (folder / "one" / "result.json").write_text(json.dumps(result))


def kept(folder, out, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["keep", str(folder), str(out)])
    keep.main()
    return {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_keeping_gives_the_same_bytes_whenever_it_was_recorded_and_kept(tmp_path, monkeypatch):
    written(tmp_path / "a", 1)
    written(tmp_path / "b", 2_000_000)
    first = kept(tmp_path / "a", tmp_path / "kept_a", monkeypatch)
    assert first == kept(tmp_path / "b", tmp_path / "kept_b", monkeypatch)
    assert len(first) == 9


def test_keeping_leaves_out_the_recorder_and_the_machine(tmp_path, monkeypatch):
    written(tmp_path / "a", 1)
    files = kept(tmp_path / "a", tmp_path / "kept", monkeypatch)
    trace = json.loads(gzip.decompress(files[Path("one.racy") / keep.TRACE]))
    names = ["hazards/recorder.py(130): start", "hazards/programs.py(40): step", "aten::mul"]
    assert [event["name"] for event in trace["traceEvents"]] == names
    assert trace["traceName"] == "rank00000.trace.json"
    environment = json.loads(files[Path("one.racy") / keep.ENVIRONMENT])
    assert environment == {"gpu": {"uuid": keep.UUID}, "env": {"RANK": "0"}}
    facts = json.loads(files[Path("planted.json")])["one"]
    assert facts["wrong_elements"] == {"racy": [1, 2, 3], "repaired": [0, 0, 0]}


def test_a_dry_run_makes_its_files(tmp_path):
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "benchmarks.gpu.hazards", "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, "--only", "overlapping_views", "--no-sanitizer"],
        cwd=ROOT,
        env={**os.environ, "HAZARDS_DRY": "1"},
        timeout=300,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "overlapping_views" / "result.json").read_text())
    assert result["dry"]
    assert result["kind"] == "read-after-write"
    for twin in ("racy", "repaired"):
        assert not [key for key in result[twin] if key.endswith("error")], result[twin]
        # On the CPU nothing races.
        assert result[twin]["wrong_elements_per_step"] == [0] * 5
        names = {path.name for path in (tmp_path / "overlapping_views" / twin).iterdir()}
        assert {keep.TRACE, keep.EXECUTION_TRACE, keep.ENVIRONMENT} <= names
