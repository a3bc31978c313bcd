"""What the verbs share that write tables as text, CSV or JSON."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diagnose.errors import UnavailableError

if TYPE_CHECKING:
    from diagnose.findings import Diagnosis


class Format(str, Enum):
    """How the tables are written."""

    text = "text"
    csv = "csv"
    json = "json"


FormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        help="How the tables are written (default: by the name of --output, else text).",
        show_default=False,
    ),
]


def chosen(form: Format | None, output: Path | None) -> str:
    """The format asked for, or the one that the output's name asks for."""
    from diagnose.cli._formats import TABLE_SUFFIXES, format_of

    return form.value if form is not None else format_of(output, TABLE_SUFFIXES)


def required(diagnosis: Diagnosis, *names: str) -> None:
    """Raise UnavailableError, with the remedy, unless all these tables are there."""
    for name in names:
        if name in diagnosis.unavailable:
            reason = diagnosis.unavailable[name]
            raise UnavailableError(f"{name}: {reason.because}", hint=reason.remedy)
