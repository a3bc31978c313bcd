"""``diagnose overlap``: how much communication was hidden, split one way."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from diagnose.cli._options import Classify, Output, Paths, Rank


class By(str, Enum):
    """What a row is, beside a GPU."""

    rank = "rank"
    step = "step"
    stream = "stream"
    group = "group"
    collective = "collective"


class Format(str, Enum):
    """How the table is written."""

    text = "text"
    csv = "csv"
    json = "json"


def overlap(
    paths: Paths,
    by: Annotated[By, typer.Option(help="What a row is.")] = By.rank,
    format: Annotated[
        Format | None,
        typer.Option(
            help="How the table is written (default: by the name of --output, else text).",
            show_default=False,
        ),
    ] = None,
    output: Output = None,
    classify: Classify = None,
    rank: Rank = None,
) -> None:
    """Measure how much communication was hidden.

    Hidden is what ran while the same GPU computed; all figures are exact.

    \b
    Examples:
      diagnose overlap traces/
      diagnose overlap traces/ --by step --format csv -o steps.csv
    """
    from diagnose import engine
    from diagnose.analysis import Unavailable
    from diagnose.cli._formats import TABLE_SUFFIXES, format_of
    from diagnose.cli._output import deliver, page_for, refuse_overwriting
    from diagnose.cli._reading import read
    from diagnose.errors import UnavailableError
    from diagnose.findings import Diagnosis
    from diagnose.reporters._overlap import write

    refuse_overwriting(output, paths)
    form = format.value if format is not None else format_of(output, TABLE_SUFFIXES)
    trace = read(paths, "launches" if by is By.step else "gpu", classify, rank)
    table = engine.run(engine.analyzers()["overlap"], trace, by=by.value)
    if isinstance(table, Unavailable):
        raise UnavailableError(table.because, hint=table.remedy)
    at_head = engine.diagnose(trace, {}).tables
    diagnosis = Diagnosis(trace, {**at_head, "overlap": table})
    deliver(write(diagnosis, by.value, form, page_for(output)), output)


COMMAND = overlap
