"""Pairs of jobs, one fault apart: ``python -m benchmarks.gpu.pairs --out DIR``.

Each pair (`jobs/pairs/catalogue.py`) is measured without a profiler, both sides in turn, and
then recorded: ``DIR/pairs/NAME/{before,after}/`` are recordings, ``DIR/pairs.jsonl`` holds
what was measured (`jobs/pairs/truth.py`), the truth for a prediction. The recordings say
nothing of it. Pairs of two ranks run under MPS where there is one GPU.

Pairs that belong together share their processes. Processes that hang or fail are ended and the
rest of their pairs run in new ones; what was in work then gets one more try at the end. What is
in DIR already is not done again. ``--pack DIR --into DIR2`` makes at most four tar files of it.

``PAIRS_DRY=1`` runs all of it on CPUs, with tiny sizes.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu import two_ranks
from benchmarks.gpu.jobs.pairs import packing, sensors
from benchmarks.gpu.jobs.pairs.catalogue import BY_NAME, GROUPS, Group
from benchmarks.gpu.jobs.pairs.processes import Ranks
from benchmarks.gpu.jobs.pairs.truth import Truth, write_lines

DRY = os.environ.get("PAIRS_DRY") == "1"
START_PATIENCE_S = {1: 90.0, 2: 40.0}
"""By ranks. One rank does not hang at its start, but the first import of torch is slow."""
PATIENCE_S = 40.0
CLOSING_PATIENCE_S = 8.0
_LEAST_S = 25.0
"""No group is begun with less time left."""


class Ended(NamedTuple):
    """How a group ended: ``finished``, ``hung``, ``failed (...)``, ``out of time``; and where."""

    how: str
    pair: str


def main() -> None:
    """Run the pairs that are asked for, or pack what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="pairs or groups")
    parser.add_argument("--seconds", type=float, default=460, help="for all of it")
    parser.add_argument("--pack", type=Path, metavar="DIR")
    parser.add_argument("--into", type=Path, metavar="DIR2", help="where the tar files go")
    arguments = parser.parse_args()
    if arguments.pack is not None:
        packing.pack(arguments.pack, arguments.into or arguments.pack)
        return
    if arguments.out is None:
        parser.error("--out or --pack is needed")
    two_ranks.end_cleanly()
    out = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    run_all(out, chosen(arguments.only), time.monotonic() + arguments.seconds)
    for line in write_lines(out):
        print(summary(line), flush=True)


def chosen(only: Sequence[str]) -> list[Group]:
    """The groups to run, each with the pairs that are asked for by their or their group's name."""
    unknown = set(only) - set(BY_NAME) - {group.name for group in GROUPS}
    if unknown:
        raise SystemExit(f"no pair or group {', '.join(sorted(unknown))}; see catalogue.py")
    groups = []
    for group in GROUPS:
        wanted = tuple(
            name for name in group.pairs if not only or name in only or group.name in only
        )
        if wanted:
            groups.append(replace(group, pairs=wanted))
    return groups


def run_all(out: Path, groups: Sequence[Group], end_at: float) -> None:
    """Run the groups, what failed once more, until the time is over."""
    waiting = deque(groups)
    failed: set[tuple[str, str]] = set()
    while waiting and end_at - time.monotonic() > _LEAST_S:
        group = _left_of(waiting.popleft(), out)
        if not group.pairs:
            continue
        began = time.monotonic()
        ended = run(group, out, end_at)
        took = time.monotonic() - began
        print(f"{group.name}: {ended.how} {ended.pair} after {took:.0f} s", flush=True)
        write_lines(out)
        left = _left_of(group, out)
        # Empty where the processes did not begin, and no pair is to blame.
        blamed = ended.pair if ended.pair in left.pairs else ""
        others = tuple(name for name in left.pairs if name != blamed)
        first_time = (group.name, blamed) not in failed
        failed.add((group.name, blamed))
        if others and (blamed or first_time):
            waiting.appendleft(replace(left, pairs=others))
        if blamed and first_time:
            waiting.append(replace(left, pairs=(blamed,)))
    names = [name for group in waiting for name in _left_of(group, out).pairs]
    if names:
        print(f"no time for: {' '.join(names)}", flush=True)


def _left_of(group: Group, out: Path) -> Group:
    """The group's pairs of which something is missing yet."""
    truths = [Truth(out, name) for name in group.pairs]
    left = tuple(
        truth.name
        for truth in truths
        if not all(
            truth.measured(side) and truth.recorded(side) for side in group.sides(truth.name)
        )
    )
    return replace(group, pairs=left)


def run(group: Group, out: Path, end_at: float) -> Ended:
    """Run one group's processes and watch them; they are gone when this returns."""
    with ExitStack() as stack:
        try:
            ranks = stack.enter_context(Ranks.started(group, out, dry=DRY))
        except (OSError, RuntimeError) as error:
            return Ended(f"failed ({error})", "")
        telemetry = stack.enter_context(sensors.Telemetry.of(out / "telemetry", group.name))
        return _watched(ranks, telemetry, START_PATIENCE_S[group.world], end_at)


def _watched(ranks: Ranks, telemetry: sensors.Telemetry, patience_s: float, end_at: float) -> Ended:
    progress, since = "", time.monotonic()
    while True:
        now = time.monotonic()
        said = ranks.progress()
        pair, _, doing = said.partition(" ")
        if said != progress:
            progress, since = said, now
            patience_s = CLOSING_PATIENCE_S if doing == "closing" else PATIENCE_S
            if doing.startswith("recording"):
                telemetry.start()
        status = ranks.status()
        if status is not None:
            return Ended("finished" if status == 0 else f"failed (status {status})", pair)
        if now > end_at:
            return Ended("out of time", pair)
        if now - since > patience_s:
            return Ended("hung", pair)
        time.sleep(0.1)


def summary(line: dict[str, object]) -> str:
    """One line of the table that is printed at the end."""
    figures = [f"{line['name']!s:18}"]
    for side in ("before", "after"):
        known = line.get(side)
        known = known if isinstance(known, dict) else {}
        keys = ("median_ms", "spread_pct", "issue_ms")
        figures += [f"{known.get(key, '-')!s:>9}" for key in keys]
    figures.append(f"gain {line.get('gain_ms', '-')} ms {line.get('gain_pct', '-')} %")
    figures.append("" if line["whole"] else "NOT WHOLE")
    return " ".join(figures)


if __name__ == "__main__":
    main()
