"""Links or memory of a GPU report errors.

## Looks for
Errors that the driver counted or reported while the job was recorded: on NVLink and PCIe, in the
GPU's memory (ECC), and XID reports.

## Why it costs time
Damaged packets are sent again, which lowers bandwidth; errors that cannot be corrected stop the
job, sooner or later.

## How it decides
Any growth of a counter between the first and the last sample that hold it, and any XID that the
driver reported in between. There is no threshold. Counts from before the recording do not count.

## Stays silent when
No counter grew. Without telemetry it is not checked.

## What to do
Take the machine out of the job at the next checkpoint, and follow the vendor's page for the XID:
reset, remap, or exchange.

## Example
A GPU counts 1,200 replayed NVLink packets within a minute; its rank is last in most collectives.

## References
- NVIDIA, XID errors (docs.nvidia.com/deploy/xid-errors)
- NVML reference, ECC and NVLink counters
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from diagnose.rules import Evidence, Facts, Fix, Need, Rule, Symptom, Where, who
from diagnose.trace import Gpu

_COUNTERS: Mapping[str, str] = {
    "nvlink_crc_errors": "damaged packets on NVLink",
    "nvlink_replay_errors": "repeated packets on NVLink",
    "nvlink_recovery_errors": "links of NVLink set up anew",
    "pcie_replay_errors": "repeated packets on PCIe",
    "pcie_correctable_errors": "corrected errors on PCIe",
    "ecc_volatile_corrected": "corrected bit errors in memory",
    "ecc_volatile_uncorrected": "bit errors in memory that could not be corrected",
}
_XIDS: Mapping[int, str] = {
    48: "a double bit error",
    63: "a row of memory was remapped",
    64: "a row of memory could not be remapped",
    74: "an NVLink error",
    79: "the GPU fell off the bus",
    94: "a contained memory error",
    95: "an uncontained memory error",
}


def check(facts: Facts, thresholds: object) -> Iterator[Symptom]:  # noqa: ARG001
    """One finding for each counter that grew and each number of an XID."""
    for column, meaning in _COUNTERS.items():
        grown = {gpu: rise for gpu in facts.gpus if (rise := _rise(facts, gpu, column)) > 0}
        if grown:
            yield _symptom(facts, column, f"{max(grown.values()):,} {meaning}", grown)
    reported: dict[int, dict[Gpu, int]] = {}
    for gpu in facts.gpus:
        numbers, counts = np.unique(_values(facts, gpu, "xid_error"), return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            if number > 0:
                reported.setdefault(int(number), {})[gpu] = int(count)
    for number, gpus in sorted(reported.items()):
        meaning = f" ({_XIDS[number]})" if number in _XIDS else ""
        yield _symptom(facts, f"xid {number}", f"XID {number}{meaning}", gpus)


def _values(facts: Facts, gpu: Gpu, column: str) -> np.ndarray:
    samples = facts.trace.samples
    values = samples[column][samples["source"] == gpu.source]
    known: np.ndarray = values[~np.isnan(values)]
    return known


def _rise(facts: Facts, gpu: Gpu, column: str) -> int:
    values = _values(facts, gpu, column)
    return int(values[-1] - values[0]) if values.size > 1 else 0


def _symptom(facts: Facts, subject: str, what: str, counts: Mapping[Gpu, int]) -> Symptom:
    gpus = tuple(counts)
    return Symptom(
        sentence=(
            f"While the job was recorded, the driver counted on {who(facts.trace, gpus)}: {what}."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("what", "reported", what),
            Evidence("num_errors", "most on one GPU", max(counts.values())),
        ),
        advice=(
            Fix("Take that machine out of the job at the next checkpoint."),
            Fix("See the whole state of the GPU.", "nvidia-smi -q"),
            Fix("Follow the vendor's page for the error: reset, remap or exchange."),
        ),
        caveats=(
            "XID numbers such as 13, 31 or 43 mostly come from the program, not from the hardware.",
        ),
        no_gain="it is about reliability; the time that it costs is not known",
        subject=subject,
    )


RULE = Rule(check=check, area="network", confidence="high", needs=(Need.TELEMETRY,))
