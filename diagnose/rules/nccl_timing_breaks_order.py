"""Timing events undo the order that one hardware queue gives.

## Looks for
Timing of collectives switched on together with CUDA_DEVICE_MAX_CONNECTIONS=1.

## Why it costs time
One hardware queue is set so that a small collective starts before the GEMM that was launched after
it. Timing records one more event around each collective, and with it that order no longer holds:
the GEMM takes the multiprocessors first and the collective is exposed.

## How it decides
By the environment alone: CUDA_DEVICE_MAX_CONNECTIONS is 1, and TORCH_NCCL_ENABLE_TIMING or
TORCH_NCCL_DESYNC_DEBUG, which implies it, is on (or one of their old names).

## Stays silent when
Either is not set, or the environment was not recorded.

## What to do
Switch timing off outside of debugging.

## Example
TORCH_NCCL_ENABLE_TIMING=1 left over from a hang, in a job with tensor parallelism.

## References
- pytorch/pytorch issue 143890
- NVIDIA/TransformerEngine issue 1353
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.rules import Evidence, Facts, Fix, Need, Rule, Symptom, Where, who

_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
_TIMING = (
    "TORCH_NCCL_ENABLE_TIMING",
    "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING",
    "NCCL_DESYNC_DEBUG",
)
_OFF = ("", "0", "OFF", "FALSE", "NO", "N")


def check(facts: Facts, thresholds: object) -> Iterator[Symptom]:  # noqa: ARG001
    """One finding for each variable that switches timing on."""
    queues = facts.variables(_QUEUES)
    for name in _TIMING:
        on = {
            source: value
            for source, value in facts.variables(name).items()
            if value.strip().upper() not in _OFF and queues.get(source, "").strip() == "1"
        }
        gpus = facts.gpus_of(on)
        if on:
            value = min(on.values())
            where = who(facts.trace, gpus) if gpus else "a process without GPU work"
            yield Symptom(
                sentence=(
                    f"{name}={value} is set on {where} together with {_QUEUES}=1: timing events "
                    "undo the order of launches that one queue is set for."
                ),
                where=Where(gpus=gpus),
                evidence=(
                    Evidence("variable", "variable", name),
                    Evidence("value", "value", value),
                ),
                advice=(Fix("Switch it off outside of debugging.", f"unset {name}"),),
                caveats=("Who needs the timing of collectives keeps it and accepts the loss.",),
                no_gain="what it costs cannot be told from a recording made with it",
                subject=name,
            )


RULE = Rule(
    check=check,
    area="overlap",
    confidence="high",
    needs=(Need.ENVIRONMENT, Need.NVIDIA, Need.COMMUNICATION),
)
