"""The picture of an address: figure, labels beside it, and what both agree on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from dash import html

from dashboard import details, text
from dashboard.address import Address
from dashboard.kept import Kept, kept
from dashboard.lanes import Page, folds, folds_threads, opened, page_of, visible, window_of
from dashboard.shown import Shown
from dashboard.view import Component
from diagnose.errors import DiagnoseError
from diagnose.figures import timeline as figure
from diagnose.lanes import Hits, Lane, LaneKind, Op, Timeline
from diagnose.plotting.lane_layout import Layout, layout_of
from diagnose.plotting.palette import Palette

MOST_SHAPES = 3000
"""So that with names and sensors a picture stays under 300 KB and 5,000 shapes."""
CONFIG: Any = {
    "displayModeBar": False,
    "scrollZoom": True,
    "doubleClick": False,
    "responsive": True,
}
HEAD_CONFIG: Any = {"staticPlot": True, "responsive": True}
_LABEL = 34
_MOST_READINGS = 5000
_MOST_FRAMED = 200
_NARROWEST = 60


class Scene(NamedTuple):
    """All of the timeline that an address shows."""

    start_ns: int
    end_ns: int
    page: Page
    layout: Layout
    sensors: tuple[figure.Sensors, ...]
    figure: dict[str, Any]
    """As the browser's plotly reads it."""
    head: dict[str, Any]
    """The axis that stays above the lanes."""
    gpu_names: Mapping[str, str]
    source_names: tuple[str, ...]


def scene(shown: Shown, address: Address, palette: Palette, width: int) -> Scene:
    """The figure of an address, ``width`` pixels wide."""
    timeline, width = shown.timeline, max(width, 1)
    start, end = window_of(timeline, address)
    page = page_of(visible(timeline, opened(timeline, address)), address.top)
    drawn = [lane for lane in page.lanes if not folds_threads(lane)]
    rows = [1 if folds_threads(lane) else timeline.rows_of(lane.key) for lane in page.lanes]
    picture = timeline.picture(
        start, end, pixels=width, lanes=[lane.key for lane in drawn], most_shapes=MOST_SHAPES
    )
    sensors = _sensors(timeline, start, end, width)
    layout = layout_of(page.lanes, rows, [one.height for one in sensors], head=0)
    # The picture numbers the lanes it was asked for, the layout all that are seen.
    boxes = {box.key: box for box in layout.lanes}
    own = dataclasses.replace(layout, lanes=tuple(boxes[lane.key] for lane in drawn))
    strings, names = shown.trace.strings, _gpu_names(timeline)
    hits = kept(shown).hits(address.find) if address.find else None
    marks = _marks(shown, address, hits, (start, end), {lane.key for lane in drawn})
    drawn_figure = figure.sheet(
        picture,
        own,
        lambda code: text.whole(strings[code]),
        sensors=sensors,
        gpu_names=names,
        marks=marks,
        palette=palette,
        pixels=width,
    )
    sources = tuple(source.label for source in shown.trace.sources)
    found = None if hits is None else hits.start_ns
    sheet, head = drawn_figure.plain(), figure.head(picture, marks, palette, width, found).plain()
    for one in (sheet, head):
        one["layout"]["xaxis"] |= _ends(timeline)
    return Scene(start, end, page, layout, sensors, sheet, head, names, sources)


