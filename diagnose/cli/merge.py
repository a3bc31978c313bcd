"""``diagnose merge``: recordings of one job from several hosts, as one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def merge(
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="The folder to make; must not exist or be empty.",
            show_default=False,
        ),
    ],
    recordings: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECORDING...",
            help="Folders, with a recording.json or with traces alone.",
            show_default=False,
        ),
    ],
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy files instead of linking them.")
    ] = False,
) -> None:
    """Join the recordings of one job's hosts.

    Every rank may occur once; the job must be one of one size. That the windows are of
    the same steps is checked as far as they tell, and said where they are not. The
    recordings stay as they are: where the file system can, files are hard links.
    It comes after `diagnose attach` on each host.

    \b
    Example:
      diagnose merge job/ host1/ host2/
      diagnose report job/
    """
    from diagnose.attach.merge import merge as join
    from diagnose.cli._merged import write
    from diagnose.cli._output import deliver, page_for

    merged = join(output, recordings, link=not copy)
    deliver(write(merged, page_for(None)), None)


COMMAND = merge
