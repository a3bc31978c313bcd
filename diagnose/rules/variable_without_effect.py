"""An environment variable is set that nothing reads.

## Looks for
Variables in the noted environment that no known version of the software reads, or no current one.

## Why it costs time
It costs none. But somebody expects an effect of it, and looks no further.

## How it decides
By the list that `diagnose explain VARIABLE` prints from. There is no threshold. A name that
is not on the list is not judged.

## Stays silent when
Every variable on the list that is set is read by something, deprecated names included.

## What to do
Remove it, and look for what it was meant to cure.

## Example
`HSA_OVERSUBSCRIPTION=1`, which a widely copied article recommends for AMD GPUs, is read by no
part of ROCm.

## References
- ROCm runtime sources and documentation, environment variables
- PyTorch, ProcessGroupNCCL environment variables
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.rules import Evidence, Facts, Fix, Need, Rule, Symptom, Where
from diagnose.rules._known import variables

_WITHOUT_EFFECT = ("not found", "historical")


def check(facts: Facts, thresholds: object) -> Iterator[Symptom]:  # noqa: ARG001
    """One finding for each variable."""
    for name, known in variables().items():
        values = facts.variables(name)
        if not values or known.status not in _WITHOUT_EFFECT:
            continue
        value = min(values.values())
        yield Symptom(
            sentence=f"{name}={value} is set and has no effect. {known.answer}",
            where=Where(gpus=facts.gpus_of(values)),
            evidence=(Evidence("variable", "variable", name), Evidence("value", "value", value)),
            advice=(
                Fix("Remove it where the job is started.", f"unset {name}"),
                Fix("See what is known of it.", f"diagnose explain {name}"),
            ),
            caveats=("A private build of the software may read it.",),
            no_gain="it changes nothing",
            subject=name,
        )


RULE = Rule(
    check=check,
    area="validity",
    confidence="high",
    needs=(Need.ENVIRONMENT,),
    at_most="info",
)
