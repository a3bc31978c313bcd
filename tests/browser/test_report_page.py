"""The HTML report in a real browser: it loads, draws, turns dark, prints, and stays harmless."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.chromium import Chromium
from tests.browser.recordings import HOSTILE_FILES

PAGES = ("healthy", "straggler", "launch_bound", "hostile", "files", "eight", "cpu", "findings")
DRAWN = "document.documentElement.dataset.drawn || !document.getElementById('figures')"


def shown(browser: Chromium, page: Path, *, width: int = 1200, dark: bool = False) -> None:
    browser.look(width=width, dark=dark)
    browser.open(page.as_uri(), DRAWN)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_without_a_word_on_the_console(browser, pages, pictures, name, dark):
    shown(browser, pages[name], dark=dark)
    assert browser.problems() == []
    assert browser.requests() == [pages[name].as_uri()]
    browser.screenshot(pictures / f"{name}-{'dark' if dark else 'light'}.png")


@pytest.mark.parametrize("name", PAGES)
def test_every_figure_is_drawn(browser, pages, name):
    shown(browser, pages[name])
    boxes = browser.evaluate("document.querySelectorAll('.plot').length")
    drawn = browser.evaluate("document.querySelectorAll('.plot svg.main-svg').length > 0")
    empty = browser.evaluate(
        "[...document.querySelectorAll('.plot')].filter(p => !p.querySelector('path')).length"
    )
    assert (boxes > 0, drawn, empty) == ((name != "cpu"), (name != "cpu"), 0)


@pytest.mark.parametrize("width", [400, 800])
@pytest.mark.parametrize("name", PAGES)
def test_a_narrow_page_does_not_scroll_sideways(browser, pages, pictures, name, width):
    shown(browser, pages[name], width=width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    wider = browser.evaluate(
        f"[...document.querySelectorAll('.plot svg')].filter(s => "
        f"s.getBoundingClientRect().right > {width}).length"
    )
    assert wider == 0
    if width == 400:
        browser.screenshot(pictures / f"{name}-narrow.png")


def colors(browser: Chromium) -> tuple[str, str]:
    """Of the page, and of the first bar of the first figure."""
    page = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    bar = browser.evaluate("document.querySelector('.plot .bars path').style.fill")
    return page, bar


def test_the_button_turns_page_and_figures_dark_and_back(browser, pages):
    shown(browser, pages["straggler"])
    light = colors(browser)
    browser.evaluate("document.getElementById('theme').click()")
    browser.wait_for("document.querySelector('.plot .bars path').style.fill !== '" + light[1] + "'")
    dark = colors(browser)
    assert light == ("rgb(253, 253, 252)", "rgb(47, 95, 158)")
    assert dark == ("rgb(19, 23, 28)", "rgb(90, 141, 207)")
    browser.evaluate("document.getElementById('theme').click()")
    browser.wait_for("document.querySelector('.plot .bars path').style.fill === '" + light[1] + "'")
    assert browser.evaluate("Object.keys(localStorage).length + document.cookie.length") == 0
    assert browser.problems() == []


def test_the_system_decides_until_the_button_is_used(browser, pages):
    shown(browser, pages["healthy"], dark=True)
    assert colors(browser) == ("rgb(19, 23, 28)", "rgb(90, 141, 207)")
    browser.look(width=1200, dark=False)
    browser.wait_for("document.querySelector('.plot .bars path').style.fill === 'rgb(47, 95, 158)'")
    assert colors(browser)[0] == "rgb(253, 253, 252)"


def test_the_bars_are_as_long_as_the_times_of_the_table(browser, pages):
    """Rank 0 computes alone for 34.30 ms of a mean step (43.24 + 44.95) / 2 = 44.10 ms."""
    shown(browser, pages["straggler"])
    data = browser.evaluate(
        "document.getElementById('figure-step-time').data.map(t => [t.name, t.x[0]])"
    )
    assert sum(value for _, value in data) == pytest.approx(44.10, abs=0.01)
    widths = browser.evaluate(
        "[...document.querySelectorAll('#figure-step-time .trace.bars')]"
        ".map(t => t.querySelector('path').getBBox().width)"
    )
    whole = sum(widths)
    assert widths[0] / whole == pytest.approx(data[0][1] / 44.10, rel=0.01)


def test_paper_is_light_and_shows_what_a_click_would_open(browser, pages, pictures):
    shown(browser, pages["findings"], dark=True)
    browser.evaluate(
        "window.seen = {}; const bar = () => document.querySelector('.plot .bars path').style.fill;"
        "const open = () => document.querySelectorAll('details.folded[open]').length;"
        "addEventListener('beforeprint', () => { seen.opened = open(); seen.bar = bar() });"
        "addEventListener('afterprint', () => { seen.after = open() })"
    )
    browser.paper(pictures / "findings.pdf")
    assert (pictures / "findings.pdf").read_bytes().startswith(b"%PDF")
    browser.wait_for("'after' in seen")
    assert browser.evaluate("seen") == {"opened": 1, "bar": "rgb(47, 95, 158)", "after": 0}
    # Afterwards the figures are dark again.
    browser.wait_for(
        "document.querySelector('.plot .bars path').style.fill === 'rgb(90, 141, 207)'"
    )
    assert browser.problems() == []


def test_the_whole_page_can_be_walked_with_the_keyboard(browser, pages):
    shown(browser, pages["straggler"])
    stops = browser.evaluate(
        "[...document.querySelectorAll('a, button, summary, [tabindex]')]"
        ".filter(e => e.tabIndex < 0 && !e.closest('.plot')).length"
    )
    named = browser.evaluate(
        "[...document.querySelectorAll('button, [role=region], [role=img], nav')]"
        ".filter(e => !e.getAttribute('aria-label')).length"
    )
    broken = browser.evaluate(
        "[...document.querySelectorAll('nav a')]"
        ".filter(a => !document.querySelector(a.getAttribute('href'))).length"
    )
    assert (stops, named, broken) == (0, 0, 0)


@pytest.mark.parametrize("name", ["hostile", "files", "findings"])
def test_no_name_becomes_an_element_or_runs(browser, pages, name):
    shown(browser, pages[name])
    made = browser.evaluate(
        "document.querySelectorAll('img, iframe, b b, .plot a, body a:not([href^=\"#\"])').length"
    )
    scripts = browser.evaluate("document.scripts.length")
    assert (made, scripts) == (0, 4)  # theme, data, plotly, figures
    assert not [e for e in browser.events if e.get("method") == "Page.javascriptDialogOpening"]
    assert browser.problems() == []


def test_names_stand_in_the_page_as_they_are_in_the_trace(browser, pages):
    shown(browser, pages["hostile"])
    text = browser.evaluate("document.body.textContent")
    assert "void <script>alert(1)</script>kernel<float, 4>(int)" in text
    assert "k\"quoted\" & 'single' </title><img src=x onerror=alert(2)>" in text


def test_a_very_long_name_is_cut_and_whole_on_demand(browser, pages):
    shown(browser, pages["hostile"])
    longest = browser.evaluate(
        "Math.max(...[...document.querySelectorAll('.name')].map(n => n.innerText.length))"
    )
    assert longest <= 300
    whole = browser.evaluate(
        "Math.max(...[...document.querySelectorAll('.name .whole')].map(n => n.textContent.length))"
    )
    assert whole == 8916  # as in the file


def test_labels_and_hover_text_of_figures_are_no_markup(browser, pages):
    """Plotly would make a link, a break or an entity of what a label says."""
    shown(browser, pages["files"])
    labels = browser.evaluate(
        "[...document.querySelectorAll('#figure-step-time .ytick text')].map(t => t.textContent)"
    )
    assert labels == [
        name[:39].rstrip() + "…" if len(name) > 40 else name for name in sorted(HOSTILE_FILES)
    ]
    place = browser.evaluate(
        "(() => { const p = document.querySelectorAll('#figure-step-time .bars path')[0];"
        "p.scrollIntoView({block: 'center', behavior: 'instant'});"
        "const r = p.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2] })()"
    )
    for move in (-3, 0):
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0] + move, y=place[1])
    browser.wait_for("document.querySelector('#figure-step-time .hoverlayer text')")
    said = browser.evaluate("document.querySelector('#figure-step-time .hoverlayer').textContent")
    assert "<a href='javascript:alert(4)'>click<br>" in said
    assert "compute alone" in said
    assert browser.evaluate("document.querySelectorAll('.plot a, .plot img').length") == 0
    assert browser.problems() == []


def test_a_script_that_is_not_ours_does_not_run(browser, pages, tmp_path):
    """The policy stands behind the escaping: should that ever fail, nothing runs."""
    text = pages["healthy"].read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    planted = "<script>window.ran = 1</script><img src=x onerror='window.ran = 2'>"
    assert "<main>" in text
    broken.write_text(text.replace("<main>", f"<main>{planted}"), encoding="utf-8")
    shown(browser, broken)
    assert browser.evaluate("typeof window.ran") == "undefined"
    assert len([said for said in browser.problems() if "Content Security Policy" in said]) >= 2


def test_eight_ranks_fit_into_a_mail(pages):
    assert pages["eight"].stat().st_size < 3_000_000
    assert pages["eight"].read_text(encoding="utf-8").count("rank 7") > 0
