"""The file as a whole: what ships with it, what it may do, and that it asks for nothing."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from html.parser import HTMLParser

import pytest

from diagnose.plotting.palette import DARK, LIGHT
from diagnose.reporters._html_page import ASSETS, asset, page, policy, themes
from diagnose.reporters._html_text import Html

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VENDORED = tomllib.loads((ASSETS / "vendored.toml").read_text("utf-8"))["file"]
EMPTY = {"figures": {}, "dark": {}}
SCRIPTS = ("theme.js", "figures.js", "plotly-basic.min.js")


@pytest.mark.parametrize("file", VENDORED, ids=lambda file: file["name"])
def test_a_vendored_file_is_what_its_checksum_says(file):
    data = (ASSETS / file["name"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == file["sha256"]
    assert (ASSETS / file["license-file"]).read_text("utf-8").startswith("MIT License")


def test_the_bundle_is_the_version_that_is_declared():
    [bundle] = [file for file in VENDORED if file["name"].endswith(".js")]
    head = asset(bundle["name"])[:300]
    assert f"plotly.js (basic - minified) v{bundle['version']}" in head
    assert "Licensed under the MIT license" in head


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_ours_cannot_end_its_element(name):
    """Nor hold a carriage return: a browser would change it, and its checksum with it."""
    source = asset(name).lower()
    assert not [end for end in ("</script", "<script", "<!--", "\r") if end in source]


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []
        self.texts = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


def elements(text):
    parser = Elements()
    parser.feed(text)
    return parser.found


def test_nothing_is_fetched():
    figures = {"figures": {"x": {"data": [], "layout": {}}}, "dark": {}}
    found = elements(page("title", Html("<main></main>"), figures))
    assert not [
        (tag, attrs)
        for tag, attrs in found
        if tag in ("link", "img", "iframe", "object", "base", "form")
        or {"src", "srcset"} & {*attrs}
    ]
    css = asset("report.css") + themes()
    assert "url(" not in css
    assert "@import" not in css


def test_the_policy_names_each_script_and_nothing_else():
    digest = base64.b64encode(hashlib.sha256(b"alert(1)").digest()).decode()
    said = policy(["alert(1)"])
    assert f"script-src 'sha256-{digest}';" in said
    assert said.startswith("default-src 'none';")
    assert "unsafe-eval" not in said
    assert re.findall(r"script-src[^;]*unsafe", said) == []


def test_the_policy_of_a_page_fits_its_scripts():
    figures = {"figures": {"x": {"data": [], "layout": {}}}, "dark": {}}
    text = page("title", Html("<main></main>"), figures)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 3
    assert policy(scripts) in text


def test_without_figures_the_page_carries_no_bundle():
    text = page("title", Html("<main></main>"), EMPTY)
    assert len(text) < 50_000
    assert "application/json" not in text


def test_paper_is_light_whatever_the_theme():
    dark = re.findall(r"@media (.*?)\{", themes())
    assert dark == ["screen and (prefers-color-scheme:dark)", "screen"]
    assert f"--page:{LIGHT.page};" in themes().split("@media")[0]
    assert themes().count(f"--page:{DARK.page};") == 2


def test_the_title_is_text():
    assert "<title>&lt;/title&gt;&lt;img&gt;</title>" in page("</title><img>", Html(""), EMPTY)
