"""``diagnose report``: the whole diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diagnose.cli._formats import format_of
from diagnose.cli._options import Classify, OnlyOption, Output, Paths, Rank
from diagnose.cli._rules import (
    Baseline,
    Config,
    FailOnOption,
    Ignore,
    Select,
    WriteBaseline,
)
from diagnose.errors import EXIT_FINDINGS, UsageError

if TYPE_CHECKING:
    from diagnose.reporters import Reporter


def report(
    context: typer.Context,
    paths: Paths,
    format: Annotated[
        str | None,
        typer.Option(
            help="text, markdown, json or html (default: by the name of --output, else text).",
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
    select: Select = None,
    ignore: Ignore = None,
    fail_on: FailOnOption = None,
    baseline: Baseline = None,
    write_baseline: WriteBaseline = None,
    config: Config = None,
) -> None:
    """Say what slows the job down, and what to do.

    The report judges first whether the trace can be believed.

    \b
    Examples:
      diagnose report traces/
      diagnose report rank0.json.gz rank1.json.gz --format json -o report.json
      diagnose report traces/ --fail-on warning --baseline accepted.json
    """
    from diagnose import engine
    from diagnose.cli import _rules
    from diagnose.cli._output import deliver, page_for, refuse_overwriting
    from diagnose.cli._report import Reading, report_of

    refuse_overwriting(output, paths)
    refuse_overwriting(write_baseline, paths)
    judging = _rules.judging_of(select, ignore, config, baseline)
    reporters = engine.reporters()
    reporter = reporters[_chosen(format, output, reporters)]
    reading = Reading(None if only is None else only.value, classify, rank, nccl_tests)
    page, debug = page_for(output), bool(context.obj)
    made = report_of(paths, reporter, page, reading, judging, debug=debug)
    deliver(made.text, output)
    if write_baseline is not None:
        _rules.write_baseline(made.diagnosis, write_baseline)
    if _rules.fails(made.diagnosis, fail_on):
        raise typer.Exit(EXIT_FINDINGS)


def _chosen(asked: str | None, output: Path | None, reporters: Mapping[str, Reporter]) -> str:
    if asked is None:
        suffixes = {name: reporter.suffixes for name, reporter in reporters.items()}
        return format_of(output, suffixes)
    if asked not in reporters:
        known = ", ".join(sorted(reporters))
        raise UsageError(f"there is no format {asked!r}", hint=f"use one of {known}")
    return asked


COMMAND = report
