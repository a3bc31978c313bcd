"""Writes docs/schema.md from diagnose/schema.py. ``--check`` only says whether it is current.

python docs/generate.py [--check]
"""

from __future__ import annotations

import sys
from enum import IntEnum
from pathlib import Path

from diagnose import schema

TARGET = Path(__file__).resolve().parent / "schema.md"

INTRODUCTION = """\
# Tables and columns

Generated from `diagnose/schema.py` by `python docs/generate.py`; do not edit.

A trace is a set of tables of numpy columns. In Python they are attributes of
`recording.trace`: `trace.gpu_ops["start_ns"]` is an array, `trace.gpu_ops.frame()` a
pandas DataFrame.

- **Time** is int64 nanoseconds on the clock of its source, half open
  `[start_ns, end_ns)`. Sources (ranks) do not share a clock.
- **Unknown** is never 0, -1 or an empty text. Integers store the smallest int64, row
  references and text codes store -1, floats NaN; `table.known(column)` tells, a
  DataFrame shows them as missing.
- **Text** is stored once per trace: a text column holds codes into `trace.strings`.
- Rows are in the order given, which is total: equal rows cannot swap places.
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _type(column: schema.Column) -> str:
    if column.text:
        return "text"
    if column.choices is not None:
        return f"[{column.choices.__name__}](#{column.choices.__name__.lower()})"
    return column.dtype


def _table(table: schema.TableSchema) -> str:
    lines = [
        f"## {table.name}",
        "",
        f"One row: {table.row}.",
        f"Order: {', '.join(f'`{name}`' for name in table.order)}.",
        "",
        "| column | type | unit | may be unknown | meaning |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{column.name}` | {_type(column)} | {_cell(column.unit)} "
        f"| {'yes' if column.nullable else ''} | {_cell(column.meaning)} |"
        for column in table.columns
    ]
    return "\n".join(lines)


def _choices(choices: type[IntEnum]) -> str:
    summary = (choices.__doc__ or "").strip().splitlines()[0]
    lines = [f"### {choices.__name__}", "", summary, "", "| value | name |", "| --- | --- |"]
    lines += [f"| {choice.value} | `{choice.name.lower()}` |" for choice in choices]
    return "\n".join(lines)


def schema_page() -> str:
    """The whole page: every table, then every enumeration that a column uses."""
    used: dict[str, type[IntEnum]] = {}
    for table in schema.TABLES:
        used |= {c.choices.__name__: c.choices for c in table.columns if c.choices is not None}
    parts = [INTRODUCTION.rstrip(), *(_table(table) for table in schema.TABLES)]
    parts += ["## Values of coded columns", *(_choices(choices) for choices in used.values())]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` return 1 if the file differs from it."""
    page = schema_page()
    if arguments == ["--check"]:
        current = TARGET.is_file() and TARGET.read_text(encoding="utf-8") == page
        if not current:
            print(f"{TARGET.name} is not current: run python docs/generate.py", file=sys.stderr)
        return 0 if current else 1
    if arguments:
        print("usage: python docs/generate.py [--check]", file=sys.stderr)
        return 2
    TARGET.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
