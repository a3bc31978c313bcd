"""``python -m dashboard``: what ``diagnose dashboard`` starts."""

from __future__ import annotations

import argparse
import logging
import socket
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from dashboard.server import Ended, bind, end_with_parent, ending_by_signal, serve
from diagnose.errors import DiagnoseError, UsageError
from diagnose.wording.plain import plain

_EVERYWHERE = ("0.0.0.0", "::", "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to end; the exit status is that of the command line (Ctrl-C: 130)."""
    given = _parser().parse_args(arguments)
    logging.getLogger("dashboard").setLevel(logging.DEBUG if given.debug else logging.ERROR)
    try:
        with ending_by_signal():
            _run(given)
    except Ended as ended:
        return ended.exit_status
    except DiagnoseError as error:
        _say(f"error: {error.message}")
        if error.hint:
            _say(f"hint: {error.hint}")
        return error.exit_status
    return 0


def _say(line: str) -> None:
    print(plain(line), file=sys.stderr)  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="diagnose dashboard")
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8050)
    parser.add_argument("--host-name", action="append", default=[])
    parser.add_argument("--allow-record", action="store_true")
    parser.add_argument("--memory-limit-bytes", type=int)
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--end-with-parent", action="store_true")
    return parser


def _run(given: argparse.Namespace) -> None:
    if given.end_with_parent:
        end_with_parent()
    from dashboard.library import Library
    from dashboard.live import Recorder
    from dashboard.security import Guard, is_loopback

    library = Library(given.paths, limit_bytes=given.memory_limit_bytes)
    recorder = Recorder(_first_folder(given.paths)) if given.allow_record else None
    listening = bind(given.host, given.port)
    port = listening.getsockname()[1]
    public = not is_loopback(given.host)
    names = [socket.gethostname(), socket.getfqdn()] if given.host in _EVERYWHERE else [given.host]
    guard = Guard(hosts=(*names, *given.host_name), port=port, is_public=public)
    from dashboard.app import create_app

    app = create_app(library, guard, recorder=recorder)
    shown = f"[{names[0]}]" if ":" in names[0] else names[0]
    address = f"http://{shown}:{port}/?token={guard.token}"

    def ready() -> None:
        print(f"Dashboard: {address}", flush=True)  # noqa: T201
        print("The address holds the token: keep it to yourself. Ctrl-C ends.", flush=True)  # noqa: T201
        if public:
            _say(
                "warning: other machines reach this server, and what it sends is not encrypted; "
                "`ssh -L` to a server on 127.0.0.1 is"
            )
        if given.open:
            webbrowser.open(address)

    try:
        serve(app, listening, ready)
    finally:
        if recorder is not None:
            recorder.close()


def _first_folder(paths: Sequence[str]) -> Path:
    """Where recordings made from here go: what is recorded has to be found again."""
    for path in paths:
        if "://" not in path and Path(path).is_dir():
            return Path(path)
    raise UsageError(
        "--allow-record needs a folder for what is recorded",
        hint="give a folder as a PATH; the first one is used",
    )


if __name__ == "__main__":
    sys.exit(main())
