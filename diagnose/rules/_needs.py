"""What a rule needs of a recording, and how to record it where it is missing."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from diagnose.schema import Detail

if TYPE_CHECKING:
    from diagnose.rules._facts import Facts


class Lack(NamedTuple):
    """Why a need is not met. ``applies``: whether recording more would meet it."""

    because: str
    remedy: str = ""
    applies: bool = True


class Need(Enum):
    """One thing that a recording may lack. A rule is not called where it lacks a need."""

    LAUNCHES = "launches"
    """Calls into the GPU runtime, tied to what they launched."""
    HOST_OPS = "operators"
    """Operators and annotations of the host."""
    SHAPES = "input shapes"
    """Shapes of operators' inputs (``record_shapes``)."""
    SYNC_EVENTS = "stream waits"
    """Spans in which a stream waits for an event of another."""
    STEPS = "step marks"
    """Marks of steps of which at least one has a time on the GPU."""
    COMMUNICATION = "communication"
    """Communication on a GPU. Without, the rule does not apply."""
    SEVERAL_RANKS = "several ranks"
    """Traces of two ranks at least. A job of one rank: does not apply."""
    TELEMETRY = "telemetry"
    """Samples of sensors."""
    GPM = "GPU performance monitoring"
    """Utilisation of tensor cores, memory and links (NVIDIA Hopper and newer)."""
    ENVIRONMENT = "environment"
    """Variables and versions of at least one process."""
    AMD = "AMD GPU"
    """A ROCm job. On other GPUs the rule does not apply."""
    NVIDIA = "NVIDIA GPU"
    """Anything but a ROCm job. On AMD the rule does not apply."""

    def lack(self, facts: Facts) -> Lack | None:
        """Why ``facts`` do not meet it; None: they do."""
        return _TESTS[self](facts)


_RECORD = "record with `diagnose attach` or `diagnose run`"
_PROFILER = "torch.profiler.profile(activities=[CPU, CUDA]"


def _launches(facts: Facts) -> Lack | None:
    if facts.trace.detail < Detail.LAUNCHES:
        return Lack("launches were not read", "read the trace without --only and --fast")
    if not len(facts.trace.launches):
        return Lack("no call into the GPU runtime was recorded", f"{_PROFILER})")
    return None


def _host_ops(facts: Facts) -> Lack | None:
    if facts.trace.detail < Detail.ALL:
        return Lack("operators were not read", "read the trace without --only and --fast")
    if not len(facts.trace.host_ops):
        return Lack("no operator was recorded", f"{_PROFILER})")
    return None


def _shapes(facts: Facts) -> Lack | None:
    lacking = _host_ops(facts)
    if lacking is None and not facts.trace.host_ops.known("shapes").any():
        return Lack("input shapes were not recorded", f"{_PROFILER}, record_shapes=True)")
    return lacking


def _sync_events(facts: Facts) -> Lack | None:
    if facts.trace.detail < Detail.LAUNCHES:
        return Lack("stream waits were not read", "read the trace without --only and --fast")
    if not facts.trace.syncs.known("stream").any():
        return Lack(
            "no wait of a stream was recorded",
            f"{_PROFILER}, experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True))",
        )
    return None


def _steps(facts: Facts) -> Lack | None:
    if facts.timed:
        return None
    return Lack(
        "no step has a time on the GPU",
        "record three steps or more in one window, with profiler.step() after each",
    )


def _communication(facts: Facts) -> Lack | None:
    return None if len(facts.trace.collectives) else Lack("no communication", applies=False)


def _several_ranks(facts: Facts) -> Lack | None:
    if len(facts.gpus) > 1:
        return None
    if all(source.world_size == 1 for source in facts.trace.sources):
        return Lack("the job has one rank", applies=False)
    return Lack("one rank was given", "give the traces of all ranks together")


def _telemetry(facts: Facts) -> Lack | None:
    if len(facts.trace.samples):
        return None
    return Lack("no telemetry", f"{_RECORD}, which samples the sensors meanwhile")


def _gpm(facts: Facts) -> Lack | None:
    lacking = _telemetry(facts)
    samples = facts.trace.samples
    if lacking is None and not (~np.isnan(samples["gpm_sm_util_pct"])).any():
        return Lack("no performance monitoring of the GPU", "it needs NVIDIA Hopper or newer")
    return lacking


def _environment(facts: Facts) -> Lack | None:
    if any(source.environment for source in facts.trace.sources):
        return None
    return Lack("the environment of the job is not known", f"{_RECORD}, which note it")


def _amd(facts: Facts) -> Lack | None:
    return None if facts.is_amd else Lack("not an AMD GPU", applies=False)


def _nvidia(facts: Facts) -> Lack | None:
    return Lack("an AMD GPU", applies=False) if facts.is_amd else None


_TESTS = {
    Need.LAUNCHES: _launches,
    Need.HOST_OPS: _host_ops,
    Need.SHAPES: _shapes,
    Need.SYNC_EVENTS: _sync_events,
    Need.STEPS: _steps,
    Need.COMMUNICATION: _communication,
    Need.SEVERAL_RANKS: _several_ranks,
    Need.TELEMETRY: _telemetry,
    Need.GPM: _gpm,
    Need.ENVIRONMENT: _environment,
    Need.AMD: _amd,
    Need.NVIDIA: _nvidia,
}
