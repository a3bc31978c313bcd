"""``diagnose report``: the whole diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diagnose.cli._formats import format_of
from diagnose.cli._options import Classify, OnlyOption, Output, Paths, Rank
from diagnose.errors import UsageError

if TYPE_CHECKING:
    from diagnose.reporters import Reporter


def report(
    context: typer.Context,
    paths: Paths,
    format: Annotated[
        str | None,
        typer.Option(
            help="text, markdown or json (default: by the name of --output, else text).",
            show_default=False,
        ),
    ] = None,
    output: Output = None,
    classify: Classify = None,
    only: OnlyOption = None,
    rank: Rank = None,
    nccl_tests: Annotated[
        Path | None,
        typer.Option(
            "--nccl-tests",
            metavar="FILE",
            help="Output of nccl-tests on this machine, shown beside each collective.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Say where the time of each GPU and step went.

    The report judges first whether the trace can be believed.

    \b
    Examples:
      diagnose report traces/
      diagnose report rank0.json.gz rank1.json.gz --format json -o report.json
    """
    from diagnose import engine
    from diagnose.cli._output import deliver, page_for, refuse_overwriting
    from diagnose.cli._report import Reading, report_text

    refuse_overwriting(output, paths)
    reporters = engine.reporters()
    reporter = reporters[_chosen(format, output, reporters)]
    reading = Reading(None if only is None else only.value, classify, rank, nccl_tests)
    text = report_text(paths, reporter, page_for(output), reading, debug=bool(context.obj))
    deliver(text, output)


def _chosen(asked: str | None, output: Path | None, reporters: Mapping[str, Reporter]) -> str:
    if asked is None:
        suffixes = {name: reporter.suffixes for name, reporter in reporters.items()}
        return format_of(output, suffixes)
    if asked not in reporters:
        known = ", ".join(sorted(reporters))
        raise UsageError(f"there is no format {asked!r}", hint=f"use one of {known}")
    return asked


COMMAND = report
