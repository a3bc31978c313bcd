"""The timeline as a figure that stands alone: with the names of lanes, and a legend."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analysis import Unavailable
from diagnose.errors import UsageError
from diagnose.figures._timeline_sensors import Sensors, sensors_of
from diagnose.figures._timeline_words import CATEGORIES, Marks, color_of
from diagnose.lanes import Category, Lane, LaneKind, Picture, Timeline
from diagnose.plotting.definition import FigureContext, FigureDefinition, Tables
from diagnose.plotting.lane_layout import Layout, layout_of
from diagnose.plotting.style import Figure, inert, short
from diagnose.wording.steps import step_label

_FEW_GPUS = 4
"""Of more GPUs the streams are shown where they are asked for."""
_MOST_LANES = 96
_LABELS = 200
"""Pixels for the names of lanes."""


def drawn(
    tables: Tables,  # noqa: ARG001 - a timeline is drawn from the trace itself
    context: FigureContext,
    *,
    start_ns: int | None = None,
    end_ns: int | None = None,
    step: int | str | None = None,
    lanes: Sequence[str] | str | None = None,
    pixels: int = 1000,
) -> Figure | Unavailable:
    """The window from ``start_ns`` to ``end_ns`` (ns since the first event), or one step."""
    from diagnose.figures.timeline import draw

    trace, timeline = context.trace, context.timeline
    if not len(trace.gpu_ops) and not len(trace.host_ops) and not len(trace.launches):
        return Unavailable("no operation was recorded", "record with the activities CPU and CUDA")
    start, end = _window(context, start_ns, end_ns, step)
    shown = _lanes(timeline, lanes)
    keys = [lane.key for lane in shown]
    picture = timeline.picture(start, end, pixels=pixels, lanes=keys)
    sensors = sensors_of(timeline.counters(start, end, pixels=pixels))
    layout = layout_of(
        shown, [timeline.rows_of(key) for key in keys], [one.height for one in sensors]
    )
    names = {lane.key: lane.label for lane in timeline.lanes if lane.kind == LaneKind.STATES}
    made = draw(
        picture,
        layout,
        lambda code: trace.strings[code],
        sensors=sensors,
        gpu_names=names,
        marks=Marks(steps=timeline.steps()),
        palette=context.palette,
        pixels=pixels,
    )
    _name_lanes(made, shown, layout)
    _name_sensors(made, sensors, layout, context)
    _legend(made, picture, context)
    return made


def _window(
    context: FigureContext, start_ns: int | None, end_ns: int | None, step: int | str | None
) -> tuple[int, int]:
    timeline = context.timeline
    if step is None:
        return (
            timeline.start_ns if start_ns is None else start_ns,
            timeline.end_ns if end_ns is None else end_ns,
        )
    if start_ns is not None or end_ns is not None:
        raise UsageError("timeline: a step and a window were given", hint="give one of the two")
    marks = timeline.steps()
    labels = [step_label(context.trace, mark.row) for mark in marks]
    mine = [
        mark for mark, label in zip(marks, labels, strict=True) if str(step) in (label, mark.label)
    ]
    if not mine:
        known = ", ".join(dict.fromkeys(labels)) or "none: no step is marked"
        raise UsageError(f"timeline: there is no step {step!r}", hint=f"steps: {known}")
    # The host runs ahead: what a step did on the GPU may lie far from its mark.
    on_gpu = [on for mark in mine for on in mark.on_gpu]
    spans = [(on.start_ns, on.end_ns) for on in on_gpu]
    spans = spans or [(mark.start_ns, mark.end_ns) for mark in mine]
    return min(low for low, _ in spans), max(high for _, high in spans)


def _lanes(timeline: Timeline, asked: Sequence[str] | str | None) -> tuple[Lane, ...]:
    """GPUs and their streams where nothing is asked for; threads where there is no GPU."""
    if asked == "all":
        return timeline.lanes[:_MOST_LANES]
    if asked is not None:
        keys = [asked] if isinstance(asked, str) else asked
        return tuple(timeline.lane(key) for key in keys)
    gpus = [lane for lane in timeline.lanes if lane.kind == LaneKind.STATES]
    if not gpus:
        return timeline.lanes[:_MOST_LANES]
    if len(gpus) > _FEW_GPUS:
        return tuple(gpus[:_MOST_LANES])
    found = [lane for lane in timeline.lanes if lane.kind != LaneKind.THREAD]
    return tuple(found[:_MOST_LANES])


def _name_lanes(made: Figure, lanes: Sequence[Lane], layout: Layout) -> None:
    """Names beside the lanes, at the middle of their rows."""
    made.update_layout(
        margin_l=_LABELS,
        yaxis={
            "visible": True,
            "tickmode": "array",
            "tickvals": [box.top + box.height / 2 for box in layout.lanes],
            "ticktext": [short(lane.label, 24) for lane in lanes],
            "tickfont": {"size": 11},
            "showgrid": False,
            "zeroline": False,
        },
        dragmode="zoom",
    )


def _name_sensors(
    made: Figure, sensors: Sequence[Sensors], layout: Layout, context: FigureContext
) -> None:
    for read, panel in zip(sensors, layout.panels, strict=True):
        made.add_annotation(
            x=0,
            xref="paper",
            xanchor="right",
            xshift=-8,
            y=1 - (panel.top + panel.height / 2) / layout.inner,
            yref="paper",
            yanchor="middle",
            text=short(read.label, 24) + (f" ({inert(read.unit)})" if read.unit else ""),
            showarrow=False,
            font={"size": 11, "color": context.palette.muted},
        )


def _legend(made: Figure, picture: Picture, context: FigureContext) -> None:
    """What the colours mean that are there, below the axis."""
    made.update_traces(showlegend=False)
    for category in Category:
        if (picture.category == category).any():
            made.add_bar(
                x=[None],
                y=[None],
                name=CATEGORIES[category],
                marker={"color": color_of(category, context.palette)},
                showlegend=True,
            )
    height, bottom = made.layout.height, made.layout.margin.b
    inner = height - made.layout.margin.t - bottom
    made.update_layout(
        height=height + 30,
        margin_b=bottom + 30,
        showlegend=True,
        legend={"y": -(bottom + 6) / inner, "yanchor": "top"},
    )


FIGURE = FigureDefinition(
    "timeline",
    "Timeline",
    "Each row is a stream or a thread over time; what is narrower than a pixel is added up, "
    "as high as the share of time that it covers.",
    drawn,
)
