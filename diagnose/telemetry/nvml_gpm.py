"""GPM: counters of Hopper and later, as rates between two samples of the driver.

Each reading covers the time since the one before. Nothing is switched on for it: the
streaming mode that some tools set changes the machine for everybody and stays untouched.
"""

from __future__ import annotations

import math
from typing import Any

from diagnose.telemetry.nvml_calls import Reading
from diagnose.telemetry.nvml_sensors import MAX_FAILURES, Failures

EVERY_S = 0.1
"""The driver asks for at least 100 ms between two samples."""

_METRICS = {
    "gpm_sm_util_pct": "SM_UTIL",
    "gpm_sm_occupancy_pct": "SM_OCCUPANCY",
    "gpm_tensor_util_pct": "ANY_TENSOR_UTIL",
    "gpm_dram_bw_util_pct": "DRAM_BW_UTIL",
    "gpm_nvlink_tx_mib_s": "NVLINK_TOTAL_TX_PER_SEC",
    "gpm_nvlink_rx_mib_s": "NVLINK_TOTAL_RX_PER_SEC",
    "gpm_pcie_tx_mib_s": "PCIE_TX_PER_SEC",
    "gpm_pcie_rx_mib_s": "PCIE_RX_PER_SEC",
}


class Gpm:
    """The counters of one GPU. ``open`` gives None where it has none."""

    def __init__(self, nvml: Any, handle: Any, failures: Failures) -> None:
        self._nvml, self._handle, self._errors = nvml, handle, failures
        names = {column: f"NVML_GPM_METRIC_{name}" for column, name in _METRICS.items()}
        self._columns = {c: getattr(nvml, n) for c, n in names.items() if hasattr(nvml, n)}
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(self._columns)
        for place, number in enumerate(self._columns.values()):
            self._request.metrics[place].metricId = number
        self._before = nvml.nvmlGpmSampleAlloc()
        self._now = nvml.nvmlGpmSampleAlloc()
        self._have_before = False
        self._due_s = float("-inf")
        self._failed = 0
        self.notes: list[str] = []

    @classmethod
    def open(cls, nvml: Any, handle: Any, failures: Failures) -> Gpm | None:
        """The counters of a GPU, or None if it, the driver or the binding has none."""
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                return None
            return cls(nvml, handle, failures)
        except failures:
            return None

    def read(self, now_s: float) -> Reading:
        """The rates since the reading before; empty if that is under 100 ms ago."""
        if now_s < self._due_s or self._failed >= MAX_FAILURES:
            return {}
        self._due_s = now_s + EVERY_S
        try:
            self._nvml.nvmlGpmSampleGet(self._handle, self._now)
            reading = self._between() if self._have_before else {}
        except self._errors:
            self._failed += 1
            self._have_before = False
            if self._failed >= MAX_FAILURES:
                self.notes.append("gpm_*: no longer answered, left out since")
            return {}
        self._failed = 0
        self._have_before = True
        self._before, self._now = self._now, self._before
        return reading

    def close(self) -> None:
        """Give the samples back to the driver."""
        for sample in (self._before, self._now):
            try:
                self._nvml.nvmlGpmSampleFree(sample)
            except self._errors:
                continue

    def _between(self) -> Reading:
        self._request.sample1, self._request.sample2 = self._before, self._now
        self._nvml.nvmlGpmMetricsGet(self._request)
        row: Reading = {}
        for place, column in enumerate(self._columns):
            metric = self._request.metrics[place]
            value = float(metric.value)
            row[column] = value if metric.nvmlReturn == 0 and math.isfinite(value) else None
        return row
