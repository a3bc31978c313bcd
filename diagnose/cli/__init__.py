"""The command line. Each public module of this package is a verb and exports ``COMMAND``.

Exit status: 0 done, 2 wrong usage or unreadable input, 3 an internal failure;
130 after Ctrl-C, as shells expect. 1 is kept for findings.
"""

from __future__ import annotations

import faulthandler
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from diagnose.errors import EXIT_INTERNAL, EXIT_USAGE, DiagnoseError

if TYPE_CHECKING:
    import typer

_INTERRUPTED = 130
_DEBUG = "--debug"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit status."""
    # What crashes below Python, as a driver's library, then leaves a stack for a bug report.
    with suppress(AttributeError, RuntimeError, ValueError):
        faulthandler.enable()
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(execute(given))


def execute(arguments: Sequence[str]) -> int:
    """Run the command line; errors go to stderr as ``error: ...`` and ``hint: ...``.

    ``--debug`` may stand anywhere and lets an unexpected error end in its traceback.
    """
    debug = _DEBUG in arguments
    rest = [argument for argument in arguments if argument != _DEBUG]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app = _app(rest[0] if rest else "")
        status = app(rest or ["--help"], standalone_mode=False, obj=debug, prog_name="diagnose")
    except KeyboardInterrupt:
        _say("interrupted")
        return _INTERRUPTED
    except DiagnoseError as error:
        if debug:
            traceback.print_exc()
        _say(f"error: {error.message}", error.hint)
        return error.exit_status
    except Exception as error:  # noqa: BLE001 - a person never sees a traceback unasked
        return _unexpected(error, debug)
    if status == _INTERRUPTED:  # some versions of typer answer Ctrl-C so
        _say("interrupted")
    if not rest:
        return EXIT_USAGE
    return status if isinstance(status, int) else 0


def _unexpected(error: Exception, debug: bool) -> int:
    # Which package a usage error's class lives in depends on typer's version.
    message = getattr(error, "format_message", None)
    if message is not None:
        context = getattr(error, "ctx", None)
        _say(f"error: {message()}", f"see `{context.command_path} --help`" if context else "")
        return EXIT_USAGE
    if type(error).__name__ == "Abort":
        _say("interrupted")
        return _INTERRUPTED
    if debug:
        traceback.print_exception(error)
        return EXIT_INTERNAL
    _say(
        f"error: diagnose itself failed: {type(error).__name__}: {error}",
        "this is a bug; please report it with the output of the same command and --debug",
    )
    return EXIT_INTERNAL


def _say(message: str, hint: str = "") -> None:
    from diagnose.wording.plain import plain

    if sys.stderr is None:
        return
    print(plain(message), file=sys.stderr)  # noqa: T201
    if hint:
        print(f"hint: {plain(hint)}", file=sys.stderr)  # noqa: T201


def _app(verb: str = "") -> typer.Typer:
    """The command line; where ``verb`` is one of its verbs, of that verb alone.

    Looking at the options of all verbs is a tenth of what a small command costs.
    """
    import typer

    from diagnose import engine
    from diagnose.cli._options import root

    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    names = [name for name in engine.public(__name__) if verb == name.replace("_", "-")]
    for name in names or engine.public(__name__):
        command = engine.constant_of(f"{__name__}.{name}", "COMMAND")
        app.command(name.replace("_", "-"))(command)
    return app
