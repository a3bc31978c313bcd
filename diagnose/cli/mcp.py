"""``diagnose mcp``: answers for coding assistants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def mcp(
    context: typer.Context,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FOLDER...",
            help="Only recordings under these folders can be read (default: where it is started).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Answer a coding assistant (MCP server).

    Speaks the Model Context Protocol over standard input and output: an assistant starts it,
    and it ends with its input. It reads, writes nothing and reaches no network.
    Needs: pip install 'torch-diagnose[mcp]'

    \b
    Example:
      diagnose mcp ~/traces /data/recordings
    """
    from diagnose.assistant.server import serve
    from diagnose.cli._explanations import explained

    serve(folders or [Path()], explained, debug=bool(context.obj))


COMMAND = mcp
