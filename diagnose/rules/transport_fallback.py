"""Traffic between GPUs is kept from its direct path.

## Looks for
Variables that forbid NCCL a transport (peer to peer, shared memory, InfiniBand, direct access of
the network card to the GPU), in a job whose network is slow.

## Why it costs time
Without a direct path data goes through host memory, the root complex or sockets, at a fraction of
the bandwidth.

## How it decides
One of the variables is set to a value that forbids something, and a large undisturbed collective
reaches less than `max_of_measured_pct` of what nccl-tests measured for it (`--nccl-tests FILE`, as
in slow-network; without it of `measured_gb_per_s`, to be set), or without either less than
`max_of_link_pct` of the nominal link rate, by the median of `min_num_collectives` messages of
`min_message_mib` or more.

## Stays silent when
None is set, or the bandwidth is good all the same. Where one is set and nothing says what the links
can do, it is listed as not checked.

## What to do
Unset it. If NCCL then fails or is no faster, find what stands in the way: ACS or the IOMMU, a
missing nvidia-peermem or DMA-BUF, a container without /sys.

## Example
`NCCL_P2P_DISABLE=1` from a workaround for another machine: all-reduces over shared host memory at
12 GB/s, where NVLink reaches 360.

## References
- NCCL user guide, environment variables and troubleshooting
- NVIDIA/nccl-tests issue 112 (ACS halves the bandwidth), issue 74 (PCIe machines without P2P)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from diagnose.rules import (
    Clean,
    Evidence,
    Facts,
    Fix,
    Need,
    NotJudged,
    Outcome,
    Rule,
    Symptom,
    Where,
    percent,
    who,
)
from diagnose.rules._network import UNKNOWN_SPEED, NetworkLimits, Slow, set_to, slow_of


def _is_on(value: str) -> bool:
    return value.strip().lower() not in ("", "0", "false", "no", "off")


def _is_near(value: str) -> bool:
    """Of a level up to which a path is used: all but the farthest, SYS."""
    return value.strip().upper() not in ("", "SYS", "5")


_FORBIDS: Mapping[str, tuple[str, Callable[[str], bool]]] = {
    "NCCL_P2P_DISABLE": ("GPUs may not reach each other directly", _is_on),
    "NCCL_SHM_DISABLE": ("processes of a machine may not share memory", _is_on),
    "NCCL_IB_DISABLE": ("InfiniBand and RoCE may not be used", _is_on),
    "NCCL_P2P_LEVEL": ("GPUs that are farther apart may not reach each other directly", _is_near),
    "NCCL_NET_GDR_LEVEL": ("network cards farther off may not reach the GPU directly", _is_near),
}


@dataclass(frozen=True, kw_only=True)
class Limits(NetworkLimits):
    """When a network is slow."""


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for each variable."""
    forbidding = {
        name: on
        for name, values in set_to(facts, tuple(_FORBIDS)).items()
        if (on := {s: value for s, value in values.items() if _FORBIDS[name][1](value)})
    }
    if not forbidding:
        return Clean("no transport is forbidden")
    slow = slow_of(facts, limits)
    if slow is None:
        because = f"{', '.join(forbidding)} set, but {UNKNOWN_SPEED.because}"
        return NotJudged(because, UNKNOWN_SPEED.remedy)
    if not slow:
        return Clean("a transport is forbidden, and no large collective is slow")
    worst = min(slow, key=lambda one: one.reached_pct)
    return tuple(_symptom(facts, name, values, worst) for name, values in forbidding.items())


def _symptom(facts: Facts, name: str, values: dict[int, str], slow: Slow) -> Symptom:
    gpus = facts.gpus_of(values)
    value = " or ".join(sorted(set(values.values())))
    speed = slow.speed
    return Symptom(
        sentence=(
            f"{name}={value} is set on {who(facts.trace, gpus)}: {_FORBIDS[name][0]}; "
            f"{speed.kind} reaches {speed.busbw_gb_per_s:.1f} GB/s, {percent(slow.reached_pct)} "
            f"of {slow.reference_gb_per_s:.1f} GB/s ({slow.reference})."
        ),
        where=Where(gpus=gpus),
        affects=facts.gpus,
        evidence=(
            Evidence("variable", "variable", name),
            Evidence("value", "value", value),
            Evidence("busbw_gb_per_s", "bus bandwidth, median", speed.busbw_gb_per_s),
            Evidence("of_reference_pct", "of the known bandwidth", slow.reached_pct, slow.level),
            Evidence("reference", "which is", slow.reference),
            Evidence("num_collectives", "measured", speed.number, "min_num_collectives"),
        ),
        advice=(
            Fix("Unset it and measure the job again.", f"unset {name}"),
            Fix("See which transport each connection takes.", "NCCL_DEBUG=INFO"),
            Fix(
                "If it fails without: look for ACS on the PCIe switches, the IOMMU, a missing "
                "nvidia-peermem or DMA-BUF, and /sys in the container.",
                "lspci -vvv | grep ACSCtl",
            ),
        ),
        caveats=(
            "Virtual machines need ACS (with ATS).",
            "Some machines with PCIe alone are faster without peer to peer.",
        ),
        changes=(f"faster-collectives:bus_gb_per_s={slow.reference_gb_per_s:g},kind={speed.kind}",),
        subject=name,
    )


RULE = Rule(
    check=check,
    area="network",
    confidence="high",
    needs=(Need.COMMUNICATION, Need.ENVIRONMENT),
    thresholds=Limits(),
    explains=("slow-network", "exposed-communication"),
)
