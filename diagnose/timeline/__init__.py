"""How a GPU spends its time: compute, communication, overlap, exposed communication, idle.

Definitions (all exact, in integer nanoseconds, half-open intervals, per GPU):

- busy, compute, communication, memory: length of the union of the ops of that
  kind. Time on the wall counts once, however many kernels share it.
- overlapped: communication while anything computes on the same GPU; exposed
  communication: the rest. A copy hides nothing.
- overlap_pct: overlapped over communication; absent without communication.
- window: first start to last end; idle: window less busy.

A step's work is what was launched during its mark, on any thread. Its
communication counts as overlapped also where the compute beside it belongs to
another step. When a step began and ended: ``diagnose.timeline.step_times``.
"""

from __future__ import annotations

from diagnose.analysis import Analyzer
from diagnose.schema import Detail
from diagnose.timeline.observer_effect import OBSERVER_EFFECT, observer_effect
from diagnose.timeline.overlap import BY, By, overlap
from diagnose.timeline.summary import per_step
from diagnose.timeline.tables import OVERLAP, STEP_SUMMARY

__all__ = [
    "ANALYZERS",
    "BY",
    "OBSERVER_EFFECT",
    "OVERLAP",
    "STEP_SUMMARY",
    "By",
    "observer_effect",
    "overlap",
    "per_step",
]

ANALYZERS = (
    Analyzer("overlap", Detail.GPU, OVERLAP, overlap),
    Analyzer("step_summary", Detail.LAUNCHES, STEP_SUMMARY, per_step),
    Analyzer("observer_effect", Detail.LAUNCHES, OBSERVER_EFFECT, observer_effect),
)
