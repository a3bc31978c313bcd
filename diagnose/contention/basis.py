"""``contention_basis``: how the figures were made, and of how much of the compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.contention._figures import Columns, gpu_columns, share_pct, table_of
from diagnose.contention._measured import Fate, Measured
from diagnose.contention._pairing import measured
from diagnose.contention._tables import CONTENTION_BASIS, ClockDivided, TwinsFrom
from diagnose.contention._twins import quantile_by
from diagnose.contention.slowdown import other_trace
from diagnose.trace import Table, Trace

_FATES = {
    "paired_ns": Fate.PAIRED,
    "touched_ns": Fate.ALONE,
    "no_twin_ns": Fate.NO_TWIN,
    "crowded_ns": Fate.CROWDED,
    "disagree_ns": Fate.TWINS_DISAGREE,
    "outlier_ns": Fate.OUTLIER,
    "other_company_ns": Fate.OTHER_COMPANY,
    "unclear_ns": Fate.UNCLEAR,
}


def contention_basis(trace: Trace, *, alone: Any = None) -> Table | Unavailable:
    """What became of the overlapped compute of each GPU. Returns a table of ``CONTENTION_BASIS``.

    Also where nothing could be paired: it says why. ``alone`` as for ``contention``.
    """
    other = other_trace(alone)
    known = measured(trace, other)
    seen, num = known.seen, len(trace.gpus)
    columns: Columns = gpu_columns(trace)
    columns["num_kernels"] = np.bincount(seen.gpu, minlength=num)
    beside = seen.beside.sum(1)
    for name, fate in (("overlapped_ns", None), *_FATES.items()):
        columns[name] = np.zeros(num, np.int64)
        chosen = slice(None) if fate is None else known.fate == fate
        np.add.at(columns[name], seen.gpu[chosen], beside[chosen])
    columns["coverage_pct"] = share_pct(columns["paired_ns"], columns["overlapped_ns"])
    columns |= _clock(known, num)
    columns["twins_from"] = np.full(
        num, TwinsFrom.THIS_RECORDING if other is None else TwinsFrom.OTHER_RECORDING
    )
    if other is not None:
        columns["alone_ratio"] = _alone_ratio(known, num)
    return table_of(CONTENTION_BASIS, columns, trace.strings)


def _clock(known: Measured, num: int) -> Columns:
    mhz, gpu = known.clocks.mhz, known.seen.gpu
    sampled = np.flatnonzero(np.isfinite(mhz))
    low = quantile_by(gpu[sampled], mhz[sampled], 0.0, num)
    high = quantile_by(gpu[sampled], mhz[sampled], 1.0, num)
    how = np.full(num, ClockDivided.BY_TWINS if known.twins.drift else ClockDivided.NOT)
    divided = np.bincount(gpu, known.runs.clock != 0, num) > 0
    how[divided] = ClockDivided.BY_TELEMETRY
    return {
        "clock": how,
        "clock_span_pct": 100 * (high / low - 1),
        "sample_interval_ns": np.full(num, known.clocks.interval_ns),
        "drift_pct": np.full(num, 100 * known.twins.drift),
    }


def _alone_ratio(known: Measured, num: int) -> Any:
    """Median of duration over what twins of the other recording say, where nothing was beside."""
    rows = np.flatnonzero(
        (known.fate == Fate.ALONE) & ~np.isnan(known.alone) & (known.overlapped == 0)
    )
    ratio = known.seen.duration[rows] / known.alone[rows]
    return quantile_by(known.seen.gpu[rows], ratio, 0.5, num)
