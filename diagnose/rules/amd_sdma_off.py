"""Copies run on compute units because the DMA engines are switched off.

## Looks for
`HSA_ENABLE_SDMA=0` or `HSA_ENABLE_PEER_SDMA=0` in the environment of a ROCm job.

## Why it costs time
Copies then run as kernels: they take compute units from the job, and reach about 80 % of the
bandwidth of the engines.

## How it decides
The variable is set to 0. There is no threshold: how much it costs depends on how much is copied.

## Stays silent when
The variables are unset (both are on by default) or not 0.

## What to do
Unset them, and measure again.

## Example
`HSA_ENABLE_SDMA=0` left in a start script from an old fault of a driver.

## References
- ROCR-Runtime, environment variables
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.rules import Evidence, Facts, Fix, Need, Rule, Symptom, Where, who

_VARIABLES = {
    "HSA_ENABLE_SDMA": "copies run on compute units instead of DMA engines",
    "HSA_ENABLE_PEER_SDMA": "copies between GPUs run on compute units instead of DMA engines",
}


def check(facts: Facts, thresholds: object) -> Iterator[Symptom]:  # noqa: ARG001
    """One finding for each variable."""
    for name, effect in _VARIABLES.items():
        off = [source for source, text in facts.variables(name).items() if text.strip() == "0"]
        gpus = facts.gpus_of(off)
        if not off:
            continue
        where = who(facts.trace, gpus) if gpus else "a process without GPU work"
        yield Symptom(
            sentence=f"{name}=0 is set on {where}: {effect}.",
            where=Where(gpus=gpus),
            evidence=(
                Evidence("variable", "variable", name),
                Evidence("value", "value", "0"),
            ),
            advice=(Fix("Unset it where the job is started, and measure again.", f"unset {name}"),),
            caveats=("It may be set to work around a fault of the DMA engines.",),
            no_gain="how fast the engines would copy is not in the recording",
            subject=name,
        )


RULE = Rule(
    check=check,
    area="amd",
    confidence="medium",
    needs=(Need.AMD, Need.ENVIRONMENT),
)
