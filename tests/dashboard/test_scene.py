"""The picture of an address: lanes, labels, marks, and that it stays small at every zoom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plotly.io.json import to_json_plotly

from dashboard.address import Address, Selected
from dashboard.callbacks.timeline import _picture
from dashboard.lanes import opened
from dashboard.scene import Scene, labels, scene
from dashboard.shown import Shown
from diagnose.plotting.palette import DARK, LIGHT
from diagnose.recording import load

START = Address(page="timeline", recording="known")
STRAGGLER = Path(__file__).parents[2] / "examples" / "recordings" / "straggler"


@pytest.fixture(scope="module")
def straggler() -> Shown:
    return Shown("straggler", "straggler", load([str(STRAGGLER)]).trace)


def keys(made: Scene) -> list[str]:
    return [lane.key for lane in made.page.lanes]


def bars(made: Scene) -> dict[str, dict[str, Any]]:
    """The first bars of each category are those of the states, the last those of operations."""
    return {one["name"]: one for one in made.figure["data"] if one["type"] == "bar"}


def test_all_of_a_recording_with_a_margin_of_a_hundredth(known_shown: Shown) -> None:
    made = scene(known_shown, START, LIGHT, 1000)
    assert (made.start_ns, made.end_ns) == (-10_000, 1_010_000)
    assert keys(made) == ["g0.0", "g0.0s7", "g0.0s20", "t0"]
    assert made.figure["layout"]["xaxis"]["range"] == [-0.01, 1.01]
    assert made.head["layout"]["xaxis"]["range"] == [-0.01, 1.01]
    assert bars(made)["compute"]["customdata"] == ["g0", "g1", "g3"]
    assert bars(made)["communication"]["customdata"] == ["g2"]


def test_a_window_of_the_address(known_shown: Shown) -> None:
    made = scene(known_shown, START.at(320_000, 380_000), LIGHT, 1000)
    assert (made.start_ns, made.end_ns) == (320_000, 380_000)
    # gemm_b covers all of it, the all-reduce begins at 350 us.
    assert bars(made)["compute"]["customdata"] == ["g1"]
    assert bars(made)["communication"]["base"] == [0.35]
    assert bars(made)["communication"]["x"] == [0.03]


def test_a_window_beside_the_recording_shows_all_of_it(known_shown: Shown) -> None:
    made = scene(known_shown, START.at(10**15, 10**15 + 5), LIGHT, 1000)
    assert (made.start_ns, made.end_ns) == (-10_000, 1_010_000)


def test_folded_and_unfolded_lanes(known_shown: Shown) -> None:
    assert keys(scene(known_shown, START.replace(open=()), LIGHT, 1000)) == ["g0.0"]
    everything = START.replace(open=("all",))
    made = scene(known_shown, everything, LIGHT, 1000)
    assert keys(made) == ["g0.0", "g0.0s7", "g0.0s20", "t0", "h0.0"]
    shown = labels(made, opened(known_shown.timeline, everything), LIGHT)
    assert [one.children for one in shown][:4] == [
        "▾ rank 0, GPU 0",
        "stream 7",
        "stream 20",
        "▾ 1 host thread",
    ]
    # Labels stand where the lanes do.
    assert [one.style["top"] for one in shown] == [box.top for box in made.layout.lanes]


def test_the_selection_is_framed_and_an_arrow_leads_to_its_launch(known_shown: Shown) -> None:
    address = START.replace(open=("all",), selected=Selected("gpu_ops", 0))
    made = scene(known_shown, address, LIGHT, 1000)
    frames = [(one["x0"], one["x1"]) for one in made.figure["layout"]["shapes"]]
    # The launch lasts 2 us, less than the 3 pixels (3.06 us) that a frame needs.
    assert frames[0][0] == 0.01
    assert frames[0][1] == pytest.approx(0.01306, abs=1e-4)
    assert frames[1] == (0.1, 0.2)
    [arrow] = [one for one in made.figure["layout"]["annotations"] if one["showarrow"]]
    assert (arrow["ax"], arrow["x"]) == (0.1, 0.01)


@pytest.mark.parametrize("row", [4, 10**18])
def test_a_selection_that_is_not_there_frames_nothing(known_shown: Shown, row: int) -> None:
    made = scene(known_shown, START.replace(selected=Selected("gpu_ops", row)), LIGHT, 1000)
    assert made.figure["layout"]["shapes"] == []


def test_hits_are_framed_and_marked_above(known_shown: Shown) -> None:
    made = scene(known_shown, START.replace(find="gemm"), LIGHT, 1000)
    frames = [(one["x0"], one["x1"]) for one in made.figure["layout"]["shapes"]]
    assert frames == [(0.1, 0.2), (0.3, 0.4), (0.7, 0.9)]
    [hits] = made.head["data"]
    assert len(hits["x"]) == 3
    assert hits["x"] == pytest.approx([0.1, 0.3, 0.7], abs=0.002)


def test_the_ruler_says_how_long_it_is(known_shown: Shown) -> None:
    made = scene(known_shown, START.replace(ruler=(100_000, 600_000)), LIGHT, 1000)
    assert "500.000 us" in [one["text"] for one in made.head["layout"]["annotations"]]
    assert [(one["x0"], one["x1"]) for one in made.head["layout"]["shapes"]] == [
        (0.1, 0.1),
        (0.6, 0.6),
        (0.1, 0.6),
    ]


@pytest.mark.parametrize("width", [0, 1, 10_000])
def test_any_width(known_shown: Shown, width: int) -> None:
    assert keys(scene(known_shown, START, DARK, width))[0] == "g0.0"


@pytest.mark.parametrize("width", [1200, 2400])
def test_a_picture_stays_small_at_every_zoom(straggler: Shown, width: int) -> None:
    """Under 300 kB and 5,000 shapes, from all 200 ms to 10 us, with all lanes unfolded."""
    everything = Address(page="timeline", open=("all",))
    length = straggler.timeline.end_ns
    random = np.random.default_rng(5)
    for zoom in np.geomspace(1, length / 10_000, 12):
        start = int(random.uniform(0, length - length / zoom))
        address = everything.at(start, start + int(length / zoom))
        made = _picture(straggler, address, "light", width)
        bars_drawn = sum(len(one["x"]) for one in made[0][0]["data"] if one["type"] == "bar")
        frames = len(made[0][0]["layout"]["shapes"])
        assert bars_drawn + frames < 5000
        assert len(to_json_plotly(made).encode()) < 300_000
