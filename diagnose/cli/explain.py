"""``diagnose explain``: the page of a rule, folklore, or an environment variable."""

from __future__ import annotations

from typing import Annotated

import typer

from diagnose.cli._options import Output


def explain(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="RULE|folklore|variables|VARIABLE",
            help="A rule's id, an environment variable, folklore, or variables: a list of them.",
            show_default=False,
        ),
    ],
    output: Output = None,
) -> None:
    """Explain a rule, a variable, or folk advice.

    \b
    Examples:
      diagnose explain straggler-rank
      diagnose explain NCCL_ALGO
      diagnose explain folklore
    """
    from diagnose.cli._explanations import explained
    from diagnose.cli._output import deliver, page_for

    deliver(explained(topic, page_for(output).width), output)


COMMAND = explain
