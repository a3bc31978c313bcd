"""A tiled trace is the original n times, to the nanosecond."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tile import tile

Event = dict[str, Any]


def _events(path: Path) -> list[Event]:
    document = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    events: list[Event] = document["traceEvents"]
    return events


def _original(folder: Path) -> Path:
    """Kineto's layout: a step, a launch, a kernel one nanosecond long, a flow, metadata."""
    path = folder / "original.json"
    path.write_text(
        """{
  "schemaVersion": 1,
  "traceEvents": [
  {
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 1,
    "ts": 1790857026000000.000, "dur": 10.500
  },
  {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
    "ts": 1790857026000001.001, "dur": 2.000,
    "args": {
      "External id": 5, "cbid": 211, "correlation": 7
    }
  },
  {
    "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7,
    "ts": 1790857026000020.123, "dur": 0.001,
    "args": {
      "External id": 5, "device": 0, "stream": 7, "correlation": 7
    }
  },
  {
    "ph": "s", "id": 7, "pid": 1, "tid": 1, "ts": 1790857026000001.001,
    "cat": "ac2g", "name": "ac2g"
  },
  {
    "name": "process_name", "ph": "M", "ts": 0, "pid": 1, "tid": 0,
    "args": {
      "name": "python"
    }
  }
  ],
  "traceName": "original.json"
}
""",
        encoding="utf-8",
    )
    return path


def test_copies_are_shifted_by_whole_periods_and_get_fresh_ids(tmp_path: Path) -> None:
    target = tmp_path / "tiled.json"
    made = tile(_original(tmp_path), target, copies=3, steps=2)
    # From the launch at .001001 to the kernel's end at .020124, 50 us apart, in whole us.
    assert made.period_ns == 70_000
    kernels = [event for event in _events(target) if event.get("cat") == "kernel"]
    assert [event["ts"] for event in kernels] == [
        Decimal("1790857026000020.123"),
        Decimal("1790857026000090.123"),
        Decimal("1790857026000160.123"),
    ]
    assert {event["dur"] for event in kernels} == {Decimal("0.001")}
    assert [event["args"]["correlation"] for event in kernels] == [7, 15, 23]
    assert [event["args"]["External id"] for event in kernels] == [5, 11, 17]
    assert {event["args"]["stream"] for event in kernels} == {7}


def test_launch_and_kernel_stay_tied(tmp_path: Path) -> None:
    target = tmp_path / "tiled.json"
    tile(_original(tmp_path), target, copies=3)
    events = _events(target)
    by_category = {
        category: [e["args"]["correlation"] for e in events if e.get("cat") == category]
        for category in ("cuda_runtime", "kernel")
    }
    assert by_category["cuda_runtime"] == by_category["kernel"]


def test_few_long_steps_cover_the_copies_without_a_gap(tmp_path: Path) -> None:
    target = tmp_path / "tiled.json"
    tile(_original(tmp_path), target, copies=4, steps=2)
    steps = [event for event in _events(target) if event["name"].startswith("ProfilerStep#")]
    start = Decimal("1790857026000001.001")
    assert [(event["ts"], event["dur"]) for event in steps] == [(start, 140), (start + 140, 140)]


def test_metadata_is_written_once_and_everything_is_counted(tmp_path: Path) -> None:
    target = tmp_path / "tiled.json"
    made = tile(_original(tmp_path), target, copies=5, steps=2)
    events = _events(target)
    assert len([event for event in events if event["ph"] == "M"]) == 1
    assert made.num_events == len(events) == 5 * 3 + 1 + 2
    assert made.num_bytes == target.stat().st_size


def test_size_is_what_was_asked_for(recordings: Path, tmp_path: Path) -> None:
    target = tmp_path / "tiled.json"
    made = tile(recordings / "healthy/rank00000.trace.json.gz", target, mib=12)
    assert made.num_copies == 2
    assert made.num_bytes == target.stat().st_size
    assert abs(made.num_bytes / 2**20 - 12) < 3


def test_another_layout_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "compact.json"
    path.write_text('{"traceEvents":[{"ph":"X","ts":1,"dur":1},{"ph":"X","ts":2,"dur":1}]}')
    with pytest.raises(SystemExit, match="layout"):
        tile(path, tmp_path / "tiled.json", copies=2)
