"""Bandwidth below what the links reach alone.

## Looks for
Large collectives whose transfer moves bytes more slowly than the same links do alone. Waiting for
late ranks is taken out, and collectives with compute or other communication beside them do not
count.

## Why it costs time
The transfer takes as much longer as the bandwidth is lower, and what is exposed of it is step time.

## How it decides
The median bus bandwidth of at least `min_num_collectives` messages of `min_message_mib` or more, of
one kind and group. It fires below `max_of_measured_pct` of what nccl-tests measured, given with
`--nccl-tests FILE`: its row for the same collective and number of ranks (and machines, where both
are known) and the nearest size, which may be up to 4 times larger or smaller. Without such a row it
is `measured_gb_per_s`, busbw of nccl-tests on the same ranks, to be written into the settings;
without that, it fires below `max_of_link_pct` of the nominal `link_gb_per_s` that an environment
file of the recording names. The finding says which one it was.

## Stays silent when
Nothing says what the links can do for it (then it is listed as not checked), messages are small,
only one rank was recorded, or a late rank rather than the link takes the time.

## What to do
Run nccl-tests alone on the same ranks. If it is as slow, look at the transport, the PCIe link, link
errors and the fabric. If it is fast, the job's own settings of NCCL are the suspects.

## Example
All-reduces of 64 MiB on links that reach 360 GB/s in nccl-tests run at 90 GB/s: 25 %.

## References
- nccl-tests, doc/PERFORMANCE.md: what busbw is
- NCCL user guide, troubleshooting
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diagnose.rules import (
    Clean,
    Cost,
    Evidence,
    Facts,
    Fix,
    Need,
    Outcome,
    Rule,
    Symptom,
    Where,
    counted,
    duration,
    percent,
    size,
    who,
)
from diagnose.rules._messages import messages_on
from diagnose.rules._network import UNKNOWN_SPEED, NetworkLimits, Slow, slow_ones, speeds_of
from diagnose.trace import Gpu


@dataclass(frozen=True, kw_only=True)
class Limits(NetworkLimits):
    """When a network is slow."""


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for each kind of collective and group."""
    speeds = speeds_of(facts, limits)
    if not speeds:
        return Clean("no large collective runs undisturbed")
    slow = slow_ones(facts, limits, speeds)
    return UNKNOWN_SPEED if slow is None else tuple(_symptoms(facts, limits, slow))


def _symptoms(facts: Facts, limits: Limits, slow: list[Slow]) -> Iterator[Symptom]:
    for one in slow:
        speed = one.speed
        exposed = max(_exposed_ns(facts, limits, one, gpu) for gpu in speed.gpus)
        lost = exposed * (1 - one.reached_pct / 100)
        yield Symptom(
            sentence=(
                f"{speed.kind} of {size(speed.median_bytes)} on {who(facts.trace, speed.gpus)} "
                f"reaches {speed.busbw_gb_per_s:.1f} GB/s of bus bandwidth, "
                f"{percent(one.reached_pct)} of {one.reference_gb_per_s:.1f} GB/s "
                f"({one.reference}); it is exposed for {duration(exposed)} {facts.a_step}."
            ),
            where=Where(gpus=speed.gpus),
            evidence=(
                Evidence("busbw_gb_per_s", "bus bandwidth, median", speed.busbw_gb_per_s),
                Evidence("reference_gb_per_s", "held against", one.reference_gb_per_s),
                Evidence("reference", "which is", one.reference),
                Evidence("of_reference_pct", "of that", one.reached_pct, one.level),
                Evidence("num_collectives", "measured", speed.number, "min_num_collectives"),
                Evidence("exposed_ns", f"exposed {facts.a_step}", exposed),
            ),
            cost=Cost(lost, "exposed transfer beyond what the known bandwidth takes"),
            advice=(
                Fix(
                    "Measure the links alone, on the same ranks.",
                    f"{speed.kind}_perf -b 32M -e 1G -f 2",
                ),
                Fix("See which transport NCCL chose.", "NCCL_DEBUG=INFO"),
                Fix(
                    "As the last step, let short runs rank NCCL's algorithms.",
                    "diagnose run --try NCCL_ALGO=Ring,Tree -- CMD",
                ),
            ),
            caveats=(
                "If nccl-tests alone is as slow, it is the machine and not the job.",
                f"{counted(speed.number, 'collective')} without compute beside them were "
                "measured; the reference must be for the same ranks and sizes.",
            ),
            changes=(
                f"faster-collectives:bus_gb_per_s={one.reference_gb_per_s:g},kind={speed.kind}",
            ),
            subject=f"{speed.kind} {speed.group or ''}".strip(),
        )


def _exposed_ns(facts: Facts, limits: Limits, one: Slow, gpu: Gpu) -> float:
    """Exposed transfer of this kind's large messages on one GPU, per step."""
    messages = messages_on(facts, gpu)
    large = messages.bytes >= limits.min_message_mib * 2**20
    large &= messages.is_kind(one.speed.kind) & (messages.group == one.speed.group)
    return messages.per_step(messages.exposed_ns, large)


RULE = Rule(
    check=check,
    area="network",
    confidence="medium",
    needs=(Need.COMMUNICATION, Need.LAUNCHES, Need.SEVERAL_RANKS),
    thresholds=Limits(),
    explains=("exposed-communication",),
)
