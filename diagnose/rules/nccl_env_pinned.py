"""NCCL's own choices were overruled by variables.

## Looks for
Variables that fix NCCL's algorithm, protocol, threads, buffers or number of channels, in a job
whose network is slow or whose collectives take many multiprocessors.

## Why it costs time
NCCL chooses by message size, topology and version. A value that was best once, for one size or an
older release, then holds for all of them.

## How it decides
One of the variables is set, and either a large undisturbed collective is slow, or collectives hold
more than `max_multiprocessors_pct` of the GPU. Slow means below `max_of_measured_pct` of
`measured_gb_per_s` (busbw of nccl-tests, to be set), else below `max_of_link_pct` of the nominal
link rate, by the median of `min_num_collectives` messages of `min_message_mib` or more.

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

from dataclasses import dataclass

import numpy as np

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
    limit,
    percent,
    who,
)
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


@dataclass(frozen=True, kw_only=True)
class Limits(NetworkLimits):
    """When pinned choices are suspects."""

    max_multiprocessors_pct: float = limit(15.0, "of the GPU, held by collectives; judgement")


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for each variable."""
    pinned = set_to(facts, _NAMES)
    if not pinned:
        return Clean("NCCL chooses by itself")
    slow = slow_of(facts, limits)
    held = _held_pct(facts)
    if not slow and held <= limits.max_multiprocessors_pct:
        if slow is None:
            return NotJudged(
                f"{', '.join(pinned)} set, but {UNKNOWN_SPEED.because}", UNKNOWN_SPEED.remedy
            )
        return Clean("choices are pinned, and neither bandwidth nor multiprocessors suffer")
    return tuple(
        _symptom(facts, limits, name, values, slow or [], held) for name, values in pinned.items()
    )


def _held_pct(facts: Facts) -> float:
    """The most multiprocessors that a kind of collective holds, in percent; 0: not known."""
    causes = facts.find("contention_causes")
    known = np.empty(0) if causes is None else causes["multiprocessors_pct"]
    known = known[~np.isnan(known)]
    return float(known.max()) if known.size else 0.0


def _symptom(
    facts: Facts, limits: Limits, name: str, values: dict[int, str], slow: list[Slow], held: float
) -> Symptom:
    gpus = facts.gpus_of(values)
    value = " or ".join(sorted(set(values.values())))
    why, evidence = [], [Evidence("variable", "variable", name), Evidence("value", "value", value)]
    if slow:
        worst = min(slow, key=lambda one: one.reached_pct)
        why.append(
            f"{worst.speed.kind} reaches {percent(worst.reached_pct)} of the known bandwidth"
        )
        evidence.append(
            Evidence("of_reference_pct", "of the known bandwidth", worst.reached_pct, worst.level)
        )
    if held > limits.max_multiprocessors_pct:
        why.append(f"collectives hold {percent(held)} of the multiprocessors")
        evidence.append(
            Evidence("multiprocessors_pct", "held by collectives", held, "max_multiprocessors_pct")
        )
    return Symptom(
        sentence=(
            f"{name}={value} is set on {who(facts.trace, gpus)}, and {' and '.join(why)}: "
            "NCCL may not choose by itself."
        ),
        where=Where(gpus=gpus),
        evidence=tuple(evidence),
        advice=(
            Fix("Unset it and measure the job again.", f"unset {name}"),
            Fix(
                "If it is there for a reason, let short runs of the job rank the values.",
                f"diagnose run --try {name}={value} -- CMD",
            ),
        ),
        caveats=(
            "It may stand there for a known bug of NCCL, or for reproducible sums.",
            "A forced algorithm that does not fit fails since NCCL 2.24 instead of falling back.",
        ),
        no_gain="what NCCL would choose by itself is known only by measuring",
        subject=name,
    )


RULE = Rule(
    check=check,
    area="network",
    confidence="high",
    needs=(Need.COMMUNICATION, Need.ENVIRONMENT),
    thresholds=Limits(),
)
