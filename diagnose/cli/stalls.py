"""``diagnose stalls``: why each GPU stood still."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from diagnose.cli._options import Classify, Output, Paths, Rank
from diagnose.cli._tables import FormatOption


class By(str, Enum):
    """What a row is, beside a GPU."""

    cause = "cause"
    step = "step"
    interval = "interval"


def stalls(
    context: typer.Context,
    paths: Paths,
    by: Annotated[By, typer.Option(help="What a row is.")] = By.cause,
    format: FormatOption = None,
    output: Output = None,
    classify: Classify = None,
    rank: Rank = None,
) -> None:
    """Say why each GPU stood still, interval by interval.

    Every idle interval has one cause. Copies that run with nothing beside them
    count as stalls too. Per GPU the causes sum to idle and copies alone, exactly.

    \b
    Examples:
      diagnose stalls traces/
      diagnose stalls traces/ --by interval --format csv -o stalls.csv
    """
    from diagnose import engine
    from diagnose.cli._output import deliver, page_for, refuse_overwriting
    from diagnose.cli._reading import read
    from diagnose.cli._tables import chosen, required
    from diagnose.reporters._stalls import write

    refuse_overwriting(output, paths)
    form = chosen(format, output)
    requests = {
        "stalls": engine.Request("stalls"),
        "host_waits": engine.Request("host_waits"),
        "causes": engine.Request("stall_causes"),
        "sites": engine.Request("stall_sites"),
    }
    trace = read(paths, None, classify, rank)
    diagnosis = engine.diagnose(trace, requests, debug=bool(context.obj))
    required(diagnosis, "stalls", "causes", "sites")
    deliver(write(diagnosis, by.value, form, page_for(output)), output)


COMMAND = stalls
