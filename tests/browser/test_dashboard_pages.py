"""Every page of the dashboard in a real browser: it is drawn, is quiet, turns dark, is harmless."""

from __future__ import annotations

import time

import pytest

from tests.browser.dashboard import PAGES, Tab

LIGHT, DARK = "rgb(253, 253, 252)", "rgb(19, 23, 28)"
COMPUTE_LIGHT, COMPUTE_DARK = "rgb(47, 95, 158)", "rgb(90, 141, 207)"
RECORDINGS = ("gc_pause", "healthy", "hostile", "known", "straggler")


def background(tab: Tab) -> str:
    found: str = tab.browser.evaluate("getComputedStyle(document.body).backgroundColor")
    return found


def wait_for_bar(tab: Tab, color: str) -> None:
    """Until the first bar of the overview's figure has a colour."""
    bar = "(document.querySelector('#page .bars path') || {style: {}}).style.fill"
    tab.browser.wait_for(f"{bar} === '{color}'")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page or "overview")
def test_a_page_is_drawn_without_a_word_on_the_console(tab, pictures, page, dark):
    tab.open(f"{page}?recording=straggler&with=healthy", dark=dark)
    assert tab.page == page
    assert (tab.count("#pages a"), tab.count("#pages a.current")) == (len(PAGES), 1)
    assert len(tab.text("#page")) > 100
    assert background(tab) == (DARK if dark else LIGHT)
    assert (tab.browser.problems(), tab.strangers()) == ([], [])
    name = f"dashboard-{page or 'overview'}-{'dark' if dark else 'light'}"
    tab.browser.screenshot(pictures / f"{name}.png")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page or "overview")
def test_a_page_does_not_scroll_sideways(tab, page):
    tab.open(f"{page}?recording=straggler&with=healthy", width=1000)
    assert tab.browser.evaluate("document.documentElement.scrollWidth") <= 1000


def test_the_button_turns_all_dark_and_it_is_remembered(tab):
    tab.open("?recording=straggler")
    wait_for_bar(tab, COMPUTE_LIGHT)
    tab.browser.click("#switch-theme")
    wait_for_bar(tab, COMPUTE_DARK)
    assert background(tab) == DARK
    tab.visit("?recording=straggler")
    wait_for_bar(tab, COMPUTE_DARK)
    tab.browser.click("#switch-theme")
    wait_for_bar(tab, COMPUTE_LIGHT)
    assert background(tab) == LIGHT
    assert tab.browser.problems() == []


def test_without_a_choice_the_system_decides_each_time(tab):
    tab.open("?recording=straggler")
    wait_for_bar(tab, COMPUTE_LIGHT)
    tab.visit("?recording=straggler", dark=True)
    wait_for_bar(tab, COMPUTE_DARK)
    assert background(tab) == DARK


def test_the_address_decides_over_the_system(tab):
    tab.open("?recording=straggler&theme=light", dark=True)
    wait_for_bar(tab, COMPUTE_LIGHT)
    assert background(tab) == LIGHT
    tab.open("?recording=straggler&theme=dark")
    wait_for_bar(tab, COMPUTE_DARK)
    assert background(tab) == DARK


def test_the_recordings_are_listed_and_one_is_chosen(tab):
    tab.open()
    listed = tab.browser.evaluate(
        "[...document.querySelectorAll('.recording-list a')].map(a => "
        "new URL(a.href).searchParams.get('recording'))"
    )
    assert sorted(listed) == list(RECORDINGS)
    tab.browser.click(".recording-list a")
    tab.browser.wait_for("location.search.includes('recording=')")
    tab.settle()
    assert tab.asked["recording"] == listed[0]
    # Another one, from the list that every page has; the page stays.
    tab.open("overlap?recording=straggler")
    tab.browser.click("#recording")
    tab.browser.wait_for("document.querySelectorAll('[role=option]').length === 5")
    tab.browser.evaluate(
        "[...document.querySelectorAll('[role=option]')]"
        ".find(one => one.textContent.includes('healthy')).click()"
    )
    tab.browser.wait_for("location.search.includes('recording=healthy')")
    tab.settle()
    assert (tab.page, tab.browser.problems()) == ("overlap", [])


