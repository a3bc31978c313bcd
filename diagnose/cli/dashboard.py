"""``diagnose dashboard``: browse recordings."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from diagnose.errors import UsageError

_ADDRESS = "Listen there. Other machines reach what is not loopback: the token guards it."
_NAMES = "Another name by which browsers reach this server, as a proxy's."
_RECORD = "Let the pages record this machine's running job, as `diagnose attach` does."


def dashboard(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="Recordings, or folders that hold recordings: each can be chosen.",
            show_default=False,
        ),
    ],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help=_ADDRESS)] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 takes one that is free.")
    ] = 8050,
    host_name: Annotated[
        list[str] | None,
        typer.Option("--host-name", metavar="NAME", help=_NAMES, show_default=False),
    ] = None,
    allow_record: Annotated[bool, typer.Option("--allow-record", help=_RECORD)] = False,
    memory_limit: Annotated[
        float | None,
        typer.Option(
            metavar="GIB",
            min=0.1,
            help="What loaded recordings may keep together (default: 80 % of what is free).",
            show_default=False,
        ),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the browser.")] = False,
) -> None:
    """Browse recordings in the browser.

    Timeline, findings, overlap, contention, ranks, power, comparison. It prints an
    address that holds a token; whoever has it may look. From another machine:
    ssh -L 8050:localhost:8050 HOST, then open the address.

    \b
    Examples:
      diagnose dashboard recording/
      diagnose dashboard recordings/ --port 0 --open
      diagnose dashboard recordings/ --allow-record
    """
    missing = [path for path in paths if "://" not in path and not Path(path).exists()]
    if missing:
        raise UsageError(f"{missing[0]}: no such file or folder", hint="check the path")
    options = ["--host", host, "--port", str(port)]
    for name in host_name or ():
        options += ["--host-name", name]
    if allow_record:
        options.append("--allow-record")
    if memory_limit is not None:
        options += ["--memory-limit-bytes", str(int(memory_limit * 2**30))]
    if open_browser:
        options.append("--open")
    if context.obj:
        options.append("--debug")
    # A process of its own: this package does not import the one that draws it. It ends with
    # this one, however that ends: its standard input is a pipe that closes then.
    command = [sys.executable, "-m", "dashboard", "--end-with-parent", *options, "--", *paths]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        status = _until_it_ends(child)
    if status:
        raise typer.Exit(status)


def _until_it_ends(child: subprocess.Popen[bytes]) -> int:
    """The exit status of the server, which gets Ctrl-C from the terminal as we do."""
    while True:
        try:
            status = child.wait()
        except KeyboardInterrupt:
            # Ctrl-C that reached this process alone: the server has to hear of it, too.
            child.send_signal(signal.SIGINT)
            continue
        return status if status >= 0 else 128 - status


COMMAND = dashboard
