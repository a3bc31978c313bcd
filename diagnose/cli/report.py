"""``diagnose report``: the whole diagnosis."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from diagnose.cli._formats import format_of
from diagnose.cli._options import Classify, Only, OnlyOption, Output, Paths, Rank
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
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="Read launches and synchronisations alone, no operators: about half the time. "
            "What then cannot be judged is listed as not checked.",
        ),
    ] = False,
    rank: Rank = None,
    nccl_tests: Annotated[
        Path | None,
        typer.Option(
            "--nccl-tests",
            metavar="FILE",
            help="Output of nccl-tests on these ranks: shown beside each collective, and what "
            "rules hold its bandwidth against.",
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
      diagnose report traces/ --fast
      diagnose report traces/ --fail-on warning --baseline accepted.json
    """
    from diagnose.cli import _rules
    from diagnose.cli._output import deliver, page_for, refuse_overwriting
    from diagnose.cli._report import Reading, report_of

    refuse_overwriting(output, paths)
    refuse_overwriting(write_baseline, paths)
    judging = _rules.judging_of(select, ignore, config, baseline)
    reporter = _chosen(format, output)
    if fast and only is not None:
        raise UsageError(
            "--fast and --only both say how much is read",
            hint="leave one of them out; --fast is --only launches",
        )
    kept = Only.launches if fast else only
    reading = Reading(None if kept is None else kept.value, classify, rank, nccl_tests)
    page, debug = page_for(output), bool(context.obj)
    made = report_of(paths, reporter, page, reading, judging, debug=debug)
    deliver(made.text, output)
    if write_baseline is not None:
        _rules.write_baseline(made.diagnosis, write_baseline)
    if _rules.fails(made.diagnosis, fail_on):
        raise typer.Exit(EXIT_FINDINGS)


def _chosen(asked: str | None, output: Path | None) -> Reporter:
    """Only the format that is asked for is imported, where that can be told without the others."""
    from diagnose import engine

    if asked is None and output is not None:
        reporters = engine.reporters()
        suffixes = {name: reporter.suffixes for name, reporter in reporters.items()}
        return cast("Reporter", reporters[format_of(output, suffixes)])
    known, name = engine.public("diagnose.reporters"), asked or "text"
    if name not in known:
        raise UsageError(f"there is no format {name!r}", hint=f"use one of {', '.join(known)}")
    return cast("Reporter", engine.constant_of(f"diagnose.reporters.{name}", "REPORTER"))


COMMAND = report
