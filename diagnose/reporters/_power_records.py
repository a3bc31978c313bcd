"""Power as machines read it: by GPU, class, step and reason."""

from __future__ import annotations

from collections.abc import Mapping

from diagnose.analyzers.power.doing import Doing
from diagnose.findings import Diagnosis
from diagnose.reporters._records import Record, microseconds_raw, places, records, step_names
from diagnose.schema import TableSchema
from diagnose.trace import Table

_PLACE = ("source", "device")


def _keys(schema: TableSchema, *without: str) -> Mapping[str, str]:
    """Every column under its own name; times in microseconds."""
    left_out = {*_PLACE, *without}
    return {
        column.name: f"{column.name[:-3]}_us" if column.name.endswith("_ns") else column.name
        for column in schema.columns
        if column.name not in left_out
    }


def _rows(diagnosis: Diagnosis, name: str, *without: str) -> tuple[Table, list[Record]]:
    table = diagnosis.tables[name]
    found = zip(
        places(diagnosis.trace, table),
        records(table, _keys(table.schema, *without)),
        strict=True,
    )
    return table, [{**place, **row} for place, row in found]


def gpu_rows(diagnosis: Diagnosis, name: str = "summary") -> list[Record]:
    """A record a physical GPU; ``name``: of the table in the diagnosis."""
    table, rows = _rows(diagnosis, name)
    for row, refresh in zip(rows, table["refresh_ns"].tolist(), strict=True):
        # The fitted times are means of noisy ones: whole microseconds are more than enough.
        row["refresh_us"] = None if refresh != refresh else microseconds_raw(round(refresh))
    return rows


def class_rows(diagnosis: Diagnosis) -> list[Record]:
    """A record for each GPU and class of time."""
    table, rows = _rows(diagnosis, "classes", "doing")
    labels = [Doing(code).name.lower() for code in table["doing"].tolist()]
    return [
        {key: row[key] for key in ("rank", "device", "source")}
        | {"class": label}
        | {key: value for key, value in row.items() if key not in ("rank", "device", "source")}
        for row, label in zip(rows, labels, strict=True)
    ]


def step_rows(diagnosis: Diagnosis) -> list[Record]:
    """A record for each GPU and step; none where no step can be told."""
    if "steps" not in diagnosis.tables:
        return []
    table, rows = _rows(diagnosis, "steps", "step_row")
    names = step_names(diagnosis.trace, table)
    return [
        {"rank": row["rank"], "device": row["device"], "source": row["source"], "step": name}
        | {key: value for key, value in row.items() if key not in ("rank", "device", "source")}
        for row, name in zip(rows, names, strict=True)
    ]


def reason_rows(diagnosis: Diagnosis) -> list[Record]:
    """A record for each GPU and reason for lowered clocks."""
    if "reasons" not in diagnosis.tables:
        return []
    return _rows(diagnosis, "reasons")[1]
