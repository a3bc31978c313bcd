"""Who gets an answer: the token, the names of the server, other sites, and what headers say."""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import EnvironBuilder, TestResponse, run_wsgi_app
from werkzeug.wrappers import Request

from dashboard.security import Guard, new_token
from tests.dashboard.conftest import PORT, TOKEN, Asked

COOKIE = {"Cookie": f"diagnose-{PORT}={TOKEN}"}


def guarded(**given: Any) -> Any:
    server = Flask("guarded")
    server.add_url_rule("/", "root", lambda: "inside", methods=["GET", "POST"])
    server.add_url_rule("/<path:any>", "any", lambda any: "inside")
    Guard(token=TOKEN, port=PORT, **given).protect(server, ("'sha256-x'",))
    return server.test_client(use_cookies=False)


def ask(client: Any, path: str = "/", method: str = "GET", **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    environ = EnvironBuilder(path, method=method, headers=named).get_environ()
    # As a server passes it on, whatever it is: the client of some versions reads it itself.
    environ["HTTP_HOST"] = headers.get("Host", "localhost:8050")
    return TestResponse(*run_wsgi_app(client.application, environ), Request(environ))


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8050", "LOCALHOST:1", "localhost.", "127.0.0.1:9999"),
        *("[::1]", "[::1]:8050", "proxy.example", "Proxy.Example:443"),
    ],
)
def test_own_names_may_be_used_with_any_port(host: str) -> None:
    client = guarded(hosts=("Proxy.example",))
    assert ask(client, **COOKIE, Host=host).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "localhost.."),
        *("evil@localhost", "localhost@evil", "localhost:x", "localhost:99999", "[::1", "::1"),
        *("localhost/evil", "localhost#", "localhost evil", "192.168.0.1", "0.0.0.0", "2130706433"),
        *("127.1", "[::ffff:127.0.0.1]", "localhost\\evil", "\u2113ocalhost"),
    ],
)
def test_all_other_names_are_refused(host: str) -> None:
    answer = ask(guarded(), f"/?token={TOKEN}", **COOKIE, Host=host.encode().decode("latin-1"))
    assert answer.status_code == 421
    assert "Set-Cookie" not in answer.headers


def test_a_server_for_other_machines_may_be_reached_by_address_not_by_any_name() -> None:
    client = guarded(is_public=True)
    assert ask(client, **COOKIE, Host="192.168.0.1:8050").status_code == 200
    assert ask(client, **COOKIE, Host="[fe80::1]:8050").status_code == 200
    assert ask(client, **COOKIE, Host="evil.example").status_code == 421


def test_the_token_turns_into_a_cookie_that_scripts_and_sites_do_not_get() -> None:
    answer = ask(guarded(), f"/findings?recording=a&token={TOKEN}&theme=dark")
    assert (answer.status_code, answer.headers["Location"]) == (
        302,
        "/findings?recording=a&theme=dark",
    )
    cookie = answer.headers["Set-Cookie"].split("; ")
    assert cookie[0] == f"diagnose-{PORT}={TOKEN}"
    assert set(cookie[1:]) == {"HttpOnly", "Path=/", "SameSite=Strict"}
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "path", ["//evil.example/x", "/\\evil.example", "///evil.example", "/%5Cevil"]
)
def test_the_way_back_never_leads_elsewhere(path: str) -> None:
    answer = ask(guarded(), f"{path}?token={TOKEN}")
    if answer.status_code == 302:
        place = answer.headers["Location"]
        assert re.match(r"/(?![/\\])", place), place


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "\udc80", "é"])
def test_another_token_opens_nothing(token: str) -> None:
    guard = Guard(token=TOKEN)
    assert not guard._matches(token)
    assert guard._matches(TOKEN)


def test_a_wrong_token_is_told_what_to_do() -> None:
    answer = ask(guarded(), "/?token=wrong")
    assert answer.status_code == 401
    assert "address that `diagnose dashboard` printed" in answer.text
    assert "inside" not in answer.text
    assert ask(guarded(), "/", Cookie=f"diagnose-8051={TOKEN}").status_code == 401


def test_the_token_is_taken_from_the_address_of_a_page_only() -> None:
    assert ask(guarded(), f"/?token={TOKEN}", method="POST").status_code == 401
    assert ask(guarded(), f"/?token={TOKEN}", method="HEAD").status_code == 401
    assert ask(guarded(), "/", method="OPTIONS").status_code == 401


def test_tokens_are_long_and_not_shown_with_the_guard() -> None:
    assert len({new_token() for _ in range(50)}) == 50
    assert len(new_token()) == 32
    assert TOKEN not in repr(Guard(token=TOKEN))


