"""``diagnose whatif``: what a change would gain."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diagnose.cli._options import Classify, Output, Rank
from diagnose.errors import UsageError

if TYPE_CHECKING:
    from diagnose.engine import Request


class Format(str, Enum):
    """How the result is written."""

    text = "text"
    json = "json"
    csv = "csv"
    markdown = "markdown"


Change = Annotated[
    list[str] | None,
    typer.Option(
        "--change",
        metavar="ID[:FIELD=VALUE,...]",
        help="A change as --list shows it. Several are applied together, in order.",
        show_default=False,
    ),
]


def whatif(
    context: typer.Context,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH", help="Traces, as `diagnose report` takes them.", show_default=False
        ),
    ] = None,
    change: Change = None,
    search: Annotated[
        bool,
        typer.Option(
            "--search", help="Order the changes by what each adds, down to the bound (default)."
        ),
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="List the changes that exist, with their parameters.")
    ] = False,
    format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="How it is written (default: by the name of --output, else text).",
            show_default=False,
        ),
    ] = None,
    output: Output = None,
    classify: Classify = None,
    rank: Rank = None,
) -> None:
    """Say what a change would gain: replay with it.

    The step is executed anew from durations and dependencies, without the
    profiler's cost, before and after the changes. Each time has a range. With
    --search and --change together the search starts after those changes.

    \b
    Examples:
      diagnose whatif traces/
      diagnose whatif traces/ --change no-host-sync --change bucket-size:mb=50
      diagnose whatif --list
    """
    from diagnose import engine
    from diagnose.cli._output import deliver, page_for, refuse_overwriting
    from diagnose.cli._reading import read
    from diagnose.cli._tables import required
    from diagnose.replay.change_text import known
    from diagnose.reporters._replay import write, write_changes
    from diagnose.reporters._replay_records import change_rows

    form = _chosen(format, output)
    if list_:
        _refuse_beside_list(paths, change, search)
        deliver(write_changes(change_rows(known()), form, page_for(output)), output)
        return
    if not paths:
        raise UsageError("Missing argument 'PATH'.", hint="see `diagnose whatif --help`")
    refuse_overwriting(output, paths)
    requests = _requested(change or [], search)
    trace = read(paths, None, classify, rank)
    diagnosis = engine.diagnose(trace, requests, debug=bool(context.obj))
    required(diagnosis, *requests)
    deliver(write(diagnosis, form, page_for(output)), output)


def _requested(change: list[str], search: bool) -> dict[str, Request]:
    """The analysis asked for. UsageError for a change that does not exist, before reading."""
    from diagnose.engine import Request
    from diagnose.replay.change_text import parse

    changes = tuple(parse(one) for one in change)
    name = "staircase" if search or not changes else "replay"
    return {name: Request(name, {"changes": changes})}


def _refuse_beside_list(paths: list[str] | None, change: list[str] | None, search: bool) -> None:
    if paths or change or search:
        raise UsageError(
            "--list says which changes exist and reads no trace",
            hint="leave out PATH, --change and --search, or leave out --list",
        )


def _chosen(form: Format | None, output: Path | None) -> str:
    from diagnose.cli._formats import TABLE_SUFFIXES, format_of

    if form is not None:
        return form.value
    return format_of(output, {**TABLE_SUFFIXES, "markdown": (".md", ".markdown")})


COMMAND = whatif
