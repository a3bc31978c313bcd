"""Draws docs/report.svg: the first part of what ``diagnose report`` prints for a recording.

python docs/pictures.py
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs/report.svg"
RECORDING = "examples/recordings/straggler"
WIDTH = 100
LAST_SECTION = "Collectives"
"""The picture ends before the section of this name, so that the README stays one screen."""

# Without it some renderers drop the spaces that a line begins with, and columns move.
_SPACES = ("<svg ", '<svg xml:space="preserve" ')
_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def printed() -> str:
    """What the command prints, with colours."""
    code = "import sys; from diagnose.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, "report", RECORDING],
        cwd=ROOT,
        env=os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "PYTHONIOENCODING": "utf-8"},
        check=True,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ).stdout


def shown(output: str) -> Text:
    """The lines of the output that the picture shows, under the command."""
    lines = Text.from_ansi(output).split("\n")
    plain = [line.plain.strip() for line in lines]
    end = plain.index(LAST_SECTION) if LAST_SECTION in plain else len(lines)
    command = Text(f"$ diagnose report {RECORDING}")
    return Text("\n").join([command, *lines[:end], Text("...")])


def main() -> None:
    """Draw the picture. It loads no font from elsewhere: a reader's own will do."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(shown(printed()))
    picture = console.export_svg(title="diagnose report", unique_id="report")
    TARGET.write_text(_FONTS.sub("", picture).replace(*_SPACES, 1), encoding="utf-8")


if __name__ == "__main__":
    main()
