"""``diagnose ranks``: who waits for whom."""

from __future__ import annotations

from typing import Annotated

import typer

from diagnose.cli._options import Classify, Output, Paths
from diagnose.cli._tables import FormatOption


def ranks(
    context: typer.Context,
    paths: Paths,
    link_gb_per_s: Annotated[
        float | None,
        typer.Option(
            "--link-gb-per-s",
            metavar="RATE",
            help="Nominal rate of the link, 10^9 bytes/s in one direction, to compare with.",
            show_default=False,
        ),
    ] = None,
    format: FormatOption = None,
    output: Output = None,
    classify: Classify = None,
) -> None:
    """Say which ranks are late, and what that costs the others.

    Needs the traces of several ranks of one job. Waiting for late ranks and moving
    bytes are told apart; bandwidths are of the transfer alone.

    \b
    Examples:
      diagnose ranks traces/
      diagnose ranks traces/ --link-gb-per-s 450 --format json
    """
    from diagnose import engine
    from diagnose.cli._output import deliver, page_for, refuse_overwriting
    from diagnose.cli._reading import read
    from diagnose.cli._tables import chosen, required
    from diagnose.errors import UsageError
    from diagnose.reporters._ranks import write

    refuse_overwriting(output, paths)
    form = chosen(format, output)
    if link_gb_per_s is not None and not 0 < link_gb_per_s < float("inf"):
        raise UsageError(
            f"--link-gb-per-s {link_gb_per_s} is no rate", hint="give 10^9 bytes/s, as 450"
        )
    requests = {
        "ranks": engine.Request("ranks"),
        "stragglers": engine.Request("stragglers"),
        "clocks": engine.Request("clock_offsets"),
        "unmatched": engine.Request("unmatched_collectives"),
        "transfer_bandwidth": engine.Request(
            "transfer_bandwidth", {"link_gb_per_s": link_gb_per_s}
        ),
    }
    trace = read(paths, "launches", classify)
    diagnosis = engine.diagnose(trace, requests, debug=bool(context.obj))
    required(diagnosis, "ranks", "stragglers")
    deliver(write(diagnosis, form, page_for(output)), output)


COMMAND = ranks
