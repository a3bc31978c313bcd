"""The parts of a finding in words: what it is about, what it saves, what it was held against."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from diagnose.findings import (
    Checked,
    Diagnosis,
    Evidence,
    Finding,
    Gain,
    NotChecked,
    Threshold,
    unit_of,
)
from diagnose.wording.numbers import ABSENT, counted, percent, ranges, rate, size

_MOST_LEFT_OUT = 12


def difference() -> str:
    """What nobody may do with the gains of several findings."""
    return "Gains overlap and are not to be added: the stairs below show changes applied together."


def a_step(diagnosis: Diagnosis) -> str:
    """What a cost is of: a step, or the window where no step has a time."""
    head = None if diagnosis.checked is None else diagnosis.checked.headline
    return "in the window" if head is not None and not head.num_steps else "a step"


def left_out(rules: Sequence[str]) -> str:
    """The rules that nobody wanted."""
    return ", ".join(rules) if len(rules) <= _MOST_LEFT_OUT else "all other rules"


def by_reason(rules: Sequence[NotChecked]) -> list[tuple[tuple[str, str], list[str]]]:
    """Why rules could not be judged and what helps, each with the ids of the rules it holds for."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in rules:
        groups.setdefault((one.because.rstrip("."), one.remedy.rstrip(".")), []).append(one.rule)
    return list(groups.items())


def unmatched(checked: Checked) -> str:
    """How many entries of the baseline match nothing that was found."""
    number = checked.num_unmatched
    said = "1 entry of it matches" if number == 1 else f"{number:,} entries of it match"
    return f"{said} nothing that was found here: cured, or of another job"


def about(diagnosis: Diagnosis, found: Finding) -> Iterator[str]:
    """How sure it is, and the GPUs, streams and steps that it is about."""
    yield f"{found.confidence} confidence"
    where = found.where
    if where.gpus and len(where.gpus) < len(diagnosis.trace.gpus):
        ranks = list(where.ranks)
        known = len(ranks) == len(where.gpus)
        yield (
            f"rank{'s' * (len(ranks) > 1)} {ranges(ranks)}"
            if known
            else counted(len(where.gpus), "GPU")
        )
    if where.streams:
        yield f"stream{'s' * (len(where.streams) > 1)} {ranges(list(where.streams))}"
    if where.steps:
        yield counted(len(where.steps), "step")


def evidence_value(one: Evidence) -> tuple[str, str]:
    """A piece of evidence and its unit, as people read them."""
    if isinstance(one.value, str):
        return one.value, ""
    return figure(one.value, one.unit)


def figure(value: float, unit: str) -> tuple[str, str]:
    """A figure in a unit that suits its size."""
    if math.isnan(value):
        return ABSENT, ""
    if unit == "ns":
        return _duration(value)
    if unit == "bytes":
        number, suited = size(round(value)).rsplit(" ", 1)
        return number, suited
    if unit == "%":
        return percent(value), unit
    if unit == "times":
        return rate(value), unit
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}", unit


def _duration(nanoseconds: float) -> tuple[str, str]:
    """As sentences write it: 812.0 us, 3.40 ms, 12.3 s."""
    size = abs(nanoseconds)
    if size < 1e6:
        return f"{nanoseconds / 1e3:,.1f}", "us"
    return (f"{nanoseconds / 1e6:,.2f}", "ms") if size < 1e10 else (f"{nanoseconds / 1e9:.1f}", "s")


def threshold_words(threshold: Threshold | None) -> str:
    """``5 % (min_lost_pct)``; ``default 5`` where it was changed; empty without one."""
    if threshold is None:
        return ""
    value, unit = figure(threshold.value, unit_of(threshold.name))
    changed = threshold.value != threshold.default
    rest = f", default {figure(threshold.default, unit)[0]}" if changed else ""
    return f"{value} {unit}".strip() + f" ({threshold.name}{rest})"


def gain_words(gain: Gain) -> tuple[str, str]:
    """What the fix saves a step, and how sure that is: the figure, and the rest."""
    if gain.basis == "none" or gain.high_ns is None:
        return "", f"What the fix saves is not known: {gain.reason or 'nothing models it'}."
    high = gain.high_ns
    if gain.basis == "upper bound":
        why = f"; {gain.reason}" if gain.reason else ""
        a_step = "a step" if gain.per == "step" else "in the window"
        return f"saves at most {_time(high)}", f"{a_step}{_share(gain, high)}{why}"
    likely, low = gain.likely_ns, gain.low_ns
    if likely is None or low is None:
        return "", "What the fix saves is not known."
    replayed = f", replayed: {' + '.join(gain.changes)}" if gain.changes else ""
    ends = _time(low), _time(high)
    between = f", {ends[0]} to {ends[1]}" if ends[0] != ends[1] else ""
    if gain.step_ns is not None and high > gain.step_ns:
        # Where what the profiler cost is unknown, so is the step without it.
        between += f" of a step of likely {_time(gain.step_ns)}, which has a range too"
    if likely <= 0:
        return "likely saves nothing", f"of a step{between}{replayed}"
    return f"saves {_time(likely)}", f"a step{_share(gain, likely)}{between}{replayed}"


def _share(gain: Gain, ns: float) -> str:
    share = gain.pct(ns)
    return "" if share is None else f" ({percent(share)} % of it)"


def _time(nanoseconds: float) -> str:
    return " ".join(figure(nanoseconds, "ns"))
