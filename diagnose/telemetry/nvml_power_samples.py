"""Power that the driver sampled on its own, between the readings of this process.

``nvmlDeviceGetSamples`` hands out a ring of samples with the time of each, in
microseconds of the host's wall clock. It costs one call for many samples, so it is
finer than reading the sensor. Whether a driver's clock is the wall clock is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diagnose.telemetry.nvml_sensors import MAX_FAILURES, Failures
from diagnose.telemetry.source import TimedValues

EVERY_S = 0.2
"""The ring holds several seconds, so nothing is lost between two calls."""
MAX_CLOCK_ERROR_US = 10_000_000
_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


class PowerSamples:
    """The driver's ring of one GPU, from the moment of opening on."""

    def __init__(
        self, nvml: Any, handle: Any, failures: Failures, unix_ns: Callable[[], int]
    ) -> None:
        self._nvml, self._handle, self._errors, self._unix_ns = nvml, handle, failures, unix_ns
        self._newest_us = unix_ns() // 1000
        self._due_s = float("-inf")
        self._failed = 0
        self.notes: list[str] = []
        self.usable = self._clock_is_the_hosts()

    def read(self, now_s: float, *, everything: bool = False) -> list[TimedValues]:
        """The samples since the call before, by time; empty if it is not due yet."""
        if not self.usable or (now_s < self._due_s and not everything):
            return []
        self._due_s = now_s + EVERY_S
        samples = self._samples(self._newest_us)
        if samples is None:
            self._failed += 1
            if self._failed >= MAX_FAILURES:
                self.usable = False
                self.notes.append("power_sample_w: no longer answered, left out since")
            return []
        self._failed = 0
        latest_us = self._unix_ns() // 1000 + MAX_CLOCK_ERROR_US
        fresh = sorted(s for s in samples if self._newest_us < s[0] <= latest_us)
        if fresh:
            self._newest_us = fresh[-1][0]
        return [TimedValues(us * 1000, {"power_sample_w": mw / 1000}) for us, mw in fresh]

    def _clock_is_the_hosts(self) -> bool:
        samples = self._samples(0)
        if not samples:
            return False
        error_us = abs(max(samples)[0] - self._unix_ns() // 1000)
        return error_us <= MAX_CLOCK_ERROR_US

    def _samples(self, after_us: int) -> list[tuple[int, float]] | None:
        """(time in us, power in mW) of each sample; None if the driver failed."""
        kind = getattr(self._nvml, "NVML_TOTAL_POWER_SAMPLES", 0)
        try:
            value_type, samples = self._nvml.nvmlDeviceGetSamples(self._handle, kind, after_us)
        except self._errors as error:
            nothing_new = getattr(self._nvml, "NVML_ERROR_NOT_FOUND", None)
            return [] if getattr(error, "value", None) == nothing_new else None
        member = _MEMBERS.get(int(value_type))
        if member is None:
            return None
        return [(int(s.timeStamp), float(getattr(s.sampleValue, member))) for s in samples]
