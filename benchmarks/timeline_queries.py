"""How fast the timeline answers: a real recording repeated in memory to 10 million events.

``python -m benchmarks.timeline_queries [--events N] [--recording PATH]`` prints how long the
index takes to build, the time of a picture and of the dashboard's scene over random windows
and zooms, shapes and memory, each beside its target. An event is an operation of a GPU, an
operator, an annotation or a call of the host; they lie on 8 GPUs and their hosts' threads
(``benchmarks/repeated.py``). Widths of windows are log-uniform
between 10 us and the whole recording, places uniform.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from plotly.io.json import to_json_plotly

from benchmarks.repeated import repeated
from dashboard.address import ALL, Address
from dashboard.scene import scene
from dashboard.shown import Shown
from diagnose import load
from diagnose.lanes import LaneKind, Timeline
from diagnose.plotting.palette import LIGHT
from diagnose.trace import Trace

GPUS = 8
PIXELS = 1500
QUERIES = 200
NARROWEST_NS = 10_000
MOST_SHAPES = 4000
TARGET_BUILD_S = 2.0
TARGET_P95_MS = 100.0
HEALTHY = Path(__file__).parents[1] / "examples" / "recordings" / "healthy"


def num_events(trace: Trace) -> int:
    """Operations of GPUs, operators, annotations and calls."""
    return len(trace.gpu_ops) + len(trace.host_ops) + len(trace.launches)


def windows(length_ns: int, count: int, seed: int = 11) -> list[tuple[int, int]]:
    """Random windows at random zooms, the same in every run."""
    random = np.random.default_rng(seed)
    width = np.exp(random.uniform(np.log(NARROWEST_NS), np.log(length_ns), count))
    start = random.uniform(0, 1, count) * (length_ns - width)
    return [(int(s), int(s) + max(int(w), 1)) for s, w in zip(start, width, strict=True)]


def peak_mib(reset: bool = False) -> float:
    """Highest resident memory of this process so far; Linux alone can start anew."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def ask(timeline: Timeline, lanes: Sequence[str], asked: list[tuple[int, int]]) -> str:
    """Draw every window; the percentiles as a sentence."""
    wall, cpu, shapes = [], [], []
    for start, end in asked:
        begin, used = time.perf_counter(), time.process_time()
        picture = timeline.picture(start, end, pixels=PIXELS, lanes=lanes, most_shapes=MOST_SHAPES)
        cpu.append(1e3 * (time.process_time() - used))
        wall.append(1e3 * (time.perf_counter() - begin))
        shapes.append(len(picture))
    return (
        f"p50 {np.percentile(wall, 50):.1f} ms, p95 {np.percentile(wall, 95):.1f} ms"
        f" (CPU {np.percentile(cpu, 50):.1f}, {np.percentile(cpu, 95):.1f});"
        f" target: p95 under {TARGET_P95_MS:.0f} ms;"
        f" shapes: median {int(np.median(shapes)):,}, most {max(shapes):,} of {MOST_SHAPES:,}"
    )


def draw(trace: Trace, timeline: Timeline, asked: list[tuple[int, int]]) -> str:
    """Draw every window as the dashboard does, all lanes unfolded: from address to figure."""
    shown = Shown("repeated", "repeated", trace)
    vars(shown)["timeline"] = timeline  # With the index that was built above.
    everything = Address(page="timeline", open=(ALL,))
    scene(shown, everything, LIGHT, PIXELS)
    wall, cpu, sizes, lanes = [], [], [], 0
    for start, end in asked:
        begin, used = time.perf_counter(), time.process_time()
        made = scene(shown, everything.at(start, end), LIGHT, PIXELS)
        cpu.append(1e3 * (time.process_time() - used))
        wall.append(1e3 * (time.perf_counter() - begin))
        sizes.append(len(to_json_plotly([made.figure, made.head])) / 1e3)
        lanes = len(made.page.lanes)
    return (
        f"p50 {np.percentile(wall, 50):.1f} ms, p95 {np.percentile(wall, 95):.1f} ms"
        f" (CPU {np.percentile(cpu, 50):.1f}, {np.percentile(cpu, 95):.1f});"
        f" target: p95 under {TARGET_P95_MS:.0f} ms; {lanes} lanes drawn;"
        f" JSON: median {np.median(sizes):.0f} kB, most {max(sizes):.0f} kB"
    )


def main() -> None:
    """Print what was measured, a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--recording", default=str(HEALTHY))
    options = parser.parse_args()
    original = load(options.recording).trace
    per_copy = num_events(original) * GPUS / len(original.sources)
    trace = repeated(original, GPUS, max(1, round(options.events / per_copy)))
    before = peak_mib(reset=True)
    begin, used = time.perf_counter(), time.process_time()
    timeline = Timeline(trace)
    gpu_lanes = [lane.key for lane in timeline.lanes if lane.kind != LaneKind.THREAD]
    every_lane = [lane.key for lane in timeline.lanes]
    length = timeline.end_ns
    found = time.perf_counter() - begin
    for key in gpu_lanes:
        timeline.index(key)
    print(
        f"{num_events(trace):,} events of {GPUS} GPUs, {len(every_lane)} lanes,"
        f" {length / 1e9:.1f} s (tables repeated in memory)"
    )
    print(
        f"lanes and clocks {found:.2f} s; with the index of {len(gpu_lanes)} GPU lanes"
        f" ({len(trace.gpu_ops):,} operations): {time.perf_counter() - begin:.2f} s"
        f" (CPU {time.process_time() - used:.2f} s); target: under {TARGET_BUILD_S:.0f} s;"
        f" {timeline.num_bytes / 2**20:.0f} MiB"
    )
    asked = windows(length, QUERIES)
    print(f"{QUERIES} pictures of {len(gpu_lanes)} GPU lanes: {ask(timeline, gpu_lanes, asked)}")
    begin, used = time.perf_counter(), time.process_time()
    for key in every_lane:
        timeline.index(key)
    print(
        f"index of {len(every_lane) - len(gpu_lanes)} threads: {time.perf_counter() - begin:.2f} s"
        f" (CPU {time.process_time() - used:.2f} s); all {timeline.num_bytes / 2**20:.0f} MiB"
    )
    print(f"{QUERIES} pictures of all {len(every_lane)} lanes: {ask(timeline, every_lane, asked)}")
    print(f"{QUERIES} scenes with all lanes unfolded: {draw(trace, timeline, asked)}")
    begin = time.perf_counter()
    hits = timeline.search("allreduce")
    print(f"search by name: {1e3 * (time.perf_counter() - begin):.0f} ms, {len(hits):,} hits")
    print(f"memory: {before:.0f} MiB with the tables alone, peak {peak_mib():.0f} MiB")


if __name__ == "__main__":
    main()
