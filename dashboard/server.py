"""Listens, says where, and ends in order."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import dash
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from diagnose.errors import UsageError

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """A signal asks the process to end. Not an error: nothing may take it for one."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_status = 128 + number


class _Quiet(WSGIRequestHandler):
    """Requests are not worth a line each, and their addresses may hold the token."""

    timeout = 60
    """Seconds that a connection may say nothing."""

    def log(self, type: str, message: str, *args: object) -> None:
        """Say nothing: bad requests and lost connections are the business of who made them."""

    def version_string(self) -> str:
        return "torch-diagnose"


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. UsageError where that is impossible."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, OverflowError, UnicodeError) as problem:
        raise _cannot_listen(host, port, problem) from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, OverflowError) as problem:
        listening.close()
        raise _cannot_listen(host, port, problem) from None
    return listening


def _cannot_listen(host: str, port: int, problem: Exception) -> UsageError:
    why = (problem.strerror if isinstance(problem, OSError) else None) or str(problem)
    return UsageError(
        f"cannot listen on {host}, port {port}: {why}",
        hint="choose another --port (0 takes a free one) or --host",
    )


@contextmanager
def ending_by_signal() -> Iterator[None]:
    """Ctrl-C, SIGTERM and a lost terminal end what runs inside by ``Ended``, once."""

    def end(number: int, _frame: FrameType | None) -> None:
        for one in _ENDING:
            signal.signal(one, signal.SIG_IGN)
        raise Ended(number)

    before = {one: signal.signal(one, end) for one in _ENDING}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def end_with_parent() -> None:
    """End when the standard input closes: whoever started this process holds its other end."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def serve(app: dash.Dash, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Answer until the process is told to end; a thread a request."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    host, port = listening.getsockname()[:2]
    server: BaseWSGIServer = make_server(
        host,
        port,
        app.server,
        threaded=True,
        request_handler=_Quiet,
        fd=listening.fileno(),
    )
    server.daemon_threads = True  # type: ignore[attr-defined]
    ready()
    try:
        server.serve_forever()
    finally:
        server.server_close()
        listening.close()
