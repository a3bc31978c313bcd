"""Debugging switches were left on.

## Looks for
Environment variables that make a job wait, check or log at every call, in the environment that was
noted for each process.

## Why it costs time
They serialise what would overlap: launches that block, collectives that the host waits for,
arguments and results that are checked each time.

## How it decides
The variable is set to a value that switches it on. There is no threshold: how much it costs depends
on the job.

## Stays silent when
None is set, or it is set to a value that switches it off. A logging level that prints only at the
start (`NCCL_DEBUG=INFO`, `WARN`) is no finding.

## What to do
Unset the variable in the script that starts the job, and measure again.

## Example
`CUDA_LAUNCH_BLOCKING=1` in a shell profile: every launch returns only when its kernel is done, so
the GPU idles between any two kernels.

## References
- CUDA C++ Programming Guide, environment variables
- PyTorch, distributed communication package, debugging
- NCCL user guide, environment variables
- HIP documentation, debugging
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from diagnose.findings import Confidence
from diagnose.rules import (
    Evidence,
    Facts,
    Fix,
    Need,
    Rule,
    Symptom,
    Where,
    who,
)

_SLOWED_BY_BLOCKING = ("host-sync", "launch-bound", "exposed-communication")


class Switch(NamedTuple):
    """What a variable does when it is on."""

    effect: str
    confidence: Confidence = "medium"
    on: tuple[str, ...] = ()
    """Values that switch it on, upper case; empty: any but 0, off, false, no and nothing."""
    changes: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()


_OFF = ("", "0", "OFF", "FALSE", "NO")
_BLOCKING = Switch(
    "every launch returns only when the GPU is done with it",
    "high",
    changes=("no-host-sync",),
    explains=_SLOWED_BY_BLOCKING,
)
_SWITCHES: Mapping[str, Switch] = {
    "CUDA_LAUNCH_BLOCKING": _BLOCKING,
    "HIP_LAUNCH_BLOCKING": _BLOCKING,
    "AMD_SERIALIZE_KERNEL": Switch("the host waits before or after each kernel", "high"),
    "AMD_SERIALIZE_COPY": Switch("the host waits before or after each copy", "high"),
    "HSA_ENABLE_INTERRUPT": Switch("the host polls for signals instead of sleeping", on=("0",)),
    "TORCH_DISTRIBUTED_DEBUG": Switch(
        "each collective is checked against the other ranks' first", on=("DETAIL",)
    ),
    "TORCH_NCCL_BLOCKING_WAIT": Switch("the host waits for each collective to end"),
    "NCCL_BLOCKING_WAIT": Switch("the host waits for each collective to end"),
    "TORCH_NCCL_NAN_CHECK": Switch("each collective's input is searched for NaN first"),
    "TORCH_NCCL_DESYNC_DEBUG": Switch("timing events are recorded around each collective"),
    "TORCH_CUDA_SANITIZER": Switch("each access of a tensor is checked for missing waits"),
    "NCCL_DEBUG": Switch("NCCL prints each call", on=("TRACE",)),
    "NCCL_CHECK_POINTERS": Switch("NCCL checks the pointers of each call"),
    "NCCL_CHECK_MODE": Switch(
        "NCCL checks each call against the other ranks'", on=("DEBUG_GLOBAL",)
    ),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": Switch("each tensor calls cudaMalloc and cudaFree", "high"),
}


def check(facts: Facts, thresholds: object) -> Iterator[Symptom]:  # noqa: ARG001
    """One finding for each variable."""
    for name, switch in _SWITCHES.items():
        on = {
            source: value
            for source, value in facts.variables(name).items()
            if _is_on(value.strip().upper(), switch)
        }
        if on:
            yield _symptom(facts, name, switch, on)


def _is_on(value: str, switch: Switch) -> bool:
    return value in switch.on if switch.on else value not in _OFF


def _symptom(facts: Facts, name: str, switch: Switch, on: Mapping[int, str]) -> Symptom:
    gpus = facts.gpus_of(on)
    value = sorted(set(on.values()))[0]
    where = who(facts.trace, gpus) if gpus else "a process without GPU work"
    return Symptom(
        sentence=f"{name}={value} is set on {where}: {switch.effect}.",
        where=Where(gpus=gpus),
        evidence=(Evidence("variable", "variable", name), Evidence("value", "value", value)),
        advice=(Fix("Unset it where the job is started, and measure again.", f"unset {name}"),),
        caveats=("A run made for debugging wants it.",),
        changes=switch.changes,
        explains=switch.explains,
        no_gain="what the switch costs cannot be told from a recording made with it",
        confidence=switch.confidence,
        subject=name,
    )


RULE = Rule(
    check=check,
    area="host",
    confidence="high",
    needs=(Need.ENVIRONMENT,),
    explains=_SLOWED_BY_BLOCKING,
)