@pytest.mark.parametrize(
    "origin",
    ["null", "http://evil.example", "http://localhost:8051", "http://localhost", "file://", "x"],
)
def test_other_origins_are_refused_with_the_cookie_too(origin: str) -> None:
    assert ask(guarded(), "/", "POST", **COOKIE, Origin=origin).status_code == 403


@pytest.mark.parametrize("origin", ["http://localhost:8050", "https://LOCALHOST:8050"])
def test_its_own_origin_may_ask_behind_a_proxy_too(origin: str) -> None:
    assert ask(guarded(), "/", "POST", **COOKIE, Origin=origin).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_no_other_page_may_take_it_as_a_part(site: str) -> None:
    """Another port of this machine is the same site: its requests carry the cookie."""
    for mode in ("no-cors", "cors", "websocket"):
        answer = ask(guarded(), "/", **COOKIE, Sec_Fetch_Site=site, Sec_Fetch_Mode=mode)
        assert answer.status_code == 403
    post = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "navigate"}
    assert ask(guarded(), "/", "POST", **COOKIE, **post).status_code == 403


def test_a_link_from_elsewhere_is_asked_again_from_here_once() -> None:
    """The browser leaves a strict cookie out of such a request, and puts it into the next."""
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    first = ask(guarded(), "/timeline?recording=a", **link)
    assert first.status_code == 200
    assert '<meta http-equiv="refresh" content="0">' in first.text
    assert "inside" not in first.text
    again = {"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "navigate"}
    assert ask(guarded(), "/timeline?recording=a", **again).status_code == 401
    assert ask(guarded(), "/", **COOKIE, **link).text == "inside"


@pytest.mark.parametrize("path", ["/", "/assets/dashboard.css", "/_dash-layout", "/nowhere", "/_x"])
def test_every_answer_has_the_headers(asked: Asked, path: str) -> None:
    for answer in (asked.get(path), asked.get(path, Host="evil.example")):
        headers = answer.headers
        answer.close()
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"
        policy = dict(one.split(" ", 1) for one in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["frame-ancestors"] == "'none'"
        assert "unsafe" not in policy["script-src"]
        assert "http" not in headers["Content-Security-Policy"]


def test_the_page_runs_only_scripts_that_the_policy_names(asked: Asked) -> None:
    answer = asked.get("/")
    scripts = re.findall(r"<script([^>]*)>([^<]+)</script>", answer.text)
    run = [source for kind, source in scripts if "application/json" not in kind]
    assert run, "Dash starts by a script in the page"
    for source in run:
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in answer.headers["Content-Security-Policy"]
    outside = re.findall(r"""(?:src|href)=["'](?!/)([^"']+)""", answer.text)
    assert outside == []


def test_scripts_of_packages_may_be_kept(asked: Asked) -> None:
    path = re.search(r'"(/_dash-component-suites/[^"]+)"', asked.get("/").text)
    assert path is not None
    answer = asked.get(path.group(1))
    assert answer.status_code == 200
    assert "no-store" not in answer.headers["Cache-Control"]


def test_without_the_cookie_nothing_of_the_application_is_told(asked: Asked) -> None:
    stranger = asked.app.server.test_client()
    for path in ("/", "/_dash-layout", "/_dash-dependencies", "/assets/timeline.js", "/_x"):
        answer = stranger.get(path, base_url=f"http://127.0.0.1:{PORT}")
        assert answer.status_code == 401
    post = stranger.post("/_dash-update-component", json={}, base_url=f"http://127.0.0.1:{PORT}")
    assert post.status_code == 401


@pytest.mark.parametrize(
    "path",
    ["/assets/../app.py", "/assets/%2e%2e/app.py", "/assets//etc/passwd", "/assets/..%2fapp.py"],
)
def test_assets_are_files_of_their_folder(asked: Asked, path: str) -> None:
    answer = asked.get(path)
    assert "create_app" not in answer.text
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b"{}", b'{"output": "x.y", "inputs": []}',
        b'{"output": 5, "outputs": 5, "inputs": 5, "changedPropIds": 5}', b"\xff\x00",
    ],
)  # fmt: skip
def test_what_no_page_asks_is_refused_without_a_word_on_the_terminal(
    asked: Asked, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "werkzeug")
    answer = asked.client.post(
        "/_dash-update-component",
        data=body,
        content_type="application/json",
        base_url=f"http://127.0.0.1:{PORT}",
    )
    assert 400 <= answer.status_code < 500
    assert "Traceback" not in answer.text
    assert "Traceback" not in caplog.text


def test_a_body_has_its_limit(asked: Asked) -> None:
    answer = asked.client.post(
        "/_dash-update-component",
        data=b" " * (9 * 2**20),
        content_type="application/json",
        base_url=f"http://127.0.0.1:{PORT}",
    )
    assert answer.status_code == 413
