"""Writes the changes of docs/whatif.md from their docstrings. ``--check`` only compares.

python docs/generate_changes.py [--check]
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from diagnose.replay.change import Change
from diagnose.replay.change_text import known
from diagnose.reporters._replay_records import change_rows, written

TARGET = Path(__file__).resolve().parent / "whatif.md"
MARK = "<!-- generated from diagnose/replay/changes by docs/generate_changes.py -->"
END = "<!-- end of the generated part -->"


def _text(kind: type[Change]) -> str:
    """A docstring as Markdown: literals get one backtick."""
    return re.sub(r"``(.+?)``", r"`\1`", inspect.cleandoc(kind.__doc__ or "")).strip()


def _lines() -> Iterator[str]:
    for row, kind in zip(change_rows(known()), known().values(), strict=True):
        yield f"### {row['id']}"
        yield ""
        mark = "a bound" if row["is_bound"] else "searched" if row["searched"] else "not searched"
        yield f"`{written(row)}`: {row['title']} ({mark})."
        yield ""
        yield from _text(kind).splitlines()
        yield ""


def page(current: str) -> str:
    """The page with its generated part renewed."""
    before, _, rest = current.partition(MARK)
    _, _, after = rest.partition(END)
    changes = "\n".join(_lines())
    return f"{before}{MARK}\n\n{changes}\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` return 1 if it is not current."""
    current = TARGET.read_text(encoding="utf-8")
    renewed = page(current)
    if "--check" in arguments:
        if current != renewed:
            sys.stderr.write("docs/whatif.md: run python docs/generate_changes.py\n")
        return int(current != renewed)
    TARGET.write_text(renewed, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
