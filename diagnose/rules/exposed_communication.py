"""Communication that nothing hides.

## Looks for
Communication beside which the GPU computes nothing, with the wait for late ranks taken out where
all ranks were recorded.

## Why it costs time
The step stands still until the bytes have moved.

## How it decides
Exposed transfer of `min_exposed_pct` of the step or more, and less than `max_hidden_pct` of
communication hidden. With the traces of one rank, waiting cannot be told from moving bytes: then
the figure is an upper bound and says so.

## Stays silent when
Most of it is hidden, or what is exposed is small or only waiting for a late rank.

## What to do
This is the umbrella: where another rule names a cause, this finding is folded under it. Otherwise
issue communication earlier, wait for it later, or prefetch.

## Example
A step of 40 ms with 8 ms of all-gathers of which 2 ms run beside compute: 6 ms (15 %) are exposed.

## References
- TraceLens, multi-rank communication reports (levels 5 % and 70 %)
- arXiv 2507.03114, on what overlap gains and costs
"""

from __future__ import annotations

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
    Thresholds,
    Where,
    duration,
    limit,
    percent,
    who,
)
from diagnose.rules._exposed import Exposed, exposed_on
from diagnose.trace import Gpu


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When exposed communication is worth naming."""

    min_exposed_pct: float = limit(5.0, "share of the step; TraceLens' alarm level")
    max_hidden_pct: float = limit(70.0, "of communication; TraceLens' level of good overlap")


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs with exposed communication."""
    found: dict[Gpu, Exposed] = {gpu: exposed_on(facts, gpu) for gpu in facts.gpus}
    hit = tuple(
        gpu
        for gpu, one in found.items()
        if facts.share_pct(one.transfer_ns) >= limits.min_exposed_pct
        and one.hidden_pct < limits.max_hidden_pct
    )
    if not hit:
        return Clean("little communication is exposed")
    worst = found[max(hit, key=lambda gpu: found[gpu].transfer_ns)]
    return (_symptom(facts, hit, worst),)


def _symptom(facts: Facts, hit: tuple[Gpu, ...], worst: Exposed) -> Symptom:
    share = facts.share_pct(worst.transfer_ns)
    bound = "" if worst.waiting_ns is not None else "at most "
    evidence = [
        Evidence("exposed_communication_ns", f"exposed {facts.a_step}", worst.transfer_ns),
        Evidence("exposed_pct", "share of the step", share, "min_exposed_pct"),
        Evidence("hidden_pct", "of communication, hidden", worst.hidden_pct, "max_hidden_pct"),
    ]
    if worst.waiting_ns is not None:
        label = f"besides, waiting for late ranks {facts.a_step}"
        evidence.append(Evidence("waiting_ns", label, worst.waiting_ns))
    return Symptom(
        sentence=(
            f"{bound.capitalize()}{duration(worst.transfer_ns)} of communication {facts.a_step} "
            f"({percent(share)}) runs on {who(facts.trace, hit)} with no compute beside it; "
            f"{percent(worst.hidden_pct)} is hidden."
        ),
        where=Where(gpus=hit),
        evidence=tuple(evidence),
        cost=Cost(worst.transfer_ns, "exposed communication, without waiting", True),
        advice=(
            Fix(
                "See what each step really waits for.",
                "diagnose critical-path PATH",
            ),
            Fix(
                "Issue communication as soon as its input is there and wait where its result is "
                "used.",
                "work = dist.all_reduce(x, async_op=True); ...; work.wait()",
            ),
            Fix("FSDP: prefetch the next unit.", "module.set_modules_to_forward_prefetch([...])"),
            Fix(
                "torch.compile: let it move communication.",
                "torch._inductor.config.reorder_for_compute_comm_overlap = True",
            ),
        ),
        caveats=(
            "What the next operation needs at once (tensor parallelism, pipeline edges) cannot "
            "be hidden this way.",
            "Hidden communication slows the compute beside it: the gain is smaller than this.",
        ),
    )


RULE = Rule(
    check=check,
    area="overlap",
    confidence="high",
    needs=(Need.COMMUNICATION,),
    thresholds=Limits(),
    changes=("hide-communication",),
)
