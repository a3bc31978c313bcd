"""Readings that no GPU can have are unknown: a file may hold any number."""

from __future__ import annotations

import numpy as np

from diagnose.trace import Table

RANGES = {
    "energy_j": (0.0, 1e12),
    "power_instant_w": (0.0, 1e5),
    "power_sample_w": (0.0, 1e5),
    "power_avg_w": (0.0, 1e5),
    "power_limit_w": (1.0, 1e5),
    "sm_clock_mhz": (1.0, 1e5),
    "temperature_c": (-100.0, 1e3),
    "clocks_event_reasons": (0.0, 2.0**53),
}


def plausible(samples: Table) -> Table:
    """The same rows, with what lies outside of ``RANGES`` unknown."""
    columns = dict(samples.columns)
    for name, (low, high) in RANGES.items():
        values = columns[name]
        columns[name] = np.where((values >= low) & (values <= high), values, np.nan)
    return Table(samples.schema, columns, samples.strings)
