"""Who gets an answer from a running dashboard, and what its cookie and headers say."""

from __future__ import annotations

import http.client
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from tests.browser.dashboard import Server


def ask(server: Server, path: str, *, method: str = "GET", **headers: str):
    """An answer as it comes, without following anywhere."""
    place = urlsplit(server.base)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=20)
    try:
        connection.request(
            method, path, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )
        answer = connection.getresponse()
        answer.body = answer.read()
        return answer
    finally:
        connection.close()


@pytest.mark.parametrize(
    "path",
    ["/", "/timeline?recording=known", "/assets/dashboard.css", "/_dash-layout", "/?token=wrong"],
)
def test_without_the_token_nothing_is_told(server, path):
    answer = ask(server, path)
    assert answer.status == 401
    assert b"known" not in answer.body
    assert server.token.encode() not in answer.body


def test_a_callback_without_the_cookie_is_refused(server):
    assert ask(server, "/_dash-update-component", method="POST").status == 401


def test_the_token_becomes_a_cookie_and_leaves_the_address(server):
    answer = ask(server, f"/timeline?recording=known&token={server.token}")
    cookie = answer.getheader("Set-Cookie") or ""
    assert answer.status == 302
    assert answer.getheader("Location") == "/timeline?recording=known"
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    again = ask(server, "/", Cookie=cookie.split(";")[0])
    assert again.status == 200
    policy = again.getheader("Content-Security-Policy") or ""
    assert "default-src 'none'" in policy
    scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))
    assert "unsafe" not in scripts


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80@x"])
def test_another_name_of_this_server_is_refused(server, host):
    """A page elsewhere may let its own name point to 127.0.0.1."""
    answer = ask(server, f"/?token={server.token}", Host=host)
    assert answer.status == 421
    assert answer.getheader("Set-Cookie") is None


def test_another_site_is_refused(server):
    answer = ask(server, f"/?token={server.token}", Origin="http://evil.example")
    assert answer.status == 403


def test_a_browser_without_the_cookie_reads_what_to_do(browser, server):
    browser.call("Storage.clearDataForOrigin", origin=server.base, storageTypes="all")
    browser.open(f"{server.base}/timeline?recording=known")
    assert "token" in browser.evaluate("document.body.textContent")


def test_scripts_cannot_read_the_cookie(tab):
    tab.open("?recording=known")
    assert tab.browser.evaluate("document.cookie") == ""
    assert "token" not in tab.browser.evaluate("location.href")


def test_a_folder_that_is_not_there_is_an_error_and_no_traceback(root, tmp_path):
    command = [sys.executable, "-m", "dashboard", "--port", "0", str(tmp_path / "none")]
    ended = subprocess.run(command, cwd=root, capture_output=True, encoding="utf-8", timeout=60)
    assert ended.returncode != 0
    assert "no such file or folder" in ended.stderr
    assert "Traceback" not in ended.stderr
