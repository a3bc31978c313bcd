"""Who may ask: whoever holds the token, under the names that this server goes by.

A recording names hosts, paths and code, and login nodes are shared, so a token is
demanded on loopback too. It is given once in the address, and lives on in a cookie
that scripts cannot read and other sites do not send. The Host header is checked
because a page elsewhere can let its own name point to 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

from flask import Flask, Request, Response, redirect, request

PARAMETER = "token"
_SCRIPTS = "/_dash-component-suites/"
"""Of packages: the same for everybody, with their version in the address."""
_NOT_IN_A_HOST = re.compile(r"[^A-Za-z0-9.:\[\]_-]")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SECURE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def new_token() -> str:
    """A token that nobody guesses: 192 bits."""
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class Guard:
    """What is checked on every request. ``hosts``: names beside loopback's own."""

    token: str = field(default_factory=new_token, repr=False)
    hosts: tuple[str, ...] = ()
    port: int = 0
    is_public: bool = False
    """Whether it listens to other machines: then under any of its addresses."""

    @property
    def cookie(self) -> str:
        """Cookies do not tell ports apart, so each server has a name for its own."""
        return f"diagnose-{self.port}"

    def protect(self, server: Flask, scripts: tuple[str, ...]) -> None:
        """Check each request of a server. ``scripts``: hashes of its own inline scripts."""
        own = " ".join(("'self'", *scripts))
        policy = "; ".join(
            (
                "default-src 'none'",
                f"script-src {own}",
                # Plotly and the components set styles of elements.
                "style-src 'self' 'unsafe-inline'",
                "img-src 'self' data: blob:",
                "font-src 'self' data:",
                "connect-src 'self'",
                "base-uri 'none'",
                "form-action 'self'",
                "frame-ancestors 'none'",
            )
        )

        @server.before_request
        def check() -> Response | None:
            return self.answer(request)

        @server.after_request
        def add_headers(response: Response) -> Response:
            response.headers.update(_SECURE_HEADERS)
            if not request.path.startswith(_SCRIPTS):
                # What a recording says is not to stay on the disk of whoever looked at it.
                response.headers["Cache-Control"] = "no-store"
            response.headers["Content-Security-Policy"] = policy
            return response

    def answer(self, asked: Request) -> Response | None:
        """None where the request may go on; else what it gets instead."""
        host = asked.headers.get("Host", "")
        if not self._is_ours(host):
            return _refused(
                421,
                "This address is not one of the server's own names.",
                "Open the address that `diagnose dashboard` printed; name others with --host-name.",
            )
        if not _is_own_origin(asked.headers.get("Origin"), host) or _is_pulled_in(asked):
            return _refused(403, "Another site asked.", "Open the dashboard in a tab of its own.")
        given = asked.args.get(PARAMETER)
        if given is not None and self._matches(given) and asked.method == "GET":
            return self._welcome(asked)
        if self._matches(asked.cookies.get(self.cookie, "")):
            return None
        if _came_by_link(asked):
            return _again()
        return _refused(
            401,
            "This dashboard asks for its token.",
            "Open the address that `diagnose dashboard` printed when it started: it holds the "
            "token.",
        )

    def _matches(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())

    def _is_ours(self, header: str) -> bool:
        if _NOT_IN_A_HOST.search(header):
            return False
        try:
            parts = urlsplit(f"//{header}")
            name = (parts.hostname or "").removesuffix(".")
            parts.port  # noqa: B018 - reading it checks it
        except ValueError:
            return False
        if name in (*_LOOPBACK, *(one.lower() for one in self.hosts)):
            return True
        # No name, so nobody can have made it point here: the browser itself came here.
        return self.is_public and _is_address(name)

    def _welcome(self, asked: Request) -> Response:
        """The same address without the token, so that it stays out of history and screenshots."""
        rest = [(key, value) for key, value in asked.args.items(multi=True) if key != PARAMETER]
        # Only a path of this server: "//elsewhere" would be an address of another.
        path = "/" + asked.path.lstrip("/\\")
        search = f"?{urlencode(rest, safe=':,')}" if rest else ""
        response: Response = redirect(path + search)  # type: ignore[assignment]
        response.set_cookie(
            self.cookie, self.token, httponly=True, samesite="Strict", secure=asked.is_secure
        )
        return response


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_own_origin(origin: str | None, host: str) -> bool:
    """Behind a proxy the scheme may differ, the name may not."""
    if origin is None:
        return True
    scheme, _, name = origin.partition("://")
    return scheme in ("http", "https") and name.lower() == host.lower()


def _is_pulled_in(asked: Request) -> bool:
    """Whether a page of another site, or of another port, uses this as a part of itself."""
    site = asked.headers.get("Sec-Fetch-Site", "none")
    return site not in ("none", "same-origin") and not _is_navigation(asked)


def _is_navigation(asked: Request) -> bool:
    return asked.method == "GET" and asked.headers.get("Sec-Fetch-Mode") == "navigate"


def _came_by_link(asked: Request) -> bool:
    """Whether somebody followed a link of another site: the browser keeps the cookie back then."""
    return _is_navigation(asked) and asked.headers.get("Sec-Fetch-Site") in (
        "cross-site",
        "same-site",
    )


def _again() -> Response:
    """Asks once more, from here, so that the cookie comes along; the address stays as it is."""
    return Response('<!DOCTYPE html><meta http-equiv="refresh" content="0">', mimetype="text/html")


def _refused(status: int, sentence: str, remedy: str) -> Response:
    return Response(f"{sentence}\n{remedy}\n", status, mimetype="text/plain")
