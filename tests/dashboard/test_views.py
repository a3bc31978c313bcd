"""Pages: each draws for whatever was recorded, shows what the analyses say, and only as text."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from dashboard.address import Address, parse
from dashboard.shown import Shown
from dashboard.theme import palette_of
from dashboard.view import View, Visit, views
from diagnose import engine
from diagnose.errors import UnavailableError
from diagnose.findings import Finding, Span, Where
from diagnose.plotting.palette import LIGHT
from tests.dashboard.conftest import SHIPPED
from tests.dashboard.drawn import numbers, parts, props, rows, traces, words

PAGES = ("", "timeline", "overlap", "contention", "ranks", "power", "findings", "compare")

MADE = ("known", "hostile", "on-cpu", "no-steps", "no-events", "untrusted")


def view(page: str) -> View:
    return views()[page]


def close(value: float) -> Any:
    return pytest.approx(value, abs=1e-9)


def test_there_are_eight_pages_in_the_order_of_the_navigation() -> None:
    assert tuple(views()) == PAGES


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("name", [*SHIPPED, *MADE])
def test_every_page_draws_for_every_recording(
    visit: Callable[..., Visit], name: str, page: str
) -> None:
    given = visit(name, page)
    if (name, page) == ("no-events", "timeline"):
        with pytest.raises(UnavailableError, match="no operation was recorded"):
            view(page).draw(given)
        return
    drawn = view(page).draw(given)
    headings = [one for one in parts(drawn) if one["type"] == "H1"]
    # The timeline needs all the height there is, and has none.
    assert len(headings) == (0 if page == "timeline" else 1)
    said = words(drawn)
    # What a number that does not exist looks like where nobody thought of it.
    assert not re.search(r"\b(nan|None|inf|NaN)\b", said), said
    # An analysis that crashed would be a reason, too.
    assert "this is a bug" not in said.lower()


def test_pages_draw_in_the_dark(visit: Callable[..., Visit]) -> None:
    dark = palette_of("dark")
    drawn = view("overlap").draw(visit("known", "overlap")._replace(palette=dark))
    drawing = json.dumps(props(drawn, "overlap-by-step")["figure"])
    assert dark.ink in drawing
    assert LIGHT.ink not in drawing


def test_overlap_shows_the_known_times(visit: Callable[..., Visit]) -> None:
    # compute 100-200, 300-400, 700-900; communication 350-600; both at once 350-400.
    drawn = view("overlap").draw(visit("known", "overlap"))
    [row] = rows(drawn, "overlap-ranks")
    assert row["gpu"] == "rank 0"
    assert row["compute_ns"] == close(400)
    assert row["communication_ns"] == close(250)
    assert row["overlapped_ns"] == close(50)
    assert row["exposed_communication_ns"] == close(200)
    assert row["overlap_pct"] == close(20)
    assert row["idle_ns"] == close(200)
    assert row["window_ns"] == close(800)
    heads = [one["headerName"] for one in props(drawn, "overlap-ranks")["columnDefs"]]
    assert heads[:3] == ["GPU", "compute (us)", "communication (us)"]


def test_the_figure_of_idle_time_adds_up_to_the_grid(visit: Callable[..., Visit]) -> None:
    drawn = view("overlap").draw(visit("known", "overlap"))
    # Idle 200-300 and 600-700, no copy alone.
    bars = [one for one in traces(drawn, "idle-causes") if one["type"] == "bar"]
    assert sum(sum(value or 0 for value in numbers(bar["x"])) for bar in bars) == close(200)


def test_hostile_numbers_are_those_of_the_case(visit: Callable[..., Visit]) -> None:
    [row] = rows(view("overlap").draw(visit("hostile", "overlap")), "overlap-ranks")
    assert row["compute_ns"] == close(310)
    assert row["overlap_pct"] == close(85)
    assert row["memory_ns"] == close(10)


@pytest.mark.parametrize("page", ["ranks", "power", "contention"])
def test_what_was_not_recorded_has_a_reason_and_no_grid(
    visit: Callable[..., Visit], page: str
) -> None:
    drawn = view(page).draw(visit("on-cpu", page))
    assert not [one for one in parts(drawn) if one["type"] in ("AgGrid", "Graph")]
    said = [
        one["props"]["children"] for one in parts(drawn) if one["props"].get("className") == "muted"
    ]
    headings = [one for one in parts(drawn) if one["type"] == "H2"]
    # A reason each, or one for all.
    assert len(said) == (len(headings) or 1)
    assert all(one.endswith(".") for one in said)


def test_one_reason_for_a_whole_page_is_said_once(visit: Callable[..., Visit]) -> None:
    drawn = view("contention").draw(visit("hostile", "contention"))
    said = [one["props"]["children"] for one in parts(drawn) if one["type"] == "P"]
    # Two kernels run beside the all-reduce, each with a name of its own.
    assert len(said) == 1
    assert said[0].startswith("Of 2 overlapped kernels 0 have a twin")


def test_a_straggler_is_seen_on_the_page_of_ranks(visit: Callable[..., Visit]) -> None:
    """Rank 1 does extra work in every step: it comes last, and rank 0 waits for it."""
    first, second = rows(view("ranks").draw(visit("straggler", "ranks")), "ranks")
    assert (first["gpu"], second["gpu"]) == ("rank 0", "rank 1")
    assert second["num_last"] > first["num_last"]
    assert second["cost_per_step_ns"] > first["cost_per_step_ns"]
    assert first["wait_ns"] > second["wait_ns"]


def test_the_overview_leads_with_what_the_report_says(visit: Callable[..., Visit]) -> None:
    given = visit("straggler")
    drawn = view("").draw(given)
    [lead] = [one for one in parts(drawn) if one["props"].get("className") == "lead"]
    assert "step" in lead["props"]["children"]
    assert f"Trace quality: {given.shown.diagnosis.quality.verdict}" in words(drawn)
    found = given.shown.diagnosis.findings
    [first] = [one for one in parts(drawn) if one["props"].get("className") == "first"]
    assert len(first["props"]["children"]) == min(len(found), 5) > 0


def test_figures_are_read_as_their_contract_says(visit: Callable[..., Visit]) -> None:
    """One sentence a figure, wherever it stands."""
    readings = {
        one.name: one.reading for one in engine.discover("diagnose.figures", "FIGURE").values()
    }
    for page, named in {
        "": ("step_time", "staircase"),
        "overlap": ("overlap", "stalls"),
        "ranks": ("ranks", "arrival_skew"),
    }.items():
        said = [
            one["props"]["children"]
            for one in parts(view(page).draw(visit("straggler", page)))
            if one["props"].get("className") == "muted reading"
        ]
        assert {readings[name] for name in named} <= set(said), page


def places_of(drawn: Any) -> list[Address]:
    links = [one["props"] for one in parts(drawn) if one["props"].get("className") == "place"]
    return [parse(*href.split("?")) for href in (link["href"] for link in links)]


def test_a_finding_opens_its_stretch_of_the_timeline(visit: Callable[..., Visit]) -> None:
    given = visit("known", "findings", theme="dark")
    ops = given.shown.trace.gpu_ops
    [gemm] = [row for row, name in enumerate(ops.texts("name")) if name == "gemm_b"]
    span = Span(0, int(ops["start_ns"][gemm]), int(ops["end_ns"][gemm]))
    where = Where(gpus=given.shown.trace.gpus, spans=(span,))
    [opened] = places_of(view("findings").draw(_only(given, where)))
    # gemm_b runs from 300 to 400 us on the axis: itself, and a fifth of it on both sides.
    assert (opened.start_ns, opened.end_ns) == (280_000, 420_000)
    assert (opened.page, opened.recording, opened.theme) == ("timeline", "known", "dark")
    assert opened.open == ("g0.0",)


def test_a_finding_without_a_stretch_opens_its_step_or_its_gpus(
    visit: Callable[..., Visit],
) -> None:
    given = visit("known", "findings", start_ns=1, end_ns=2)
    gpus = given.shown.trace.gpus
    where = Where(gpus=gpus, steps=("ProfilerStep#1",))
    [opened] = places_of(view("findings").draw(_only(given, where)))
    # Marked on the host from 0 to 500 us; its all-reduce ends on the GPU at 600.
    assert opened.start_ns is not None
    assert opened.start_ns < 0
    assert opened.end_ns is not None
    assert 600_000 <= opened.end_ns <= 600_000 * 1.2
    [opened] = places_of(view("findings").draw(_only(given, Where(gpus=gpus))))
    assert (opened.start_ns, opened.end_ns, opened.open) == (None, None, ("g0.0",))


def _only(given: Visit, where: Where) -> Visit:
    """As if a rule had found one thing, there."""
    found = Finding(
        rule="host-sync",
        severity="warning",
        title="Something waits",
        sentence="It waits.",
        confidence="high",
        key="host-sync",
        where=where,
    )
    shown = Shown(given.shown.key, given.shown.label, given.shown.trace)
    shown.__dict__["_diagnosis"] = dataclasses.replace(given.shown.diagnosis, findings=(found,))
    return given._replace(shown=shown)


def test_nothing_changed_between_a_recording_and_its_copy(visit: Callable[..., Visit]) -> None:
    library = visit("known").library
    [key] = [one.key for one in library.entries() if one.label.endswith("copied")]
    entry = library.entry(key)
    assert entry is not None
    assert library.open(entry).finished.wait(60)
    drawn = view("compare").draw(visit("known", "compare", other=key))
    [compute] = [row for row in rows(drawn, "compare-measures") if row["name"] == "compute"]
    # Step 1: gemm_a and gemm_b, 200 us; step 2: gemm_c, 200 us.
    assert compute["before_ns"] == compute["after_ns"] == close(200)
    grids = [one["props"]["rowData"] for one in parts(drawn) if one["type"] == "AgGrid"]
    changes = [row.get("change_ns") for one in grids for row in one]
    assert len(grids) > 1
    assert set(changes) <= {None, 0.0}