def _ends(timeline: Timeline) -> dict[str, float]:
    """How far a hand may go: whatever ran can be brought to the middle, and no farther."""
    margin = max((timeline.end_ns - timeline.start_ns) // 2, 1)
    return {
        "minallowed": (timeline.start_ns - margin) / figure.MS,
        "maxallowed": (timeline.end_ns + margin) / figure.MS,
    }


def _sensors(
    timeline: Timeline, start_ns: int, end_ns: int, width: int
) -> tuple[figure.Sensors, ...]:
    """The sensors, with so few readings that together they do not weigh more than the lanes."""
    read = timeline.counters(start_ns, end_ns, pixels=width)
    if sum(one.x_ns.size for one in read) > _MOST_READINGS:
        pixels = max(_MOST_READINGS // len(read), _NARROWEST)
        read = timeline.counters(start_ns, end_ns, pixels=min(pixels, width))
    return figure.sensors_of(read)


def _gpu_names(timeline: Timeline) -> dict[str, str]:
    return {
        lane.key: text.whole(lane.label) for lane in timeline.lanes if lane.kind == LaneKind.STATES
    }


def _marks(
    shown: Shown, address: Address, hits: Hits | None, window: tuple[int, int], drawn: set[str]
) -> figure.Marks:
    """The steps, the hits in sight, what is selected, and what that is linked with."""
    timeline, known = shown.timeline, kept(shown)
    steps, left_out = known.steps(*window)
    selected, linked = _selection(timeline, known, address)
    return figure.Marks(
        selected=selected,
        linked=linked,
        found=[] if hits is None else _framed(timeline, hits, window, drawn),
        steps=steps,
        steps_left_out=left_out,
        ruler=address.ruler,
    )


def _selection(
    timeline: Timeline, known: Kept, address: Address
) -> tuple[figure.Mark | None, list[figure.Mark]]:
    if address.selected is None:
        return None, []
    try:
        found = known.details(address.selected)
    except DiagnoseError:
        return None, []
    return _mark(timeline, found.op), [_mark(timeline, op) for op in details.linked(found)]


def _framed(
    timeline: Timeline, hits: Hits, window: tuple[int, int], drawn: set[str]
) -> list[figure.Mark]:
    """Hits that begin in the window, on lanes that are drawn; none where they are too many."""
    first = 0 if (place := hits.after(window[0] - 1)) is None else place
    last = hits.before(window[1] + 1)
    if place is None or last is None or last - first >= _MOST_FRAMED:
        return []
    ops = [hits[at] for at in range(first, last + 1)]
    return [_mark(timeline, op) for op in ops if timeline.lane_of(op.table, op.row) in drawn]


def _mark(timeline: Timeline, op: Op) -> figure.Mark:
    return figure.Mark(*timeline.locate(op.table, op.row))


def labels(scene: Scene, unfolded: frozenset[str], palette: Palette) -> list[Component]:
    """A label a lane, at the height of its rows; those that fold are buttons."""
    made: list[Component] = []
    for lane, box in zip(scene.page.lanes, scene.layout.lanes, strict=True):
        arrow = ("▾ " if lane.key in unfolded else "▸ ") if folds(lane) else ""
        given: dict[str, Any] = {
            "style": {"top": box.top, "height": box.height},
            "className": f"lane-label {_css(lane)}",
            "title": text.shown(_label(scene, lane)),
        }
        label = arrow + text.shown(_label(scene, lane), _LABEL)
        if folds(lane):
            pressed: dict[str, Any] = {"aria-expanded": "true" if lane.key in unfolded else "false"}
            made.append(html.Button(label, id={"lane": lane.key}, n_clicks=0, **given, **pressed))
        else:
            made.append(html.Div(label, **given))
    for place, sensors in zip(scene.layout.panels, scene.sensors, strict=True):
        style = {"top": place.top, "height": place.height}
        unit = "" if sensors.unit == "held" else f" ({sensors.unit})"
        said = f"{sensors.label}{unit}"
        children = [html.Span(said), *_whose(scene, sensors, palette)]
        made.append(html.Div(children, style=style, title=said, className="lane-label sensor"))
    return made


def _label(scene: Scene, lane: Lane) -> str:
    """What a lane is called; a thread of a process without a GPU also whose it is."""
    if lane.kind == LaneKind.THREAD and lane.parent is None and len(scene.source_names) > 1:
        return f"{scene.source_names[lane.source]}, {lane.label}"
    return lane.label


def _css(lane: Lane) -> str:
    if lane.kind == LaneKind.THREAD and lane.parent is None:
        return "thread alone"
    return "threads" if folds_threads(lane) else lane.kind.name.lower()


def _whose(scene: Scene, sensors: figure.Sensors, palette: Palette) -> list[Component]:
    """Whose colour is whose; how many GPUs, where they have no colours."""
    if sensors.unit == "held":
        return []
    number = len(sensors.counters)
    if number > figure.MOST_LINES:
        return [html.Small(f"lowest, mean, highest of {number} GPUs")]
    keys = []
    for at, counter in enumerate(sensors.counters):
        name = text.shown(scene.gpu_names.get(counter.gpu or "", f"source {counter.source}"), 60)
        swatch = html.I(style={"background": figure.color_at(palette, at)})
        short = name if number <= 2 else name.partition(",")[0]
        keys.append(html.Span([swatch, short], title=name))
    return [html.Small(keys, className="whose")]
