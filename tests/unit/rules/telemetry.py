"""Traces with telemetry of given columns, for tests of rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.schema import SAMPLES
from diagnose.trace import Table, Trace


def with_samples(trace: Trace, source: int = 0, **columns: list[float]) -> Trace:
    """The trace, with samples a second apart that hold these columns and nothing else."""
    number = len(next(iter(columns.values())))
    filled = {c.name: np.full(number, np.nan) for c in SAMPLES.columns if c.dtype[0] == "f"}
    filled |= {name: np.array(values, np.float64) for name, values in columns.items()}
    filled["source"] = np.full(number, source, np.int32)
    filled["unix_ns"] = (trace.sources[0].base_ns or 0) + np.arange(number) * 10**9
    return replace(trace, samples=Table(SAMPLES, filled, trace.strings))
