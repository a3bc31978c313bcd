"""Recordings whose pages are looked at, made from those that ship."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

from tests.builder import TraceBuilder

HOSTILE_FILES = (
    "<img src=x onerror=alert(3)>.json",
    "<a href='javascript:alert(4)'>click<br>here.json",
)
"""A rank that is unknown is called by its file."""


def eight_ranks(recording: Path, target: Path) -> Path:
    """A recording of two ranks four times, as eight ranks of one job."""
    target.mkdir()
    ranks = []
    for rank in range(8):
        stem = f"rank{rank % 2:05d}"
        text = gzip.decompress((recording / f"{stem}.trace.json.gz").read_bytes()).decode()
        for before, after in (
            (f'"rank": {rank % 2}, "world_size": 2', f'"rank": {rank}, "world_size": 8'),
            ('"pg_size": 2, "ranks": [0, 1]', f'"pg_size": 8, "ranks": {list(range(8))}'),
            ('"Group size": 2', '"Group size": 8'),
            ('"Process Group Ranks": "[0, 1]"', f'"Process Group Ranks": "{list(range(8))}"'),
        ):
            assert before in text
            text = text.replace(before, after)
        names = {kind: f"rank{rank:05d}.{kind}" for kind in ("telemetry.csv", "env.json")}
        for kind, name in names.items():
            shutil.copy(recording / f"{stem}.{kind}", target / name)
        trace = f"rank{rank:05d}.trace.json.gz"
        (target / trace).write_bytes(gzip.compress(text.encode(), 1))
        ranks.append({"rank": rank, "trace": trace, "env": names["env.json"]})
        ranks[-1]["telemetry"] = names["telemetry.csv"]
    manifest = {"format": 1, "world_size": 8, "ranks": ranks}
    (target / "recording.json").write_text(json.dumps(manifest), encoding="utf-8")
    return target


def on_cpu(target: Path) -> Path:
    """Two ranks of a job that nobody gave a GPU."""
    target.mkdir()
    for rank in (0, 1):
        builder = TraceBuilder(rank=rank, world_size=2).step(1, 0, 20_000).step(2, 20_000, 21_000)
        builder.operator("aten::mm", 100, 50)
        builder.write(target)
        environment = {"torch": "2.13.0+cpu", "cuda": None, "gpu": None}
        name = f"rank{rank:05d}.env.json"
        (target / name).write_text(json.dumps(environment), encoding="utf-8")
    return target


def with_hostile_file_names(target: Path) -> Path:
    """Two files of unknown rank whose names are markup; they become labels in figures."""
    target.mkdir()
    for number, name in enumerate(HOSTILE_FILES):
        builder = TraceBuilder()
        for step in range(3):
            t = 100 * step
            builder.step(step, t, 100)
            builder.kernel("gemm", t + 20, 60, launch=t + 1)
            builder.collective("allreduce", t + 60, 45 - 5 * number, launch=t + 4)
        builder.write(target, name)
    return target
