"""One rank of a group of pairs: measures them all, then records them all.

    python benchmarks/gpu/jobs/pairs/run.py --out DIR --group NAME PAIR ...

Nothing is recorded before everything is measured: a process that was profiled once may be
slower ever after. Every result is on disk as soon as it is there, and what is there
already is not done again. Rank 0 tells in ``GROUP.progress`` what it does.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.jobs.pairs import (
    copies,
    data_parallel,
    host_work,
    measure,
    replicas,
    sharded,
    single,
)
from benchmarks.gpu.jobs.pairs.catalogue import BY_NAME, GROUPS, SIDES
from benchmarks.gpu.jobs.pairs.place import Place
from benchmarks.gpu.jobs.pairs.recording import record, record_long
from benchmarks.gpu.jobs.pairs.truth import Truth
from benchmarks.gpu.jobs.pairs.variants import Variants
from diagnose.agent import environment

_MODULES = (single, copies, host_work, data_parallel, replicas, sharded)
FAILED = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("pairs", nargs="+")
    arguments = parser.parse_args()
    group = _Group(arguments.out, arguments.group)
    try:
        group.begin()
        for work in (group.measure, group.record):
            for name in arguments.pairs:
                work(name)
        group.tell("", "closing")
        group.place.close()
    except Exception:  # noqa: BLE001 - the others of the group must not wait for this rank
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(FAILED)


class _Group:
    def __init__(self, out: Path, name: str) -> None:
        self._out = out
        self._progress = out / f"{name}.progress"
        (group,) = (group for group in GROUPS if group.name == name)
        self._sides = group.sides

    def begin(self) -> None:
        self.place = Place()
        self.tell("", "begun")

    def tell(self, pair: str, doing: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {pair} {doing}", flush=True)
        if self.place.rank == 0:
            part = self._progress.with_suffix(".part")
            part.write_text(f"{pair} {doing}\n")
            part.replace(self._progress)

    def measure(self, name: str) -> None:
        truth, sides = Truth(self._out, name), self._sides(name)
        if all(truth.measured(side) for side in sides):
            return
        self.tell(name, "measuring")
        with self._built(name, truth.facts) as variants:
            known = measure.timing(self.place, variants, sides)
            if self.place.rank == 0:
                truth.add_timing(known, variants.facts | self.place.facts())
                said = environment.collect(None if self.place.dry else self.place.device.index)
                for side in sides:
                    truth.add_environment(side, said)
        self.place.meet()

    def record(self, name: str) -> None:
        truth = Truth(self._out, name)
        wanted = [side for side in self._sides(name) if not truth.recorded(side)]
        if not wanted:
            return
        self.tell(name, "recording")
        with self._built(name, truth.facts) as variants:
            for side in wanted:
                with variants.of(side).entered() as step:
                    usual_ms = measure.usual_ms(self.place, step)
                self.tell(name, f"recording {side}")
                folder = self._out / "pairs" / name / side
                if BY_NAME[name].sides == SIDES:
                    steps = BY_NAME[name].steps[side]
                    said = record(self.place, variants.of(side), folder, steps)
                else:
                    said = record_long(self.place, variants.of(side), folder, usual_ms)
                if self.place.rank == 0:
                    truth.add_recording(side, said)
            for side in wanted:
                with variants.of(side).entered() as step:
                    later = measure.usual_ms(self.place, step)
                if self.place.rank == 0:
                    truth.add_recording(side, {"after_profiling_ms": round(later, 4)})
        self.place.meet()

    @contextmanager
    def _built(self, name: str, facts: dict[str, Any]) -> Iterator[Variants]:
        variants = _builder(name)(self.place, facts)
        try:
            yield variants
        finally:
            variants.close()
            del variants
            gc.collect()
            if not self.place.dry:
                torch.cuda.empty_cache()


def _builder(name: str) -> Callable[[Place, dict[str, Any]], Variants]:
    for module in _MODULES:
        build = getattr(module, name, None)
        if build is not None:
            found: Callable[[Place, dict[str, Any]], Variants] = build
            return found
    raise SystemExit(f"no builder of {name}")


if __name__ == "__main__":
    main()
