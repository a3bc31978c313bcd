"""Field values of NVML: many counters in one call, each with a status of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FieldReference = tuple[int, int]
"""Number of the field, and its scope (0, or a link's number, or ``ALL_LINKS``)."""

ALL_LINKS = 0xFFFFFFFF

FIELD_NUMBERS = {
    "ECC_SBE_VOL_TOTAL": 3,
    "ECC_DBE_VOL_TOTAL": 4,
    "ECC_SBE_AGG_TOTAL": 5,
    "ECC_DBE_AGG_TOTAL": 6,
    "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 38,
    "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": 45,
    "NVLINK_REPLAY_ERROR_COUNT_TOTAL": 52,
    "NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 59,
    "MEMORY_TEMP": 82,
    "NVLINK_LINK_COUNT": 91,
    "PCIE_REPLAY_COUNTER": 94,
    "NVLINK_THROUGHPUT_DATA_TX": 138,
    "NVLINK_THROUGHPUT_DATA_RX": 139,
    "NVLINK_ERROR_DL_REPLAY": 161,
    "NVLINK_ERROR_DL_RECOVERY": 162,
    "NVLINK_ERROR_DL_CRC": 163,
    "PCIE_COUNT_CORRECTABLE_ERRORS": 173,
    "POWER_AVERAGE": 185,
    "POWER_INSTANT": 186,
    "PCIE_COUNT_TX_BYTES": 197,
    "PCIE_COUNT_RX_BYTES": 198,
    "NVLINK_COUNT_LINK_RECOVERY_EVENTS": 215,
}
"""``NVML_FI_DEV_*`` of nvml.h. Numbers never change; an older binding lacks the later names."""

_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


@dataclass(frozen=True)
class FieldColumn:
    """A column that is the sum of fields, times ``scale``.

    ``choices`` are the field names that generations of GPUs have had for it, the best
    first; the first of which every field answers is used.
    """

    column: str
    choices: tuple[tuple[str, ...], ...]
    scale: float = 1
    scope: int = 0
    each_link: bool = False
    """Read for every link of NVLink and added up."""
    never_zero: bool = False
    """0 can only mean that there is no such sensor, as for a power or a temperature."""


@dataclass(frozen=True)
class ResolvedColumn:
    """A column and the fields that this GPU has for it."""

    declared: FieldColumn
    references: tuple[FieldReference, ...]

    def value(self, parts: Sequence[float | None]) -> float | None:
        """The column's value from those of its fields; None if one of them has none."""
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or (self.declared.never_zero and not any(known)):
            return None
        return sum(known) * self.declared.scale


def resolve(nvml: Any, handle: Any, column: FieldColumn, links: int) -> ResolvedColumn | None:
    """The first choice of which every field answers; None if this GPU has none.

    Raises what the binding raises if the call as a whole fails.
    """
    for choice in column.choices:
        scopes = range(links) if column.each_link else (column.scope,)
        references = tuple((FIELD_NUMBERS[name], scope) for name in choice for scope in scopes)
        if not references:
            continue
        found = ResolvedColumn(column, references)
        if found.value(read_fields(nvml, handle, references)) is not None:
            return found
    return None


def read_fields(nvml: Any, handle: Any, references: Sequence[FieldReference]) -> list[float | None]:
    """One value a reference, in one call; None where the field has no value now."""
    answers = nvml.nvmlDeviceGetFieldValues(handle, list(references))
    return [_value(answer) for answer in answers]


def read_columns(
    nvml: Any, handle: Any, columns: Sequence[ResolvedColumn]
) -> dict[str, float | None]:
    """All columns in one call. A column of which a field has no value now is None."""
    references = [reference for column in columns for reference in column.references]
    values = iter(read_fields(nvml, handle, references))
    return {
        column.declared.column: column.value([next(values) for _ in column.references])
        for column in columns
    }


def _value(answer: Any) -> float | None:
    member = _MEMBERS.get(int(answer.valueType))
    if int(answer.nvmlReturn) != 0 or member is None:
        return None
    value = getattr(answer.value, member)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return int(value)
