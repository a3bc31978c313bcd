"""``diagnose compare``: what changed between two recordings."""

from __future__ import annotations

from typing import Annotated

import typer

from diagnose.cli._options import Classify, Output
from diagnose.cli._tables import FormatOption

_PATH = "A file, folder, glob, recording folder or URL"


def compare(
    context: typer.Context,
    before: Annotated[
        str, typer.Argument(metavar="A", help=f"{_PATH}: the first.", show_default=False)
    ],
    after: Annotated[
        str, typer.Argument(metavar="B", help=f"{_PATH}: the second.", show_default=False)
    ],
    fail_on_regression: Annotated[
        str | None,
        typer.Option(
            "--fail-on-regression",
            metavar="PERCENT",
            help="Exit with status 1 if the step time grew by more, and by more than the noise.",
            show_default=False,
        ),
    ] = None,
    format: FormatOption = None,
    output: Output = None,
    classify: Classify = None,
) -> None:
    """Say what changed between two recordings, per step.

    Each change stands beside a noise band from the steps themselves: what lies
    within it proves nothing. Numbers of ranks and steps may differ.

    \b
    Examples:
      diagnose compare traces/before traces/after
      diagnose compare traces/main traces/branch --fail-on-regression 5%
    """
    from diagnose import engine
    from diagnose.analyzers._gate import Gate, gate
    from diagnose.cli._output import deliver, page_for, refuse_overwriting
    from diagnose.cli._reading import read
    from diagnose.cli._tables import chosen, required
    from diagnose.errors import EXIT_FINDINGS, UnavailableError
    from diagnose.findings import Diagnosis
    from diagnose.reporters._comparison import write

    refuse_overwriting(output, [before, after])
    form = chosen(format, output)
    limit = None if fail_on_regression is None else _percent(fail_on_regression)
    first, second = (read([path], None, classify) for path in (before, after))
    requests = {"comparison": engine.Request("compare", {"other": second})}
    diagnosis = engine.diagnose(first, requests, debug=bool(context.obj))
    required(diagnosis, "comparison")
    deliver(write(diagnosis, Diagnosis(second), form, page_for(output), limit), output)
    if limit is None:
        return
    outcome = gate(diagnosis.tables["comparison"], limit)
    if outcome is Gate.UNKNOWN:
        raise UnavailableError(
            "--fail-on-regression cannot be judged: the step time or its noise is not known",
            hint="record at least three consecutive steps in both recordings",
        )
    if outcome is Gate.REGRESSED:
        raise typer.Exit(EXIT_FINDINGS)


def _percent(text: str) -> float:
    from diagnose.errors import UsageError

    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(
            f"--fail-on-regression {text!r} is no percentage", hint="give a number, as 5%"
        )
    return value


COMMAND = compare
