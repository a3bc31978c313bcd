"""NVLink SHARP is switched off.

## Looks for
`NCCL_NVLS_ENABLE=0` on GPUs of the Hopper generation or newer.

## Why it costs time
NVLink SHARP lets the switch add up what all GPUs send. Without it the GPUs do, with more
multiprocessors and more traffic.

## How it decides
The variable is set to 0, the GPU's compute capability is 9.0 or higher, and what was noted of its
links does not speak against a switch. There is no threshold. Whether it would be faster depends on
the job: this is a hint.

## Stays silent when
The variable is not set, or the GPU is older, or its links go to other GPUs without a switch.

## What to do
Unset it and measure.

## Example
A start script sets `NCCL_NVLS_ENABLE=0` because of an old failure at start; the job runs on eight
GPUs behind a switch.

## References
- NCCL user guide, environment variables: NCCL_NVLS_ENABLE (default 2)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from diagnose.rules import Evidence, Facts, Fix, Need, Rule, Symptom, Where, who

_HOPPER = 9


def check(facts: Facts, thresholds: object) -> Iterator[Symptom]:  # noqa: ARG001
    """One finding for all processes that set it."""
    off = [s for s, v in facts.variables("NCCL_NVLS_ENABLE").items() if v.strip() == "0"]
    gpus = facts.gpus_of(source for source in off if _could(facts.environment(source)))
    if gpus:
        yield Symptom(
            sentence=(
                f"NCCL_NVLS_ENABLE=0 is set on {who(facts.trace, gpus)}: the NVLink switch may "
                "not add up for the GPUs."
            ),
            where=Where(gpus=gpus),
            evidence=(
                Evidence("variable", "variable", "NCCL_NVLS_ENABLE"),
                Evidence("value", "value", "0"),
            ),
            advice=(Fix("Unset it and measure the job again.", "unset NCCL_NVLS_ENABLE"),),
            caveats=(
                "It may be off because it failed at start, for its memory, or because of MIG or "
                "MPS.",
            ),
            no_gain="whether NVLink SHARP is faster for this job is known only by measuring",
            subject="NCCL_NVLS_ENABLE",
        )


def _could(environment: Mapping[str, object]) -> bool:
    """Whether a process's GPU is new enough and not known to be without a switch."""
    gpu = environment.get("gpu")
    if not isinstance(gpu, Mapping):
        return False
    major = str(gpu.get("compute_capability", "")).partition(".")[0]
    if not major.isdecimal() or int(major) < _HOPPER:
        return False
    links = gpu.get("nvlinks")
    peers = [link.get("peer") for link in links] if isinstance(links, list) else []
    return not any(peers) or "switch" in peers


RULE = Rule(
    check=check,
    area="network",
    confidence="low",
    needs=(Need.COMMUNICATION, Need.ENVIRONMENT, Need.NVIDIA),
)
