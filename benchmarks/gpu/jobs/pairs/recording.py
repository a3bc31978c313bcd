"""Records a window of one variant as ``diagnose.record`` does, by the same agent.

The profiler is made ready one step before the window, as the agent does it. Host times of
the steps around the window stand in the manifest, so the recording says what recording cost.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

from benchmarks.gpu.jobs.pairs.place import Place
from benchmarks.gpu.jobs.pairs.variants import Variant
from diagnose import __version__
from diagnose.agent.in_process import LocalWindow
from diagnose.attach import observer
from diagnose.collect.companion import enter
from diagnose.manifest import Manifest, RankFiles, Window

MOST_BYTES = 1_500_000
"""Of all traces of one recording, compressed."""
_FEWEST_STEPS = 2


def record(place: Place, variant: Variant, folder: Path, num_steps: int) -> dict[str, Any]:
    """Record ``num_steps`` steps, or two if the recording came out larger than ``MOST_BYTES``."""
    around = place.of(20, 6)
    size = _record(place, variant, folder, num_steps, around)
    if size > MOST_BYTES and num_steps > _FEWEST_STEPS:
        num_steps = _FEWEST_STEPS
        size = _record(place, variant, folder, num_steps, around)
    return {"traced_steps": num_steps, "trace_bytes": round(size)}


def record_long(place: Place, variant: Variant, folder: Path, step_ms: float) -> dict[str, Any]:
    """Record more than three seconds, fifteen after the start."""
    num_before = round(place.of(15e3, 100.0) / step_ms) + 5
    num_steps = round(place.of(3.5e3, 50.0) / step_ms) + 1
    size = _record(place, variant, folder, num_steps, num_before)
    return {"traced_steps": num_steps, "trace_bytes": round(size)}


def _record(place: Place, variant: Variant, folder: Path, num_steps: int, num_before: int) -> float:
    """One window, with ``num_before`` steps before it; bytes of its traces, all ranks'."""
    if place.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    place.meet()
    window = LocalWindow(
        str(folder.absolute() / f"rank{place.rank:05d}.trace.json"),
        steps=num_steps,
        warmup=num_before,
        metadata={"tool": "torch-diagnose"},
        explicit=True,
    )
    with variant.entered() as step:
        place.meet()
        window.start()
        # As many on each rank, whatever becomes of the window: the others wait for them.
        for _ in range(num_before + 1 + num_steps + place.of(20, 6) + 1):
            step()
            window.step()
        place.meet()
    marks = [list(mark) for mark in window.marks()]
    environment = window.environment()
    reply = window.finish()
    if reply.get("ok") is not True:
        raise RuntimeError(f"no recording of rank {place.rank} in {folder}: {reply.get('error')}")
    trace = _compressed(Path(reply["trace"]))
    _enter(place, trace, marks, reply, environment)
    place.meet()
    traces = folder.glob("*.trace.json.gz")
    return place.slowest(float(sum(path.stat().st_size for path in traces)))


def _compressed(trace: Path) -> Path:
    packed = trace.with_name(trace.name + ".gz")
    with open(trace, "rb") as source, gzip.open(packed, "wb", 6) as target:
        shutil.copyfileobj(source, target, 1 << 20)
    trace.unlink()
    return packed


def _enter(
    place: Place, trace: Path, marks: list[Any], reply: dict[str, Any], environment: dict[str, Any]
) -> None:
    folder = trace.parent
    env = folder / f"rank{place.rank:05d}.env.json"
    env.write_text(json.dumps(environment, indent=1) + "\n", encoding="utf-8")
    # The export came after the steps that follow the window, and held none of them up.
    seen = observer.rank_marks(marks, {**reply, "export_ns": 0})
    gpu = environment.get("gpu") or {}
    files = RankFiles(
        place.rank,
        trace.name,
        env=env.name,
        host=socket.gethostname(),
        pid=os.getpid(),
        local_rank=environment.get("local_rank"),
        gpu_uuid=gpu.get("uuid"),
        route="in-code",
        step_times=observer.step_times([seen])[0] if seen is not None else None,
    )
    num_steps, first = len(reply["marks"]) - 1, reply["marks"][0][0]
    job = Manifest(
        ranks=(),
        world_size=place.world,
        started_unix_ns=reply["started_unix_ns"],
        tool_version=__version__,
        window=Window(steps=num_steps, clock="step", start=first),
    )
    enter(folder, files, job, [])
