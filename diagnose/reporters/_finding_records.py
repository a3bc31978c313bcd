"""Findings for JSON: times in microseconds, units in keys, null for what is not known."""

from __future__ import annotations

import math
from typing import Any

from diagnose.findings import Checked, Diagnosis, Evidence, Finding, Gain, NotChecked, unit_of
from diagnose.reporters._records import Record, microseconds_raw
from diagnose.schema import NULL


def finding_rows(diagnosis: Diagnosis) -> list[Record]:
    """Every finding, those that it explains inside of it."""
    return [_finding(diagnosis, found) for found in diagnosis.findings]


def checked_records(diagnosis: Diagnosis) -> Record:
    """What came of the other rules; empty lists where no rule was run."""
    checked = diagnosis.checked or Checked()
    head = checked.headline
    return {
        "headline": None
        if head is None
        else {
            "num_gpus": head.num_gpus,
            "num_steps": head.num_steps,
            "step_us": _time(head.step_ns),
            "compute_pct": head.compute_pct,
            "exposed_comm_pct": head.exposed_pct,
            "copies_pct": head.copies_pct,
            "idle_pct": head.idle_pct,
            "hidden_pct": head.hidden_pct,
        },
        "not_checked": [_not_checked(one) for one in checked.not_checked],
        "failed": [_not_checked(one) for one in checked.failed],
        "clean": list(checked.clean),
        "seen": [{"rule": one.rule, "sentence": one.sentence} for one in checked.seen],
        "not_applicable": list(checked.not_applicable),
        "accepted": [{"key": one.key, "rule": one.rule} for one in checked.accepted],
        "num_accepted_unmatched": checked.num_unmatched,
        "left_out": list(checked.left_out),
        "settings": checked.settings or None,
    }


def _finding(diagnosis: Diagnosis, found: Finding) -> Record:
    return {
        "rule": found.rule,
        "title": found.title,
        "severity": found.severity,
        "confidence": found.confidence,
        "sentence": found.sentence,
        "key": found.key,
        "ranks": list(found.where.ranks),
        "where": _where(diagnosis, found),
        "evidence": [_evidence(found, one) for one in found.evidence],
        "cost": None
        if found.cost is None
        else {
            "per_step_us": _time(found.cost.per_step_ns),
            "basis": found.cost.basis,
            "is_upper_bound": found.cost.is_upper_bound,
        },
        "gain": _gain(found.gain),
        "advice": [{"text": fix.text, "code": fix.code or None} for fix in found.advice],
        "caveats": list(found.caveats),
        "explains": [_finding(diagnosis, one) for one in found.folded],
    }


def _where(diagnosis: Diagnosis, found: Finding) -> Record:
    sources = diagnosis.trace.sources
    where = found.where
    return {
        "gpus": [
            {"rank": gpu.rank, "device": gpu.device, "source": sources[gpu.source].path}
            for gpu in where.gpus
        ],
        "streams": list(where.streams),
        "steps": list(where.steps),
        "spans": [
            {
                "source": sources[span.source].path,
                "start_us": microseconds_raw(span.start_ns),
                "end_us": microseconds_raw(span.end_ns),
            }
            for span in where.spans
        ],
    }


def _evidence(found: Finding, one: Evidence) -> Record:
    threshold = found.threshold(one)
    key, value, unit = _in_microseconds(one.key, one.value)
    return {
        "key": key,
        "label": one.label,
        "value": value,
        "unit": unit or None,
        "threshold": None
        if threshold is None
        else {
            "name": threshold.name,
            "value": threshold.value,
            "default": threshold.default,
            "unit": unit_of(threshold.name) or None,
            "origin": threshold.origin,
        },
    }


def _in_microseconds(key: str, value: float | str) -> tuple[str, Any, str]:
    unit = unit_of(key)
    if isinstance(value, str):
        return key, value, ""
    if unit == "ns":
        return f"{key[: -len('_ns')]}_us", _time(value), "us"
    return key, None if math.isnan(value) else value, unit


def _gain(gain: Gain) -> Record:
    return {
        "basis": gain.basis,
        "reason": gain.reason or None,
        "changes": list(gain.changes),
        "low_us": _time(gain.low_ns),
        "likely_us": _time(gain.likely_ns),
        "high_us": _time(gain.high_ns),
        "low_pct": gain.pct(gain.low_ns),
        "likely_pct": gain.pct(gain.likely_ns),
        "high_pct": gain.pct(gain.high_ns),
        "step_us": _time(gain.step_ns),
        "per": gain.per,
    }


def _not_checked(one: NotChecked) -> Record:
    return {
        "rule": one.rule,
        "title": one.title,
        "because": one.because,
        "remedy": one.remedy or None,
    }


def _time(nanoseconds: float | None) -> Any:
    if nanoseconds is None or math.isnan(nanoseconds):
        return microseconds_raw(NULL)
    return microseconds_raw(round(nanoseconds))
