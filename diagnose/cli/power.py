"""``diagnose power``: what each GPU drew, and what its clocks did."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from diagnose.cli._options import Classify, Output, Paths, Rank
from diagnose.cli._tables import FormatOption


class By(str, Enum):
    """What the second table has a row for, beside a GPU."""

    class_ = "class"
    step = "step"
    reason = "reason"


def power(
    context: typer.Context,
    paths: Paths,
    by: Annotated[By, typer.Option(help="What a row of the second table is.")] = By.class_,
    format: FormatOption = None,
    output: Output = None,
    classify: Classify = None,
    rank: Rank = None,
) -> None:
    """Say what power and energy each class of work takes.

    Needs telemetry beside the trace, as `diagnose attach` records it. Figures have
    95 % intervals, or are absent with the reason. A GPU that several ranks share
    counts once. CSV holds the rows of --by, JSON holds everything.

    \b
    Examples:
      diagnose power recording/
      diagnose power recording/ --by step --format csv -o energy.csv
    """
    from diagnose import engine
    from diagnose.cli._output import deliver, page_for, refuse_overwriting
    from diagnose.cli._reading import read
    from diagnose.cli._tables import chosen, required
    from diagnose.reporters._power import write

    refuse_overwriting(output, paths)
    form = chosen(format, output)
    requests = {
        "summary": engine.Request("power_summary"),
        "classes": engine.Request("power_classes"),
        "steps": engine.Request("power_steps"),
        "reasons": engine.Request("clock_reasons"),
    }
    trace = read(paths, "launches", classify, rank)
    diagnosis = engine.diagnose(trace, requests, debug=bool(context.obj))
    required(diagnosis, "summary", "classes")
    deliver(write(diagnosis, by.value, form, page_for(output)), output)


COMMAND = power
