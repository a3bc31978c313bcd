"""``diagnose contention``: what overlap costs."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from diagnose.cli._options import Classify, Output, Paths, Rank
from diagnose.cli._tables import FormatOption


class By(str, Enum):
    """What a row is."""

    collective = "collective"
    family = "family"
    kernel = "kernel"
    step = "step"


Alone = Annotated[
    str | None,
    typer.Option(
        "--alone",
        metavar="PATH",
        help="The same job recorded with communication serialised: the exact method.",
        show_default=False,
    ),
]


def contention(
    context: typer.Context,
    paths: Paths,
    alone: Alone = None,
    by: Annotated[By, typer.Option(help="What a row is.")] = By.collective,
    format: FormatOption = None,
    output: Output = None,
    classify: Classify = None,
    rank: Rank = None,
) -> None:
    """Say what overlap costs: how much slower compute gets.

    Kernels that ran beside communication are compared with the same kernels that ran
    alone, in this recording or in --alone. Each figure says of how much of the overlapped
    compute it is made, and how far it can be off.

    \b
    Examples:
      diagnose contention traces/
      diagnose contention traces/overlapped --alone traces/serial --by kernel
    """
    from diagnose import engine
    from diagnose.cli._output import deliver, page_for, refuse_overwriting
    from diagnose.cli._reading import read
    from diagnose.cli._tables import chosen, required
    from diagnose.reporters._contention import write

    refuse_overwriting(output, [*paths, *([alone] if alone else [])])
    form = chosen(format, output)
    trace = read(paths, "shapes", classify, rank)
    other = None if alone is None else read([alone], "shapes", classify)
    options = {"alone": other}
    named = options | {"classify": classify}
    requests = {
        "contention": engine.Request("contention", {**named, "by": "all"}),
        "basis": engine.Request("contention_basis", options),
        "balance": engine.Request("overlap_balance", options),
        "causes": engine.Request("contention_causes", options),
        "communication": engine.Request("communication_slowdown", options),
    }
    if by is By.kernel:
        requests["kernel"] = engine.Request("contention_kernels", named)
    elif by is not By.step:
        requests[by.value] = engine.Request("contention", {**named, "by": by.value})
    diagnosis = engine.diagnose(trace, requests, debug=bool(context.obj))
    required(diagnosis, "contention", "basis", "balance", "causes")
    deliver(write(diagnosis, by.value, alone, form, page_for(output)), output)


COMMAND = contention
