"""NCCL's own choices were overruled by variables.

## Looks for
Variables that fix NCCL's algorithm, protocol, threads, buffers or number of channels, in a job
whose network is slow, whose collectives take many multiprocessors, or are kept to very few.

## Why it costs time
NCCL chooses by message size, topology and version. A value that was best once, for one size or an
older release, then holds for all of them.

## How it decides
One of the variables is set, and either a large undisturbed collective is slow, or collectives hold
more than `max_multiprocessors_pct` of the GPU. Slow means below `max_of_measured_pct` of what
nccl-tests measured for it (`--nccl-tests FILE`, as in slow-network; without it of
`measured_gb_per_s`, to be set), else below `max_of_link_pct` of the nominal link rate, by the
median of `min_num_collectives` messages of `min_message_mib` or more.

It also fires, without knowing the links, where NCCL_MAX_CTAS or NCCL_MAX_NCHANNELS allows
`max_num_blocks` blocks at most, the recorded collectives use all of them, and their exposed
transfer takes `min_exposed_pct` of the step or more.

## Stays silent when
None is set, or bandwidth is good and few multiprocessors are held. Where a variable is set and
nothing says what the links can do, it is listed as not checked.

## What to do
Unset it and measure the job. Keep only what wins inside of the job, and say beside it why.

## Example
`NCCL_ALGO=Tree` from an old start script, and all-reduces of 256 MiB at 30 % of what nccl-tests
reach.

## References
- NCCL user guide, environment variables: NCCL_ALGO, NCCL_PROTO (forcing LL128 can corrupt data)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.rules import (
    Clean,
    Cost,
    Evidence,
    Facts,
    Fix,
    Need,
    NotJudged,
    Outcome,
    Rule,
    Symptom,
    Where,
    counted,
    duration,
    limit,
    percent,
    who,
)
from diagnose.rules._blocks import blocks_of
from diagnose.rules._exposed import exposed_on
from diagnose.rules._network import UNKNOWN_SPEED, NetworkLimits, Slow, set_to, slow_of

_NAMES = (
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_NTHREADS",
    "NCCL_BUFFSIZE",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
)
_CAPS = ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS")
_TO_TRY = {
    "NCCL_ALGO": ("Ring", "Tree"),
    "NCCL_PROTO": ("Simple", "LL"),
    "NCCL_NTHREADS": ("256", "512"),
    "NCCL_BUFFSIZE": ("4194304", "8388608"),
}
_BLOCKS_TO_TRY = ("4", "8", "16", "32")
_ONE_VALUE = re.compile(r"[A-Za-z0-9]{1,20}")


@dataclass(frozen=True, kw_only=True)
class Limits(NetworkLimits):
    """When pinned choices are suspects."""

    max_multiprocessors_pct: float = limit(15.0, "of the GPU, held by collectives; judgement")
    max_num_blocks: int = limit(
        4, "of a collective's kernel: some 25 GB/s each do not fill NVLink (judgement)"
    )
    min_exposed_pct: float = limit(5.0, "share of the step, on few blocks; worth a try")


class Capped(NamedTuple):
    """Collectives that use all blocks that a variable allows, which are few."""

    blocks: int
    exposed_ns: float
    """Their transfer with no compute beside it, per step: the most of any GPU."""
    exposed_pct: float


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for each variable."""
    pinned = set_to(facts, _NAMES)
    if not pinned:
        return Clean("NCCL chooses by itself")
    slow = slow_of(facts, limits)
    held = _held_pct(facts)
    capped = {
        name: one
        for name, values in pinned.items()
        if name in _CAPS and (one := _capped(facts, limits, values)) is not None
    }
    hit = pinned if slow or held > limits.max_multiprocessors_pct else capped
    if not hit:
        if slow is None:
            return NotJudged(
                f"{', '.join(pinned)} set, but {UNKNOWN_SPEED.because}", UNKNOWN_SPEED.remedy
            )
        return Clean("choices are pinned, and neither bandwidth nor multiprocessors suffer")
    return tuple(
        _symptom(facts, limits, name, pinned[name], slow or [], held, capped.get(name))
        for name in hit
    )


