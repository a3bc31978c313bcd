"""One program and its twin, recorded in a process of their own, and run under the sanitizer."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.profiler

from benchmarks.gpu.hazards.gallery import GALLERY
from benchmarks.gpu.hazards.gpu import DRY, Gpu, synchronised
from benchmarks.gpu.hazards.program import STEPS, Program
from diagnose.agent.environment import collect
from diagnose.agent.event_annotations import EventAnnotations
from diagnose.agent.profiler import DEFAULTS, Output, Profile

WARM_UP = 2
LARGEST = 1_500_000
"""Bytes of a compressed trace beyond which its Python functions are left out."""


def program_named(name: str) -> Program:
    """Raises KeyError for an unknown one."""
    return {program.name: program for program in GALLERY}[name]


def record(name: str, out: Path, lock: Path, stacks: bool) -> int:
    """Record both twins; 0 if both recordings were made."""
    program = program_named(name)
    status, twins = 0, {}
    _start_cupti()
    for twin in ("racy", "repaired"):
        folder = out / name / twin
        folder.mkdir(parents=True, exist_ok=True)
        gpu = Gpu()
        with _alone(lock):
            begin = time.monotonic()
            try:
                twins[twin] = _twin(program, gpu, twin == "racy", folder, stacks)
            except Exception:  # noqa: BLE001 - the other twin goes on
                traceback.print_exc()
                twins[twin] = {"error": traceback.format_exc()[-2000:]}
                status = 1
            twins[twin]["seconds"] = round(time.monotonic() - begin, 2)
            if not DRY:
                torch.cuda.empty_cache()
    content = {**planted(program), "torch": torch.__version__, "dry": DRY, **twins}
    (out / name / "result.json").write_text(json.dumps(content, indent=1) + "\n")
    return status


def planted(program: Program) -> dict[str, Any]:
    """What the racy twin has and the repaired one has not."""
    values = program._asdict()
    del values["build"]
    return {"program": program.name, **values, "recorded_steps": list(range(WARM_UP, STEPS))}


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    # Two processes on one GPU take turns of it: durations would be stretched.
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start_cupti() -> None:
    if not DRY:
        torch.cuda.init()
    profile = Profile(dict(DEFAULTS), {})
    profile.prepare()
    profile.start()
    torch.zeros(8, device=Gpu().device).add_(1)
    profile.stop()
    profile.release()


def _twin(program: Program, gpu: Gpu, racy: bool, folder: Path, stacks: bool) -> dict[str, Any]:
    step = program.build(gpu, racy)
    gpu.synchronize()
    with synchronised(gpu):
        expected = [step(number).cpu().clone() for number in range(STEPS)]
    del step
    step = program.build(gpu, racy)
    gpu.synchronize()
    came: list[torch.Tensor] = []
    facts: dict[str, Any] = {"stacks": stacks}
    for number in range(WARM_UP):
        came.append(step(number))
        gpu.synchronize()
    session = _Session(folder, stacks)
    session.start()
    for number in range(WARM_UP, STEPS):
        with torch.profiler.record_function(f"ProfilerStep#{number}"):
            came.append(step(number))
            gpu.synchronize()
    facts.update(session.stop())
    wrong = [
        int(torch.count_nonzero(one.cpu() != other))
        for one, other in zip(came, expected, strict=True)
    ]
    facts["elements"] = expected[0].numel()
    facts["wrong_elements_per_step"] = wrong
    facts["differs"] = [bool(count) for count in wrong]
    facts["first_values"] = [
        [float(one.flatten()[0]), float(other.flatten()[0])]
        for one, other in zip(came, expected, strict=True)
    ]
    environment = collect(None if DRY else 0)
    (folder / "rank00000.env.json").write_text(json.dumps(environment, indent=1) + "\n")
    return facts


class _Session:
    """A profile and an execution trace of the same steps."""

    def __init__(self, folder: Path, stacks: bool) -> None:
        self._folder = folder.resolve()
        self._trace = self._folder / "rank00000.trace.json"
        self._execution = self._folder / "rank00000.execution_trace.json"
        for leftover in self._folder.glob("rank00000.*"):
            leftover.unlink()
        self._profile = Profile({**DEFAULTS, "stacks": stacks}, {})
        self._observer = torch.profiler.ExecutionTraceObserver()
        self._observer.register_callback(str(self._execution))
        self._events = EventAnnotations()

    def start(self) -> None:
        self._profile.prepare()
        self._profile.start()
        self._observer.start()
        self._events.start()

    def stop(self) -> dict[str, Any]:
        """What may be wrong is said, and does not stop the other half."""
        facts: dict[str, Any] = {"ignored_options": self._profile.ignored}
        facts["events_annotated"] = self._events.available
        self._events.stop()
        try:
            self._observer.stop()
            self._observer.unregister_callback()
            facts["execution_trace_bytes"] = _compressed(self._execution, lambda text: text)
        except Exception as error:  # noqa: BLE001 - the other half is kept
            facts["execution_trace_error"] = repr(error)[:500]
        try:
            self._profile.stop()
            self._profile.export(Output(str(self._trace)))
            facts["trace_bytes"] = _compressed(self._trace, _without_python)
        except Exception as error:  # noqa: BLE001 - the other half is kept
            facts["trace_error"] = repr(error)[:500]
        self._profile.release()
        return facts


def _compressed(path: Path, smaller: Any) -> int:
    content = path.read_bytes()
    packed = gzip.compress(content, 6, mtime=0)
    if len(packed) > LARGEST:
        packed = gzip.compress(smaller(content), 6, mtime=0)
    path.with_name(path.name + ".gz").write_bytes(packed)
    path.unlink()
    return len(packed)


def _without_python(content: bytes) -> bytes:
    whole = json.loads(content)
    events = [one for one in whole["traceEvents"] if one.get("cat") != "python_function"]
    return json.dumps({**whole, "traceEvents": events}, separators=(",", ":")).encode()


def sanitize(name: str, twin: str) -> int:
    """Two steps, plain; torch itself raises where its sanitizer finds a race."""
    program = program_named(name)
    gpu = Gpu()
    step = program.build(gpu, twin == "racy")
    gpu.synchronize()
    for number in range(2):
        step(number)
        gpu.synchronize()
    sys.stderr.write("the steps came to their end\n")
    return 0


def leave(status: int) -> None:
    """End without what CUDA, NCCL and Kineto do at exit: it takes seconds and may crash."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
