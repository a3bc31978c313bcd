"""XID errors: numbers by which the driver reports that a GPU failed, as they happen."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from diagnose.telemetry.nvml_sensors import Failures
from diagnose.telemetry.source import TimedValues

EVERY_S = 0.5
_MOST_AT_ONCE = 64


class XidEvents:
    """All GPUs of the machine together: NVML has one queue for them.

    An error is stamped with the moment at which it was fetched: at most ``EVERY_S``
    and one reading after it happened.
    """

    def __init__(self, nvml: Any, failures: Failures, unix_ns: Callable[[], int]) -> None:
        self._nvml, self._errors, self._unix_ns = nvml, failures, unix_ns
        self._set: Any = None
        self._watched: dict[int, int] = {}
        self._waiting: dict[int, list[TimedValues]] = {}
        self._due_s = float("-inf")

    def watch(self, index: int, handle: Any) -> bool:
        """Begin to note the errors of one GPU. False: this GPU or driver does not tell."""
        try:
            if self._set is None:
                self._set = self._nvml.nvmlEventSetCreate()
            kind = self._nvml.nvmlEventTypeXidCriticalError
            self._nvml.nvmlDeviceRegisterEvents(handle, kind, self._set)
        except self._errors:
            return False
        self._watched[index] = _address(handle)
        return True

    def read(self, index: int, now_s: float, *, everything: bool = False) -> list[TimedValues]:
        """The errors of one GPU since the call before. Never waits for one."""
        if index not in self._watched:
            return []
        if now_s >= self._due_s or everything:
            self._due_s = now_s + EVERY_S
            self._fetch()
        return self._waiting.pop(index, [])

    def close(self) -> None:
        """Give the queue back to the driver."""
        if self._set is None:
            return
        with suppress(*self._errors):
            self._nvml.nvmlEventSetFree(self._set)
        self._set = None
        self._watched.clear()

    def _fetch(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
                if not event.eventType & self._nvml.nvmlEventTypeXidCriticalError:
                    continue
            except self._errors:
                return  # nothing more, which NVML calls a timeout
            row = TimedValues(self._unix_ns(), {"xid_error": int(event.eventData)})
            address = _address(event.device)
            for index, watched in self._watched.items():
                if watched == address:
                    self._waiting.setdefault(index, []).append(row)


def _address(handle: Any) -> int:
    """What tells handles apart. Asking NVML for the index would fail for a GPU that is lost."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value or 0
    except ctypes.ArgumentError:
        return id(handle)
