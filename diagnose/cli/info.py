"""``diagnose info``: what is in these files, and what could not be read."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from diagnose.cli._options import Classify, OnlyOption, Output, Paths, Rank


class Format(str, Enum):
    """How the answer is written."""

    text = "text"
    json = "json"


def info(
    paths: Paths,
    format: Annotated[Format, typer.Option(help="How the answer is written.")] = Format.text,
    output: Output = None,
    classify: Classify = None,
    only: OnlyOption = None,
    rank: Rank = None,
) -> None:
    """Say what is in these files, and what is not.

    Every note on what was repaired, left out or doubted is given in full, with
    its count and what it does to which number.

    \b
    Examples:
      diagnose info traces/
      diagnose info traces/ --format json
    """
    from diagnose import engine
    from diagnose.cli._output import deliver, page_for
    from diagnose.cli._reading import read
    from diagnose.reporters._info import write

    trace = read(paths, only.value if only else None, classify, rank)
    deliver(write(engine.diagnose(trace, {}), format.value, page_for(output)), output)


COMMAND = info
