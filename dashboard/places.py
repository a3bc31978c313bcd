"""Where in the timeline a finding is to be seen: links, each with time range and lanes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dashboard import text
from dashboard.address import Address
from dashboard.shown import Shown
from diagnose.errors import UnavailableError
from diagnose.findings import Finding, Span
from diagnose.lanes import Timeline
from diagnose.wording.findings import figure

_MOST = 6
_LABEL = 40
_LEAST_MARGIN_NS = 1_000


class PlaceLink(NamedTuple):
    """A stretch of the timeline: what it is called and its address."""

    label: str
    address: Address


def places(shown: Shown, address: Address, found: Finding) -> Iterator[PlaceLink]:
    """A link a span of a finding; without spans one a step, else one to its GPUs' lanes."""
    try:
        timeline = shown.timeline
    except UnavailableError:
        return
    base = address.to("timeline").replace(selected=None, find="")
    if found.where.spans:
        yield from (_span(shown, timeline, base, found, one) for one in found.where.spans[:_MOST])
        return
    lanes = _lanes(shown, found)
    stretches = _steps(timeline, found)
    for label, start, end in stretches[:_MOST]:
        yield PlaceLink(text.shown(label, _LABEL), _around(base, start, end).replace(open=lanes))
    if not stretches:
        gpus = "its GPUs" if found.where.gpus else "all GPUs"
        yield PlaceLink(gpus, base.at(None, None).replace(open=lanes))


def _span(shown: Shown, timeline: Timeline, base: Address, found: Finding, span: Span) -> PlaceLink:
    ends = np.array([span.start_ns, span.end_ns], np.int64)
    start, end = timeline.to_common(span.source, ends).tolist()
    who = text.shown(shown.trace.sources[span.source].label, _LABEL)
    when = " ".join(figure(start - timeline.start_ns, "ns"))
    lanes = _lanes(shown, found, span.source)
    return PlaceLink(f"{who} at {when}", _around(base, start, end).replace(open=lanes))


def _steps(timeline: Timeline, found: Finding) -> list[tuple[str, int, int]]:
    """Name and ends of each step that it is about, over all sources that have it."""
    wanted, sources = set(found.where.steps), {gpu.source for gpu in found.where.gpus}
    ends: dict[str, tuple[int, int]] = {}
    for mark in timeline.steps():
        if mark.label not in wanted or (sources and mark.source not in sources):
            continue
        marks = [(mark.start_ns, mark.end_ns), *((one.start_ns, one.end_ns) for one in mark.on_gpu)]
        known = ends.get(mark.label)
        marks += [known] if known else []
        ends[mark.label] = min(low for low, _ in marks), max(high for _, high in marks)
    return [(label, low, high) for label, (low, high) in ends.items()]


def _lanes(shown: Shown, found: Finding, source: int | None = None) -> tuple[str, ...] | None:
    """Lanes to unfold: the GPUs that it is about, of one source. None: as many as fit."""
    gpus = found.where.gpus or (() if source is None else shown.trace.gpus)
    keys = [f"g{gpu.source}.{gpu.device}" for gpu in gpus if source in (None, gpu.source)]
    return tuple(keys) or None


def _around(base: Address, start: int, end: int) -> Address:
    margin = max((end - start) // 5, _LEAST_MARGIN_NS)
    return base.at(start - margin, end + margin)
