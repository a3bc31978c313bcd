"""Where the time of a step went, for the first sentence of a report."""

from __future__ import annotations

from diagnose.findings import Headline
from diagnose.rules._facts import Facts

_STATES = (
    "compute_only_ns",
    "overlapped_ns",
    "exposed_communication_ns",
    "memory_only_ns",
    "idle_ns",
)


def headline_of(facts: Facts) -> Headline | None:
    """Means over the GPUs of their mean steps; None where nothing ran on a GPU."""
    if not facts.gpus:
        return None
    breakdown = facts.table("breakdown")
    total = dict.fromkeys(_STATES, 0.0)
    for gpu in facts.gpus:
        for state in _STATES:
            total[state] += facts.per_step(breakdown, state, gpu)
    whole = sum(total.values()) or 1.0
    share = {state: 100 * value / whole for state, value in total.items()}
    hidden, exposed = total["overlapped_ns"], total["exposed_communication_ns"]
    return Headline(
        num_gpus=len(facts.gpus),
        num_steps=max(len(steps.rows) for steps in facts.steps.values()),
        step_ns=facts.step_ns,
        compute_pct=share["compute_only_ns"] + share["overlapped_ns"],
        exposed_pct=share["exposed_communication_ns"],
        copies_pct=share["memory_only_ns"],
        idle_pct=share["idle_ns"],
        hidden_pct=100 * hidden / (hidden + exposed) if hidden + exposed else None,
    )
