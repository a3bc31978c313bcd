"""The address after a zoom, a click, a fold, a search and a measurement (see ``write_known``)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dashboard import navigation
from dashboard.address import Address, Selected
from dashboard.callbacks import timeline
from dashboard.shown import Shown

START = Address(page="timeline", recording="known")
WIDTH = 1000


def after(shown: Shown, asked: dict[str, Any], address: Address = START) -> Address | None:
    return navigation.after(shown, address, asked, WIDTH)


def test_a_zoom_is_in_the_address(known_shown: Shown) -> None:
    moved = after(known_shown, {"do": "move", "from": 0.1, "to": 0.2})
    assert moved == START.at(100_000, 200_000)
    assert moved.search == "?recording=known&from=100000&to=200000"
    # From right to left, and a place alone.
    assert after(known_shown, {"do": "move", "from": 0.2, "to": 0.1}) == moved
    assert after(known_shown, {"do": "move", "from": 0.2, "to": 0.2}) == START.at(200_000, 200_001)
    assert after(known_shown, {"do": "whole"}, moved) == START


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"do": "nonsense"},
        {"do": "move", "from": 1},
        {"do": "move", "from": "1", "to": 2},
        {"do": "move", "from": True, "to": 2},
        {"do": "move", "from": float("nan"), "to": 2},
        {"do": "move", "from": 0, "to": float("inf")},
        {"do": "select", "key": "x3"},
        {"do": "select"},
        {"do": "ruler", "at": []},
        {"do": "ruler", "at": [1, "2"]},
        {"do": "ruler", "at": 3},
    ],
)
def test_nothing_follows_from_nonsense(known_shown: Shown, asked: dict[str, Any]) -> None:
    assert after(known_shown, asked) is None


def test_a_click_selects_and_fit_brings_it_to_the_middle(known_shown: Shown) -> None:
    selected = after(known_shown, {"do": "select", "key": "g3"})
    assert selected == START.replace(selected=Selected("gpu_ops", 3))
    # gemm_c is 700-900 us: half its length stays free on each side.
    assert after(known_shown, {"do": "fit"}, selected) == selected.at(600_000, 1_000_000)
    assert after(known_shown, {"do": "fit"}) == START


def test_escape_takes_back_the_ruler_before_the_selection(known_shown: Shown) -> None:
    selected = START.replace(selected=Selected("gpu_ops", 0))
    both = selected.replace(ruler=(5, 9))
    assert after(known_shown, {"do": "escape"}, both) == selected
    assert after(known_shown, {"do": "escape"}, selected) == START


def test_folding(known_shown: Shown) -> None:
    # One GPU is unfolded at first, the threads of its process are not.
    assert navigation.folded(known_shown, START, "g0.0").open == ()
    everything = navigation.folded(known_shown, START, "t0")
    assert everything.open == ("all",)
    assert navigation.folded(known_shown, everything, "t0").open == ("g0.0",)
    assert navigation.all_unfolded(START).open == ("all",)
    assert navigation.all_folded(START.replace(top="g0.0")) == START.replace(open=())


def test_a_search_goes_from_hit_to_hit_and_round(known_shown: Shown) -> None:
    rows, said, address = [], [], START
    for _ in range(4):
        address = navigation.found_next(known_shown, address, "gemm", 1)
        assert address.selected is not None
        rows.append(address.selected.row)
        said.append(navigation.said_of_search(known_shown, address))
    # Row 2 is the all-reduce.
    assert rows == [0, 1, 3, 0]
    assert said == ["1 of 3 hits", "2 of 3 hits", "3 of 3 hits", "1 of 3 hits"]
    back = navigation.found_next(known_shown, address, "gemm", -1)
    assert back.selected == Selected("gpu_ops", 3)
    # All of it was in sight all the time.
    assert (back.start_ns, back.end_ns, back.open) == (None, None, None)


def test_a_search_begins_in_the_window_and_moves_it_to_the_hit(known_shown: Shown) -> None:
    found = navigation.found_next(known_shown, START.at(250_000, 320_000), "gemm", 1)
    assert found.selected == Selected("gpu_ops", 1)
    # gemm_b is 300-400 us; what is shown is four times as long, around its middle.
    assert (found.start_ns, found.end_ns) == (150_000, 550_000)


def test_a_hit_on_a_folded_lane_unfolds_it(known_shown: Shown) -> None:
    folded = START.replace(open=())
    assert navigation.found_next(known_shown, folded, "gemm_c", 1).open == ("g0.0",)
    assert navigation.found_next(known_shown, folded, "cudaLaunch", 1).open == ("all",)


def test_nothing_found_changes_nothing_but_the_text(known_shown: Shown) -> None:
    found = navigation.found_next(known_shown, START, "no such thing", 1)
    assert found == START.replace(find="no such thing")
    assert navigation.said_of_search(known_shown, found) == "nothing found"
    assert navigation.said_of_search(known_shown, START) == ""


def test_the_ruler_snaps_to_what_begins_or_ends_nearby(known_shown: Shown) -> None:
    # A pixel is 1.02 us. gemm_a begins at 100 us, the all-reduce ends at 600.
    first = after(known_shown, {"do": "ruler", "at": [0.1035]})
    assert first == START.replace(ruler=(100_000,))
    assert navigation.said_of_ruler(first) == "click where to measure to"
    both = after(known_shown, {"do": "ruler", "at": [0.598]}, first)
    assert both == START.replace(ruler=(100_000, 600_000))
    assert navigation.said_of_ruler(both) == "500.000 us"
    # Nothing is near: the place itself, and a new measurement.
    assert after(known_shown, {"do": "ruler", "at": [0.25]}, both) == START.replace(
        ruler=(250_000,)
    )
    dragged = after(known_shown, {"do": "ruler", "at": [0.65, 0.25]})
    assert dragged == START.replace(ruler=(250_000, 650_000))
    assert navigation.said_of_ruler(START) == ""


@pytest.mark.parametrize("trigger", ["find-next", "find-previous", "zoom-out", {"lane": "g0.0"}])
@pytest.mark.parametrize("clicks", [0, None])
def test_a_button_that_was_only_drawn_changes_nothing(
    known_shown: Shown, trigger: Any, clicks: int | None
) -> None:
    """So an address with a search and a selection shows that selection."""
    address = START.replace(find="gemm", selected=Selected("gpu_ops", 2))
    assert timeline.after(known_shown, address, trigger, clicks, "gemm", WIDTH) is None


@pytest.mark.parametrize(
    ("prop", "value", "row"),
    [("find.value", "gemm", None), ("find.n_submit", None, None), ("find.n_submit", 1, 1)],
)
def test_enter_goes_on_but_a_field_that_was_only_drawn_does_not(
    known_shown: Shown, monkeypatch: pytest.MonkeyPatch, prop: str, value: Any, row: int | None
) -> None:
    context = SimpleNamespace(triggered=[{"prop_id": prop, "value": value}])
    monkeypatch.setattr(timeline, "ctx", context)
    address = START.replace(find="gemm", selected=Selected("gpu_ops", 0))
    found = timeline.after(known_shown, address, "find", value, "gemm", WIDTH)
    expected = None if row is None else address.replace(selected=Selected("gpu_ops", row))
    assert found == expected
