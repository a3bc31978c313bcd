"""The timeline in a real browser: what a hand does to it, and that its address says the same."""

from __future__ import annotations

import time

import pytest

from tests.browser.dashboard import Tab

WHOLE = (0, 1_000_000)
KNOWN = f"timeline?recording=known&from={WHOLE[0]}&to={WHOLE[1]}&open=g0.0"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def span(tab: Tab) -> tuple[float, float]:
    """Middle and length of what the address names."""
    start, end = tab.window
    return (start + end) / 2, end - start


def agrees(tab: Tab) -> None:
    """The axis shows what the address says."""
    low, high = tab.axis
    start, end = tab.window
    unit = (end - start) / (high - low)
    assert (unit, low * unit) == (pytest.approx(1e6, rel=1e-3), pytest.approx(start, abs=2))
    assert tab.browser.problems() == []


def test_first_paint_shows_both_ranks_over_the_whole_window(tab, pictures):
    tab.open("timeline?recording=straggler")
    assert tab.count("#lane-labels .states") == 2
    assert tab.count("#timeline .bars path") > 100
    assert (tab.browser.problems(), tab.strangers()) == ([], [])
    tab.browser.screenshot(pictures / "dashboard-timeline-first.png", whole=False)


def test_operations_lie_where_they_ran(tab):
    """gemm_c ran from 700 to 900 of 1,000 us: that is where its bar begins and ends."""
    tab.open(KNOWN)
    at = tab.browser.evaluate(
        "(() => { const p = document.querySelector('#timeline .js-plotly-plot');"
        "const ends = []; p.data.filter(t => t.customdata).forEach(t => t.customdata.forEach("
        "(key, i) => key && ends.push([t.base[i], t.base[i] + t.x[i]]))); return ends })()"
    )
    expected = [(0.1, 0.2), (0.3, 0.4), (0.35, 0.6), (0.7, 0.9)]
    assert sorted(map(tuple, at)) == [pytest.approx(one, abs=1e-4) for one in expected]


def test_the_wheel_zooms_to_where_the_mouse_is(tab):
    tab.open(KNOWN)
    tab.browser.wheel(*tab.place(0.25), -200)
    tab.browser.wait_for(f"!location.search.includes('to={WHOLE[1]}')")
    tab.settle()
    start, end = tab.window
    assert 1_000 < end - start < 950_000
    # What lay under the mouse is there still.
    assert start + 0.25 * (end - start) == pytest.approx(250_000, abs=5_000)
    agrees(tab)


def test_a_box_is_zoomed_into(tab):
    tab.open(KNOWN)
    (left, y), (right, _) = tab.place(0.2), tab.place(0.6)
    tab.browser.drag((left, y), (right, y + 3), shift=True)
    tab.browser.wait_for(f"!location.search.includes('to={WHOLE[1]}')")
    tab.settle()
    assert tab.window == (pytest.approx(200_000, abs=5_000), pytest.approx(600_000, abs=5_000))
    agrees(tab)


def test_dragging_moves_what_is_under_the_hand(tab):
    tab.open(KNOWN)
    (left, y), (right, _) = tab.place(0.3), tab.place(0.5)
    tab.browser.drag((left, y), (right, y))
    tab.browser.wait_for(f"!location.search.includes('to={WHOLE[1]}')")
    tab.settle()
    assert tab.window == (pytest.approx(-200_000, abs=5_000), pytest.approx(800_000, abs=5_000))
    agrees(tab)


def test_w_a_s_d(tab):
    tab.open(KNOWN)
    seen = [span(tab)]
    for key in "wdas":
        before = tab.href
        tab.browser.type(key)
        tab.browser.wait_for(f"(location.pathname + location.search).slice(1) !== '{before}'")
        tab.settle()
        seen.append(span(tab))
    (_, whole), (middle, near), (right, _), (left, _), (_, far) = seen
    assert near < whole
    assert (middle, right > middle) == (pytest.approx(500_000, abs=2), True)
    assert (left, far > near) == (pytest.approx(middle, abs=2), True)
    agrees(tab)


def test_letters_in_the_search_field_do_not_zoom(tab):
    tab.open(KNOWN)
    before = tab.window
    tab.browser.click("#find")
    tab.browser.type("wwdd")
    tab.browser.wait_for("document.getElementById('find').value === 'wwdd'")
    tab.settle()
    assert tab.window == before


def test_an_address_is_the_whole_state(tab):
    """What was reached by hand comes back from the address alone, bar by bar."""
    tab.open(KNOWN)
    tab.browser.wheel(*tab.place(0.4), -120)
    tab.browser.wait_for(f"!location.search.includes('to={WHOLE[1]}')")
    tab.settle()
    tab.browser.press(*tab.place(0.5, "stream 20"))
    tab.browser.wait_for("location.search.includes('select=')")
    tab.settle()
    address, picture, panel = tab.href, tab.picture(), tab.text("#details")
    assert ALL_REDUCE in panel
    tab.open(address)
    assert (tab.href, tab.picture(), tab.text("#details")) == (address, picture, panel)


def test_back_undoes_a_zoom_and_forward_does_it_again(tab):
    tab.open(KNOWN)
    first = tab.href, tab.picture()
    tab.browser.wheel(*tab.place(0.5), -150)
    tab.browser.wait_for(f"!location.search.includes('to={WHOLE[1]}')")
    tab.settle()
    second = tab.href, tab.picture()
    tab.browser.back()
    tab.browser.wait_for(f"location.search.includes('to={WHOLE[1]}')")
    tab.settle()
    assert (tab.href, tab.picture()) == first
    tab.browser.back(-1)
    tab.browser.wait_for(f"!location.search.includes('to={WHOLE[1]}')")
    tab.settle()
    assert (tab.href, tab.picture()) == second
    assert tab.browser.problems() == []


