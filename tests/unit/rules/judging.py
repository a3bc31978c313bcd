"""Runs rules on small traces: one rule, its findings, and what else it can answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from diagnose import engine
from diagnose.findings import Checked, Finding
from diagnose.rules._judge import Judging
from diagnose.rules._settings import Settings
from diagnose.schema import Detail
from diagnose.trace import Trace
from tests.builder import TraceBuilder, build_trace


def trace_of(
    *builders: TraceBuilder,
    detail: Detail = Detail.ALL,
    env: Mapping[str, str] | None = None,
    gpu: Mapping[str, Any] | None = None,
) -> Trace:
    """A trace of builders; with ``env`` or ``gpu`` every process has an environment."""
    trace = build_trace(*builders, detail=detail)
    if env is None and gpu is None:
        return trace
    noted = {"env": dict(env or {}), "gpu": dict(gpu or {})}
    return replace(trace, sources=tuple(replace(s, environment=noted) for s in trace.sources))


def judged(trace: Trace, rule: str, **thresholds: Any) -> tuple[tuple[Finding, ...], Checked]:
    """The findings of one rule and what else came of it; a rule that crashes fails the test."""
    known = engine.rules()[rule]
    changed = {rule: replace(known.thresholds, **thresholds)} if thresholds else {}
    judging = Judging(settings=Settings(thresholds=changed), select=(rule,))
    crashed: list[tuple[str, Exception]] = []
    diagnosis = engine.diagnose(
        trace, {}, judging=judging, failed=lambda name, problem: crashed.append((name, problem))
    )
    if crashed:
        raise crashed[0][1]
    assert diagnosis.checked is not None
    return diagnosis.findings, diagnosis.checked


def found(trace: Trace, rule: str, **thresholds: Any) -> Finding:
    """The one finding of a rule."""
    findings, checked = judged(trace, rule, **thresholds)
    assert len(findings) == 1, (findings, checked)
    return findings[0]


def is_clean(trace: Trace, rule: str, **thresholds: Any) -> bool:
    """Whether the rule looked and found nothing (rather than not having looked)."""
    findings, checked = judged(trace, rule, **thresholds)
    return not findings and checked.clean == (rule,)


def values(finding: Finding) -> dict[str, Any]:
    """The evidence by key."""
    return {evidence.key: evidence.value for evidence in finding.evidence}
