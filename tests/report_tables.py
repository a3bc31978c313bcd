"""Findings and stairs of known content, for tests of how they are drawn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from diagnose.findings import (
    Checked,
    Cost,
    Evidence,
    Finding,
    Fix,
    Gain,
    Headline,
    NotChecked,
    Threshold,
    Where,
)
from diagnose.replay.tables import STAIRCASE
from diagnose.trace import Gpu, Strings, Table

STAIRS = (
    # title, change, is bound, step, least, most (ms)
    (None, None, False, 42.4, 41.9, 43.0),
    ("Rank 1 is as fast as the others", "without-straggler:rank=1", False, 38.2, 37.6, 38.9),
    ("Launches from a CUDA graph", "graph-launches", False, 37.5, 36.8, 38.4),
    ("No host limit", "no-host-limit", True, 36.9, 36.2, 37.7),
    ("All communication is hidden", "hide-communication", True, 34.8, 34.1, 35.5),
)


def stairs(rows: tuple[Any, ...] = STAIRS) -> Table:
    """A table ``staircase`` with these rows; times in milliseconds."""
    words: list[str] = []

    def code(text: str | None) -> int:
        if text is None:
            return -1
        words.append(text)
        return len(words) - 1

    columns: dict[str, list[Any]] = {column.name: [] for column in STAIRCASE.columns}
    before = rows[0][3]
    for place, (title, change, is_bound, then, low, high) in enumerate(rows):
        saved = (before - then) * 1e6 if place else math.nan
        values = dict.fromkeys(columns, math.nan) | {
            "place": place,
            "change": code(change),
            "title": code(title),
            "is_bound": is_bound,
            "changes": -1,
            "titles": -1,
            "basis": -1,
            "remarks": -1,
            "num_steps": 2,
            "measured_step_ns": 44.1e6,
            "replayed_step_ns": 44.0e6,
            "fidelity_pct": -0.2,
            "now_ns": rows[0][3] * 1e6,
            "then_ns": then * 1e6,
            "then_low_ns": low * 1e6,
            "then_high_ns": high * 1e6,
            "added_gain_ns": saved,
            "added_gain_low_ns": saved - 0.3e6,
            "added_gain_high_ns": saved + 0.3e6,
        }
        for name, value in values.items():
            columns[name].append(value)
        before = then
    arrays = {c.name: np.array(columns[c.name], c.dtype) for c in STAIRCASE.columns}
    return Table(STAIRCASE, arrays, Strings(words))


def findings(gpus: tuple[Gpu, ...], operator: str = "aten::add") -> tuple[Finding, ...]:
    """One of each severity, the gravest with all that a finding can have."""
    inner = Finding(
        rule="exposed-communication",
        title="Communication is not hidden",
        severity="warning",
        confidence="high",
        sentence="3.52 ms a step (8.0 %) of communication run while nothing computes.",
        key="exposed-communication",
        evidence=(Evidence("exposed_ns", "exposed a step", 3.52e6),),
        gain=Gain("upper bound", "no change models the fix", high_ns=3.5e6, step_ns=44.0e6),
        advice=(Fix("Enlarge the buckets.", "DDP(model, bucket_cap_mb=50)"),),
    )
    grave = Finding(
        rule="straggler-rank",
        title="Everybody waits for one rank",
        severity="critical",
        confidence="high",
        sentence="Rank 1 holds the others up in 3 of 3 steps: they lose 5.20 ms a step to it.",
        key="straggler-rank@rank 1",
        where=Where(gpus=gpus[1:], steps=("ProfilerStep#4", "ProfilerStep#5")),
        evidence=(
            Evidence("lost_per_step_ns", "the others lose a step", 5.2e6),
            Evidence("lost_pct", "share of the step", 11.8, "min_lost_pct"),
            Evidence("compute_ratio", "its compute over the median rank's", 1.03),
            Evidence("operator", "where most of it is", operator),
        ),
        thresholds=(Threshold("min_lost_pct", 5.0, 5.0, "published trace tools"),),
        cost=Cost(5.2e6, "what the others wait for it alone"),
        gain=Gain("replay", "", ("without-straggler:rank=1",), 4.4e6, 4.9e6, 5.3e6, 42.4e6),
        advice=(
            Fix("Look at that rank, not at the network.", "nvidia-smi -i 1 -q -d PERFORMANCE"),
            Fix("Compare its input with another rank's."),
        ),
        caveats=("If another recording names another rank, it is uneven work.",),
        folded=(inner,),
    )
    return (
        grave,
        _other("launch-bound", "The GPU waits for the host", "warning", "high"),
        _other("nccl-cta-share", "Collectives take multiprocessors", "info", "medium"),
        _other("missing-wait", "A consumer may start too early", "hint", "low"),
    )


def _other(rule: str, title: str, severity: Any, confidence: Any) -> Finding:
    return Finding(
        rule=rule,
        title=title,
        severity=severity,
        confidence=confidence,
        sentence=f"{title}: on 2 of 2 GPUs.",
        key=rule,
        gain=Gain("none", "no replayed change models the fix"),
    )


def checked(**changed: Any) -> Checked:
    """Two rules without telemetry, one without ranks, three that found nothing."""
    telemetry = "the recording has no telemetry", "record with `diagnose attach`"
    given: dict[str, Any] = {
        "not_checked": (
            NotChecked("gpu-throttled", "The GPU is throttled", *telemetry),
            NotChecked("power-capped", "A power limit lowers clocks", *telemetry),
            NotChecked("rank-skew", "Ranks differ", "one rank was recorded", "record all ranks"),
        ),
        "clean": ("host-sync", "debug-env-on", "tiny-buckets"),
        "headline": Headline(2, 2, 44.1e6, 88.0, 8.0, 0.3, 3.5, 44.0),
    }
    return Checked(**{**given, **changed})