def _capped(facts: Facts, limits: Limits, values: Mapping[int, str]) -> Capped | None:
    """Of the GPUs of these sources; None where the variable is no narrow limit that binds."""
    allowed = {s: int(v) for s, v in values.items() if v.strip().isascii() and v.strip().isdigit()}
    ops = facts.trace.gpu_ops.take(facts.trace.collectives["gpu_op_row"])
    blocks, found = blocks_of(ops), []
    for gpu in facts.gpus_of(allowed):
        own = blocks[facts.on(ops, gpu)]
        most = int(own.max(initial=0))
        exposed = exposed_on(facts, gpu).transfer_ns
        share = facts.share_pct(exposed)
        narrow = 0 < allowed[gpu.source] <= limits.max_num_blocks
        if narrow and most == allowed[gpu.source] and share >= limits.min_exposed_pct:
            found.append(Capped(most, exposed, share))
    return max(found, key=lambda one: one.exposed_ns, default=None)


def _held_pct(facts: Facts) -> float:
    """The most multiprocessors that a kind of collective holds, in percent; 0: not known."""
    causes = facts.find("contention_causes")
    known = np.empty(0) if causes is None else causes["multiprocessors_pct"]
    known = known[~np.isnan(known)]
    return float(known.max()) if known.size else 0.0


def _symptom(
    facts: Facts,
    limits: Limits,
    name: str,
    values: dict[int, str],
    slow: list[Slow],
    held: float,
    capped: Capped | None,
) -> Symptom:
    gpus = facts.gpus_of(values)
    value = " or ".join(sorted(set(values.values())))
    why, evidence = [], [Evidence("variable", "variable", name), Evidence("value", "value", value)]
    if slow:
        worst = min(slow, key=lambda one: one.reached_pct)
        why.append(
            f"{worst.speed.kind} reaches {percent(worst.reached_pct)} of "
            f"{worst.reference_gb_per_s:.1f} GB/s ({worst.reference})"
        )
        evidence += [
            Evidence("reference_gb_per_s", "held against", worst.reference_gb_per_s),
            Evidence("reference", "which is", worst.reference),
            Evidence("of_reference_pct", "of that", worst.reached_pct, worst.level),
        ]
    if held > limits.max_multiprocessors_pct:
        why.append(f"collectives hold {percent(held)} of the multiprocessors")
        evidence.append(
            Evidence("multiprocessors_pct", "held by collectives", held, "max_multiprocessors_pct")
        )
    if capped is not None:
        why.append(
            f"collectives run on {counted(capped.blocks, 'block')} and expose "
            f"{duration(capped.exposed_ns)} {facts.a_step} ({percent(capped.exposed_pct)})"
        )
        evidence += [
            Evidence("num_blocks", "blocks of a collective", capped.blocks, "max_num_blocks"),
            Evidence("exposed_ns", f"exposed transfer {facts.a_step}", capped.exposed_ns),
            Evidence("exposed_pct", "share of the step", capped.exposed_pct, "min_exposed_pct"),
        ]
    return Symptom(
        sentence=(
            f"{name}={value} is set on {who(facts.trace, gpus)}, and {' and '.join(why)}: "
            "NCCL may not choose by itself."
        ),
        where=Where(gpus=gpus),
        evidence=tuple(evidence),
        cost=Cost(capped.exposed_ns, "exposed transfer on few blocks", True) if capped else None,
        advice=(
            Fix("Unset it and measure the job again.", f"unset {name}"),
            Fix(
                "If it is there for a reason, let short runs of the job rank the values.",
                f"diagnose run --try {name}={_to_try(name, values)} -- CMD",
            ),
        ),
        caveats=(
            "It may stand there for a known bug of NCCL, or for reproducible sums.",
            "A forced algorithm that does not fit fails since NCCL 2.24 instead of falling back.",
        ),
        no_gain="what NCCL would choose by itself is known only by measuring",
        explains=("exposed-communication",) if capped else (),
        subject=name,
    )


def _to_try(name: str, values: Mapping[int, str]) -> str:
    """The value that is set, as far as it is a single one, and others to hold it against."""
    own = sorted(value for value in set(values.values()) if _ONE_VALUE.fullmatch(value))
    return ",".join(dict.fromkeys([*own, *_TO_TRY.get(name, _BLOCKS_TO_TRY)]))


RULE = Rule(
    check=check,
    area="network",
    confidence="high",
    needs=(Need.COMMUNICATION, Need.ENVIRONMENT),
    thresholds=Limits(),
)
