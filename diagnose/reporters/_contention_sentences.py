"""What overlap costs, in sentences: the figure, what it rests on, whether overlap paid."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from diagnose.contention._tables import ClockDivided, Verdict
from diagnose.contention.balance import LEAST_COVERAGE_PCT
from diagnose.findings import Diagnosis
from diagnose.intervals import Array
from diagnose.trace import Table
from diagnose.wording.numbers import Scale, counted, percent, rate, scale_for

_WORTH_SAYING = 0.02
"""Share of the overlapped compute from which a reason is given why it was not compared."""
_REASONS = {
    "no_twin_ns": "the same kernel never ran alone",
    "unclear_ns": "input shapes not recorded",
    "crowded_ns": "other compute ran beside it too",
    "other_company_ns": "another rank on its GPU computed beside it, not its twins, or the reverse",
    "disagree_ns": "kernels that ran alone differ too much",
    "outlier_ns": "far from all others of the kernel",
}


def sentences(diagnosis: Diagnosis, *, by_step: bool) -> Iterator[str]:
    """In the order in which they matter. ``by_step``: judge steps rather than windows."""
    yield _slowdown(diagnosis.tables["contention"])
    yield _coverage(diagnosis.tables["contention"], diagnosis.tables["basis"])
    yield from _clock(diagnosis.tables["contention"], diagnosis.tables["basis"])
    yield _balance(diagnosis.tables["balance"], by_step=by_step)


NOT_TOLD = ", so whether it is slower at all is not told"


def interval(low: float, high: float) -> str:
    """A 95 % interval as ``1.52 to 1.70``; open where there is no upper end."""
    if np.isnan(low):
        return "-"
    return f"{rate(low)} to {rate(high)}" if not np.isnan(high) else f"{rate(low)} or more"


def total_scale(total: Table) -> Scale:
    """The unit of what overlap costs, in sentences and tables."""
    return _scale_of(total, "cost_ns", "overlapped_ns", "estimated_ns")


def balance_scale(balance: Table) -> Scale:
    """The unit of the balance, in sentences and tables."""
    return _scale_of(balance, "hidden_ns", "contention_ns", "serial_ns")


def _scale_of(table: Table, *columns: str) -> Scale:
    values = np.concatenate([np.abs(table[name]) for name in columns])
    return scale_for(int(np.nanmax(values, initial=0.0)))


def few_twins(balance: Table) -> Array:
    """Rows without a verdict although their gain excludes 0: too little has twins."""
    found: Array = balance["verdict"] == Verdict.UNDECIDED
    return found & ((balance["gain_low_ns"] > 0) | (balance["gain_high_ns"] < 0))


def undecided_because(balance: Table) -> str:
    """Why rows have no verdict; empty if all have one."""
    undecided, few = balance["verdict"] == Verdict.UNDECIDED, few_twins(balance)
    reasons = []
    if few.any():
        shares = sorted(balance["coverage_pct"][few].tolist())
        ends = list(dict.fromkeys((percent(shares[0]), percent(shares[-1]))))
        reasons.append(
            f"only {' to '.join(ends)} % of the overlapped compute has twins, and below "
            f"{LEAST_COVERAGE_PCT:.0f} % what the rest lost is a guess"
        )
    if (undecided & ~few).any():
        reasons.append("the gain may be 0 or less")
    return "; ".join(reasons)


def _slowdown(total: Table) -> str:
    value, low, high = (float(total[name][0]) for name in _names("slowdown"))
    whole = f"overlapped kernels take {rate(float(total['duration_ratio'][0]))} times as long"
    bounds = interval(float(total["duration_ratio_low"][0]), float(total["duration_ratio_high"][0]))
    whole += f" as alone in all ({bounds})"
    if not np.isnan(value):
        said = f"While communication runs, compute takes {rate(value)} times as long as alone"
        at, as_they_were = clock_words(total)
        bounds = f"95 %: {interval(low, high)}" if not np.isnan(low) else ""
        beside = "; ".join(filter(None, (bounds, as_they_were)))
        said += at + (f" ({beside})" if beside else "")
        said += NOT_TOLD if low <= 1 <= high else ""
        said += f"; {whole}."
    else:
        least = f", at least {rate(low)} times as long" if not np.isnan(low) and low > 1 else ""
        said = "While communication runs, compute gets on so slowly that its speed cannot be told "
        said += f"from standing still{least}; {whole}."
    return said + _cost(total)


def clock_words(total: Table) -> tuple[str, str]:
    """That a slowdown is without changes of the clock, and what it is with them.

    Both empty where that makes no difference.
    """
    plain, value = float(total["uncorrected_slowdown"][0]), float(total["slowdown"][0])
    if np.isnan(plain) or np.isnan(value) or rate(plain) == rate(value):
        return "", ""
    return " at equal clocks", f"at the clocks as they were {rate(plain)}"


def _cost(total: Table) -> str:
    cost, per_step = float(total["cost_ns"][0]), float(total["cost_per_step_ns"][0])
    scale = total_scale(total)
    said = f" That is {scale.show(round(cost))} {scale.unit} of compute time over all GPUs"
    if not np.isnan(per_step):
        said += f", {scale.show(round(per_step))} {scale.unit} per GPU and step"
    return said + "."


def _coverage(total: Table, basis: Table) -> str:
    paired, overlapped = int(total["num_paired"][0]), int(total["num_overlapped"][0])
    share = float(total["coverage_pct"][0])
    said = f"This rests on {percent(share)} % of the overlapped compute: {paired:,} of "
    said += f"{counted(overlapped, 'overlapped kernel')} have a twin that ran alone."
    overall = int(basis["overlapped_ns"].sum())
    reasons = [
        f"{why} ({percent(100 * int(basis[name].sum()) / overall)} %)"
        for name, why in _REASONS.items()
        if overall and basis[name].sum() >= _WORTH_SAYING * overall
    ]
    if reasons:
        said += f" Of the rest nothing is known: {', '.join(reasons)}."
    if share < LEAST_COVERAGE_PCT:
        said += " Record the job with communication serialised as well and give it as --alone."
    return said


def _clock(total: Table, basis: Table) -> Iterator[str]:
    how = ClockDivided(int(basis["clock"].max()))
    divided = int(np.count_nonzero(basis["clock"] == how))
    where = "" if divided == len(basis) else f" on {divided:,} of {len(basis):,} GPUs"
    plain = float(total["uncorrected_slowdown"][0])
    said = np.isnan(plain) or any(clock_words(total))
    without = "" if said else f": with them it is {rate(plain)} times as long"
    drift = percent(float(basis["drift_pct"][0]))
    if how is ClockDivided.BY_TELEMETRY:
        every = scale_for(int(basis["sample_interval_ns"][0]))
        gap = f"{every.show(int(basis['sample_interval_ns'][0]))} {every.unit}"
        yield (
            f"Clock changes are divided out{where}, as telemetry shows them (a sample in {gap}; "
            f"faster changes are in the figures){without}."
        )
    elif how is ClockDivided.BY_TWINS:
        yield (
            f"There is no telemetry. A slow change of {drift} % that kernels show which ran alone "
            f"is divided out (faster changes of the clock are in the figures){without}."
        )
    else:
        yield "There is no telemetry: the figures include changes of the clock."
    ratios = basis["alone_ratio"][basis.known("alone_ratio")]
    if len(ratios):
        yield (
            f"Kernels that ran alone in both recordings take {rate(float(np.median(ratios)))} "
            "times as long here as in the other: what differs from 1 is no contention, but is in "
            "the figures."
        )


def _balance(balance: Table, *, by_step: bool) -> str:
    own = balance.take((balance["step_row"] >= 0) == by_step)
    thing = "step" if by_step else "window"
    verdicts = np.bincount(own["verdict"], minlength=len(Verdict)).tolist()
    known = sum(verdicts) - verdicts[Verdict.UNKNOWN] - verdicts[Verdict.NOTHING_HIDDEN]
    if not known:
        return f"Whether overlap paid cannot be said: no {thing} has the times for it."
    gain = own["gain_ns"][own.known("gain_ns")]
    middle = round(float(np.median(gain)))
    scale = balance_scale(own)
    measured = bool(own["serial_measured"].any())
    basis = "measured against the recording without overlap" if measured else "derived"
    median = f"median gain {scale.show(middle)} {scale.unit}, {basis}"
    if verdicts[Verdict.LOSES] == known:
        return f"Overlap LOSES: every {thing} would be shorter without it ({median})."
    if verdicts[Verdict.WINS] == known:
        return f"Overlap wins: every {thing} would be longer without it ({median})."
    undecided = verdicts[Verdict.UNDECIDED]
    if undecided == known:
        return f"Whether overlap paid is undecided ({median}): {undecided_because(own)}."
    return (
        f"Overlap wins in {verdicts[Verdict.WINS]:,}, loses in {verdicts[Verdict.LOSES]:,} of "
        f"{counted(known, thing)} ({median})"
        + (f", the rest is undecided: {undecided_because(own)}" if undecided else "")
        + "."
    )


def _names(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low", f"{name}_high"
