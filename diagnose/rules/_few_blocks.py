"""Large collectives that run in few blocks, slowly: the other half of nccl-cta-share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.findings import Cost, Evidence, Fix, Where
from diagnose.rules._blocks import blocks_of
from diagnose.rules._facts import Facts
from diagnose.rules._messages import messages_on
from diagnose.rules._network import NetworkLimits, Slow, Speed, set_to, slow_ones, speeds_of
from diagnose.rules._rule import Symptom, limit
from diagnose.rules._words import counted, duration, percent, size, who
from diagnose.trace import Gpu

_CAPS = ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_CTA_POLICY")


@dataclass(frozen=True, kw_only=True)
class FewLimits(NetworkLimits):
    """When few blocks are too few."""

    max_num_few_blocks: int = limit(4, "blocks of a collective that may be too few (judgement)")
    max_of_link_pct: float = limit(60.0, "of the nominal link_gb_per_s (judgement)")
    min_exposed_pct: float = limit(3.0, "exposed share of the step; worth a change of one line")


def few_blocks(facts: Facts, limits: FewLimits) -> tuple[Symptom, ...] | None:
    """A symptom for each slow kind and group; None where nothing says what the links can do.

    Empty also where ranks were not recorded together: waiting cannot be taken out then.
    """
    table = facts.trace.collectives
    blocks = blocks_of(facts.trace.gpu_ops.take(table["gpu_op_row"]))
    few = (blocks > 0) & (blocks <= limits.max_num_few_blocks)
    few &= table.known("bytes") & (table["bytes"] >= limits.min_message_mib * 2**20)
    if not few.any() or facts.find("rank_waits") is None or facts.find("slack") is None:
        return ()
    speeds = []
    for speed in speeds_of(facts, limits):
        most = _most_blocks(facts, limits, speed, blocks)
        exposed = max(_exposed_ns(facts, limits, speed, gpu) for gpu in speed.gpus)
        enough = facts.share_pct(exposed) >= limits.min_exposed_pct
        if 0 < most <= limits.max_num_few_blocks and enough:
            speeds.append(speed)
    if not speeds:
        return ()
    slow = slow_ones(facts, limits, speeds)
    return None if slow is None else tuple(_symptoms(facts, limits, slow, blocks))


def _most_blocks(
    facts: Facts, limits: FewLimits, speed: Speed, blocks: npt.NDArray[np.int64]
) -> int:
    """Of its large messages, on all GPUs; 0 where one does not say."""
    table = facts.trace.collectives
    rows = table["collective"] == table.strings.code(speed.kind)
    rows &= np.array(table.texts("group"), object) == speed.group
    rows &= table.known("bytes") & (table["bytes"] >= limits.min_message_mib * 2**20)
    own = blocks[rows]
    return int(own.max()) if own.size and own.min() > 0 else 0


def _exposed_ns(facts: Facts, limits: FewLimits, speed: Speed, gpu: Gpu) -> float:
    """Exposed transfer of its large messages on one GPU, per step."""
    messages = messages_on(facts, gpu)
    large = messages.bytes >= limits.min_message_mib * 2**20
    large &= messages.is_kind(speed.kind) & (messages.group == speed.group)
    return messages.per_step(messages.exposed_ns, large)


def _symptoms(
    facts: Facts, limits: FewLimits, slow: list[Slow], blocks: npt.NDArray[np.int64]
) -> Iterator[Symptom]:
    caps = set_to(facts, _CAPS)
    for one in slow:
        speed = one.speed
        most = _most_blocks(facts, limits, speed, blocks)
        exposed = max(_exposed_ns(facts, limits, speed, gpu) for gpu in speed.gpus)
        yield Symptom(
            sentence=(
                f"{speed.kind} of {size(speed.median_bytes)} on {who(facts.trace, speed.gpus)} "
                f"runs with {counted(most, 'block')} at most and reaches "
                f"{speed.busbw_gb_per_s:.1f} GB/s, {percent(one.reached_pct)} of "
                f"{one.reference_gb_per_s:.1f} GB/s ({one.reference}); it is "
                f"exposed for {duration(exposed)} {facts.a_step}."
            ),
            where=Where(gpus=speed.gpus),
            evidence=(
                Evidence("num_blocks", "blocks of the collective", most, "max_num_few_blocks"),
                Evidence("busbw_gb_per_s", "bus bandwidth, median", speed.busbw_gb_per_s),
                Evidence("reference_gb_per_s", "held against", one.reference_gb_per_s),
                Evidence("reference", "which is", one.reference),
                Evidence("of_reference_pct", "of that", one.reached_pct, one.level),
                Evidence("num_collectives", "measured", speed.number, "min_num_collectives"),
                Evidence("exposed_ns", f"exposed {facts.a_step}", exposed),
                Evidence(
                    "exposed_pct", "share of the step", facts.share_pct(exposed), "min_exposed_pct"
                ),
            ),
            cost=Cost(
                exposed * (1 - one.reached_pct / 100),
                "exposed transfer beyond what the known bandwidth takes",
            ),
            advice=(
                *(Fix("Take away what caps it, and compare.", f"unset {name}") for name in caps),
                Fix("Let NCCL use more blocks, and compare.", f"NCCL_MIN_CTAS={4 * most}"),
            ),
            caveats=(
                "More blocks take multiprocessors from the compute beside them.",
                "NCCL advises against fixed values in production; where it chooses few blocks by "
                "itself, the links may be the limit.",
            ),
            changes=(
                f"faster-collectives:bus_gb_per_s={one.reference_gb_per_s:g},kind={speed.kind}",
            ),
            explains=("slow-network", "exposed-communication"),
            subject=f"few {speed.kind} {speed.group or ''}".strip(),
        )