def test_a_hand_that_changes_its_mind_gets_what_it_asked_for_last(tab):
    """A movement that is just being answered holds no later answer up."""
    tab.open("timeline?recording=known")
    whole = tab.axis
    for _ in range(6):
        tab.browser.wheel(*tab.place(0.5), -120)
    tab.browser.wait_for("location.search.includes('from=')")
    time.sleep(0.2)
    tab.browser.type("0")
    tab.browser.wait_for("!location.search.includes('from=')")
    tab.settle()
    assert (tab.axis, "from" in tab.asked) == (pytest.approx(whole), False)
    tab.browser.wheel(*tab.place(0.5), -120)
    tab.browser.wait_for("location.search.includes('from=')")
    tab.browser.back()
    tab.browser.wait_for("!location.search.includes('from=')")
    tab.settle()
    assert tab.axis == pytest.approx(whole)
    assert tab.browser.problems() == []


@pytest.mark.parametrize("key", ["s", "a", "d"])
def test_nobody_gets_lost_beyond_the_recording(tab, key):
    """Half its length is to be seen before and after it, and no more."""
    tab.open(KNOWN)
    tab.browser.type(12 * key)
    tab.browser.wait_for(f"!location.search.includes('from={WHOLE[0]}&')")
    tab.settle()
    start, end = tab.window
    assert -510_000 <= start < end <= 1_510_000
    assert start < 500_000 or end > 500_000
    assert end - start >= 990_000
    agrees(tab)


def test_search_goes_from_hit_to_hit_and_back(tab):
    tab.open(KNOWN)
    tab.browser.click("#find")
    tab.browser.type("gemm")
    seen = []
    for button in (None, "#find-next", "#find-next", "#find-next", "#find-previous"):
        before = tab.asked.get("select", "")
        if button:
            tab.browser.click(button)
        tab.browser.wait_for(
            "(new URLSearchParams(location.search).get('select') || '') !== "
            f"'{before}' && document.querySelector('#details .name')"
        )
        tab.settle()
        seen.append(tab.text("#details .name"))
    # It begins with the first in sight and goes round.
    assert seen == ["gemm_a", "gemm_b", "gemm_c", "gemm_a", "gemm_c"]
    assert tab.asked["find"] == "gemm"
    assert tab.browser.problems() == []


def test_a_search_without_a_hit_changes_nothing_else(tab):
    tab.open(f"{KNOWN}&find=no-such-operation")
    assert tab.window == WHOLE
    tab.browser.click("#find-next")
    tab.settle()
    assert (tab.window, tab.count("#details .name")) == (WHOLE, 0)
    assert tab.browser.problems() == []


def test_a_click_tells_all_of_an_operation(tab):
    tab.open(KNOWN)
    tab.browser.press(*tab.place(0.15, "stream 7"))
    tab.browser.wait_for("document.querySelector('#details .name')")
    tab.settle()
    panel = tab.text("#details")
    assert tab.text("#details .name") == "gemm_a"
    assert "100.000 us" in panel
    assert all(one in panel for one in ("cudaLaunchKernel", "aten::mm"))
    # Its launch can be clicked, and then says what it launched.
    launch = "[...document.querySelectorAll('#details a')].find(a => /launches/.test(a.href))"
    tab.browser.evaluate(f"{launch}.click()")
    tab.browser.wait_for("location.search.includes('select=launches')")
    tab.settle()
    assert tab.text("#details .name") == "cudaLaunchKernel"
    assert "gemm_a" in tab.text("#details")
    assert tab.browser.problems() == []


def test_a_collective_leads_to_the_other_rank(tab):
    # The first ones of a window may lack a partner: its ranks do not begin together.
    tab.open("timeline?recording=straggler&find=ncclDevKernel&from=100000000&to=130000000")
    tab.browser.click("#find-next")
    tab.browser.wait_for("document.querySelector('#details .name')")
    tab.settle()
    assert tab.count("#details .peers tbody tr") == 2
    before = tab.asked["select"]
    other = (
        "[...document.querySelectorAll('#details .peers a')]"
        f".find(a => !a.href.includes('select={before}'))"
    )
    tab.browser.evaluate(f"{other}.click()")
    tab.browser.wait_for(f"!location.search.includes('select={before}')")
    tab.settle()
    assert tab.count("#details .peers tbody tr") == 2
    assert "nccl" in tab.text("#details .name")
    assert tab.browser.problems() == []


def test_lanes_fold_and_the_address_remembers(tab):
    tab.open("timeline?recording=straggler")
    before = tab.count("#lane-labels > *")
    tab.browser.click("#lane-labels .states")
    tab.browser.wait_for("location.search.includes('open=')")
    tab.settle()
    folded = tab.count("#lane-labels > *")
    assert folded < before
    address = tab.href
    tab.open(address)
    assert tab.count("#lane-labels > *") == folded
    tab.browser.click("#lane-labels .states")
    tab.browser.wait_for(f"document.querySelectorAll('#lane-labels > *').length === {before}")


@pytest.mark.parametrize(
    "nonsense",
    ["from=5&to=1", "from=a&to=b", "select=gpu_ops:999999", "open=g9.9,%3Cb%3E", "select=x:1"],
)
def test_an_address_that_makes_no_sense_still_shows_the_recording(tab, nonsense):
    tab.open(f"timeline?recording=known&{nonsense}")
    assert tab.count("#timeline .bars path") >= 4
    assert tab.browser.problems() == []