def test_a_finding_opens_its_time_in_the_timeline(tab):
    tab.open("findings?recording=gc_pause")
    link = "#page a[href*='/timeline?'][href*='from=']"
    href = tab.browser.evaluate(f'new URL(document.querySelector("{link}").href).search')
    tab.browser.click(link)
    tab.browser.wait_for("location.pathname === '/timeline'")
    tab.settle()
    assert tab.browser.evaluate("location.search") == href
    start, end = tab.window
    assert [round(one * 1e6) for one in tab.axis] == [
        pytest.approx(start, abs=2),
        pytest.approx(end, abs=2),
    ]
    assert tab.count("#timeline .bars path") > 0
    assert tab.browser.problems() == []


def test_ten_pages_in_a_hurry(tab):
    """Clicked faster than they are drawn: the last one stands, and nobody complains."""
    tab.open("?recording=straggler")
    begin = time.monotonic()
    for turn in range(10):
        page = PAGES[(3 * turn + 1) % len(PAGES)]
        tab.browser.evaluate(f"document.querySelector('#pages a[href^=\"/{page}?\"]').click()")
    tab.browser.wait_for(f"location.pathname === '/{page}'")
    tab.settle()
    assert time.monotonic() - begin < 30
    assert (
        tab.browser.evaluate("new URL(document.querySelector('#pages a.current').href).pathname")
        == f"/{page}"
    )
    assert tab.text("#page h1") == "Ranks"
    assert tab.browser.problems() == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page or "overview")
def test_no_name_becomes_an_element_or_runs(tab, page):
    tab.open(f"{page}?recording=known&with=healthy")
    harmless = tab.count("script")
    tab.open(f"{page}?recording=hostile&with=known")
    made = "#page img, #page iframe, #page b, #page script, a[href^='javascript'], [onerror]"
    assert (tab.count(made), tab.count("script")) == (0, harmless)
    assert not [
        one for one in tab.browser.events if one.get("method") == "Page.javascriptDialogOpening"
    ]
    assert (tab.browser.problems(), tab.strangers()) == ([], [])


def test_hostile_names_are_found_and_shown_as_text(tab):
    tab.open("timeline?recording=hostile&find=%3Cscript%3E")
    tab.browser.click("#find-next")
    tab.browser.wait_for("document.querySelector('#details .name')")
    tab.settle()
    assert tab.text("#details .name") == "void <script>alert(1)</script>kernel<float, 4>(int)"
    tab.open("timeline?recording=hostile&find=quoted")
    tab.browser.click("#find-next")
    tab.browser.wait_for("document.querySelector('#details .name')")
    tab.settle()
    assert "</title><img src=x onerror=alert(2)>" in tab.text("#details .name")
    # A click beside text: hovering over bars writes names into the figure.
    tab.browser.move(*tab.place(0.5))
    time.sleep(0.2)
    assert tab.count("#page img, #page script, #page b, #page iframe") == 0
    assert tab.browser.problems() == []


@pytest.mark.parametrize("path", ["nowhere?recording=known", "?recording=..%2F..%2Fetc"])
def test_what_is_not_there_is_said(tab, path):
    tab.open(path)
    assert len(tab.text("#page")) > 20
    assert tab.browser.problems() == []


def test_the_whole_page_can_be_walked_with_the_keyboard(tab):
    tab.open("timeline?recording=straggler")
    nameless = tab.browser.evaluate(
        "[...document.querySelectorAll('button, input')].filter(e => e.offsetParent && "
        "!e.textContent.trim() && !e.getAttribute('aria-label') && !e.labels?.length).length"
    )
    unreachable = tab.browser.evaluate(
        "[...document.querySelectorAll('#pages a, #lane-labels button')]"
        ".filter(e => e.tabIndex < 0).length"
    )
    assert (nameless, unreachable) == (0, 0)
