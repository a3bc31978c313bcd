"""Sensors of NVIDIA GPUs, through NVML (``pynvml`` of the distribution ``nvidia-ml-py``).

The only module that loads NVML, and it only reads: no mode, limit or counter of a GPU is
changed. NVML needs no CUDA context and uses no memory of the GPU.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diagnose.telemetry.nvml_gpm import Gpm
from diagnose.telemetry.nvml_identity import SYSFS_PCI, Identities, reason
from diagnose.telemetry.nvml_power_samples import PowerSamples
from diagnose.telemetry.nvml_sensors import Failures, Sensors
from diagnose.telemetry.nvml_xid import XidEvents
from diagnose.telemetry.source import (
    GpuIdentity,
    MigIdentity,
    TelemetryUnavailableError,
    TimedValues,
)

BLOCKING_EVERY_S = 0.2
"""Sensors that take 20 ms take turns over all GPUs: a tenth of the time at most."""
_CLOSE_PATIENCE_S = 2.0


class NvmlSource:
    """All NVIDIA GPUs of this machine. Implements ``source.Source``.

    Raises TelemetryUnavailableError, with the reason as a sentence, where there is no
    driver or no GPU. A GPU is probed when it is first read.
    """

    kind = "nvml"

    def __init__(
        self,
        nvml: Any = None,
        *,
        steady_s: Callable[[], float] = time.monotonic,
        unix_ns: Callable[[], int] = time.time_ns,
        sysfs_pci: Path = SYSFS_PCI,
    ) -> None:
        self._nvml = _binding() if nvml is None else nvml
        self._failures: Failures = (self._nvml.NVMLError, AttributeError, TypeError, ValueError)
        self._steady_s, self._unix_ns = steady_s, unix_ns
        self._own_notes: list[str] = []
        # Held during each call into the driver, so that close() never pulls it away from one.
        self._busy = threading.Lock()
        self._open = True
        try:
            self._nvml.nvmlInit()
        except self._failures as error:
            raise _unavailable(reason(self._nvml, error)) from None
        self._identities = Identities(self._nvml, self._failures, sysfs_pci)
        count = self._identities.ask("nvmlDeviceGetCount")
        if not count:
            self._nvml.nvmlShutdown()
            raise _unavailable("the NVIDIA driver finds no GPU")
        self._handles = {index: self._handle(index) for index in range(int(count))}
        self._gpus = [self._identities.gpu(i, handle) for i, handle in self._handles.items()]
        self._readers: dict[int, _GpuReader] = {}
        self._xid = XidEvents(self._nvml, self._failures, unix_ns)
        self._blocking_due_s = float("-inf")

    @property
    def notes(self) -> list[str]:
        """What could not be read, in sentences."""
        return [
            *self._own_notes,
            *(f"GPU {i}: {note}" for i, gpu in self._readers.items() for note in gpu.notes),
        ]

    def gpus(self) -> list[GpuIdentity]:
        return list(self._gpus)

    def mig_devices(self) -> list[MigIdentity]:
        with self._busy:
            return [
                instance
                for index, handle in self._handles.items()
                if handle is not None and self._open
                for instance in self._identities.mig_devices(index, handle)
            ]

    def prepare(self, index: int) -> None:
        with self._busy:
            gpu = self._reader(index)
            if gpu is not None and gpu.gpm is not None:
                gpu.gpm.read(self._steady_s())  # the first rates then come 100 ms later

    def columns(self, index: int) -> frozenset[str]:
        """What this GPU can be asked at each reading; GPM and rows of their own come on top."""
        with self._busy:
            gpu = self._reader(index)
            return frozenset() if gpu is None else gpu.sensors.columns

    def sample(self, index: int, *, everything: bool = False) -> dict[str, float | None]:
        with self._busy:
            gpu = self._reader(index)
            if gpu is None:
                return {}
            now_s = self._steady_s()
            row = gpu.sensors.read(now_s, everything=everything)
            if gpu.gpm is not None:
                row.update(gpu.gpm.read(now_s))
            if gpu.sensors.blocks and (now_s >= self._blocking_due_s or everything):
                self._blocking_due_s = now_s + BLOCKING_EVERY_S
                row.update(gpu.sensors.read_one_blocking())
            return row

    def pending(self, index: int, *, everything: bool = False) -> list[TimedValues]:
        with self._busy:
            gpu = self._reader(index)
            if gpu is None:
                return []
            now_s = self._steady_s()
            rows = gpu.power_samples.read(now_s, everything=everything)
            rows += self._xid.read(index, now_s, everything=everything)
            return sorted(rows, key=lambda row: row.unix_ns)

    def describe(self, index: int) -> dict[str, Any]:
        with self._busy:
            handle = self._handles.get(index) if self._open else None
            if handle is None:
                return {}
            named = {gpu.pci_bus_id.lower(): gpu.index for gpu in self._gpus if gpu.pci_bus_id}
            return self._identities.describe(self._gpus[index], handle, named)

    def processes(self, index: int) -> list[int]:
        with self._busy:
            handle = self._handles.get(index) if self._open else None
            return [] if handle is None else self._identities.processes(handle)

    def close(self) -> None:
        if not self._busy.acquire(timeout=_CLOSE_PATIENCE_S):
            return  # a call hangs in the driver; shutting it down under that call would too
        try:
            if not self._open:
                return
            self._open = False
            for gpu in self._readers.values():
                if gpu.gpm is not None:
                    gpu.gpm.close()
            self._xid.close()
            self._identities.ask("nvmlShutdown")
        finally:
            self._busy.release()

    def _handle(self, index: int) -> Any:
        handle = self._identities.ask("nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            self._own_notes.append(f"GPU {index}: does not answer, so nothing of it is known")
        return handle

    def _reader(self, index: int) -> _GpuReader | None:
        handle = self._handles.get(index) if self._open else None
        if handle is None:
            return None
        if index not in self._readers:
            gpm = Gpm.open(self._nvml, handle, self._failures)
            self._readers[index] = _GpuReader(
                Sensors(self._nvml, handle, self._failures, pcie_known=gpm is not None),
                gpm,
                PowerSamples(self._nvml, handle, self._failures, self._unix_ns),
            )
            self._xid.watch(index, handle)
        return self._readers[index]


class _GpuReader:
    """What is kept for a GPU that is read."""

    def __init__(self, sensors: Sensors, gpm: Gpm | None, power_samples: PowerSamples) -> None:
        self.sensors, self.gpm, self.power_samples = sensors, gpm, power_samples

    @property
    def notes(self) -> list[str]:
        gpm = [] if self.gpm is None else self.gpm.notes
        return [*self.sensors.notes, *gpm, *self.power_samples.notes]


def _binding() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise _unavailable(f"the package nvidia-ml-py cannot be loaded ({error})") from None
    return pynvml


def _unavailable(why: str) -> TelemetryUnavailableError:
    return TelemetryUnavailableError(
        f"{why}; power, clocks and temperature are not recorded",
        hint="the trace is recorded all the same",
    )
