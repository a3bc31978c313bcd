"""The timeline of a trace at any level of detail, as arrays: what is to be drawn, not how.

``Timeline(trace)`` has the lanes; ``Timeline.picture`` the shapes of a window, few whatever
the zoom and however many operations; ``search``, ``locate``, ``steps`` and ``counters`` what
lies beside them. Times are nanoseconds since the first event, on one clock.
"""

from __future__ import annotations

from diagnose.lanes.counters import Counter
from diagnose.lanes.lane import Category, Lane, LaneKind, Op, OpTable
from diagnose.lanes.picture import Picture
from diagnose.lanes.search import Hits
from diagnose.lanes.steps import StepMark, StepOnGpu
from diagnose.lanes.timeline import Place, Timeline

__all__ = [
    "Category",
    "Counter",
    "Hits",
    "Lane",
    "LaneKind",
    "Op",
    "OpTable",
    "Picture",
    "Place",
    "StepMark",
    "StepOnGpu",
    "Timeline",
]
