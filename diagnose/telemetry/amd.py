"""Sensors of AMD GPUs, through ``amdsmi`` (the extra ``amd``). Not run on hardware yet.

Written after the documentation of ROCm's AMD SMI 6 and tested against a stand-in for it.
What ``amdsmi`` calls "N/A", or answers with an error, is absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from diagnose.telemetry.source import (
    GpuIdentity,
    MigIdentity,
    TelemetryUnavailableError,
    TimedValues,
)

_MICRO = 1e-6
_Read = Callable[[Any, Any], Any]


class AmdSource:
    """All AMD GPUs of this machine. Implements ``source.Source``.

    Raises TelemetryUnavailableError, with the reason as a sentence.
    """

    kind = "amdsmi"

    def __init__(self, amdsmi: Any = None) -> None:
        self._smi = _binding() if amdsmi is None else amdsmi
        self._failures: tuple[type[Exception], ...] = (
            getattr(self._smi, "AmdSmiException", OSError),
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
        )
        try:
            self._smi.amdsmi_init()
            self._handles = list(self._smi.amdsmi_get_processor_handles())
        except self._failures as error:
            raise _unavailable(f"the AMD driver does not answer ({error})") from None
        if not self._handles:
            self._attempt("amdsmi_shut_down")
            raise _unavailable("the AMD driver finds no GPU")
        self._open = True

    @property
    def notes(self) -> list[str]:
        """That nobody has checked these readings on a real GPU."""
        return ["readings of AMD GPUs were never checked on hardware"]

    def gpus(self) -> list[GpuIdentity]:
        return [self._gpu(index, handle) for index, handle in enumerate(self._handles)]

    def mig_devices(self) -> list[MigIdentity]:
        return []

    def prepare(self, index: int) -> None:
        """Nothing to find out: AMD SMI answers "N/A" at little cost."""

    def sample(
        self,
        index: int,
        *,
        everything: bool = False,  # noqa: ARG002 - nothing here is known to be slow
    ) -> dict[str, float | None]:
        if not self._open or not 0 <= index < len(self._handles):
            return {}
        handle = self._handles[index]
        return {column: self._number(read, handle) for column, read in _READS.items()}

    def pending(self, index: int, *, everything: bool = False) -> list[TimedValues]:  # noqa: ARG002
        return []

    def describe(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self._handles):
            return {}
        gpu = self._gpu(index, self._handles[index])
        named = {
            "name": gpu.name,
            "uuid": gpu.uuid,
            "pci_bus_id": gpu.pci_bus_id,
            "memory_bytes": gpu.memory_bytes,
        }
        return {key: value for key, value in named.items() if value is not None}

    def processes(self, index: int) -> list[int]:
        if not self._open or not 0 <= index < len(self._handles):
            return []
        found = self._attempt("amdsmi_get_gpu_process_list", self._handles[index]) or []
        pids = [p.get("pid") for p in found if isinstance(p, dict)]
        return sorted(pid for pid in pids if isinstance(pid, int))

    def close(self) -> None:
        if self._open:
            self._open = False
            self._attempt("amdsmi_shut_down")

    def _gpu(self, index: int, handle: Any) -> GpuIdentity:
        asic = self._attempt("amdsmi_get_gpu_asic_info", handle) or {}
        memory = self._number(_memory_total, handle)
        return GpuIdentity(
            index,
            _text(self._attempt("amdsmi_get_gpu_device_uuid", handle)),
            _text(self._attempt("amdsmi_get_gpu_device_bdf", handle)),
            _text(asic.get("market_name")),
            None if memory is None else int(memory),
        )

    def _attempt(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._smi, function)(*arguments)
        except self._failures:
            return None

    def _number(self, read: _Read, handle: Any) -> float | None:
        try:
            return _number(read(self._smi, handle))
        except self._failures:
            return None


def _memory_total(smi: Any, handle: Any) -> Any:
    return smi.amdsmi_get_gpu_memory_total(handle, smi.AmdSmiMemoryType.VRAM)


def _energy_j(smi: Any, handle: Any) -> float | None:
    info = smi.amdsmi_get_energy_count(handle)
    ticks = _number(info.get("energy_accumulator", info.get("power")))
    micro_joules = _number(info.get("counter_resolution"))
    return None if ticks is None or micro_joules is None else ticks * micro_joules * _MICRO


def _power_limit_w(smi: Any, handle: Any) -> float | None:
    cap = _number(smi.amdsmi_get_power_cap_info(handle).get("power_cap"))
    return None if cap is None else cap * _MICRO


def _answer(function: str, key: str) -> _Read:
    """One entry of what a function answers."""
    return lambda smi, handle: getattr(smi, function)(handle).get(key)


def _clock(kind: str) -> _Read:
    return lambda smi, handle: smi.amdsmi_get_clock_info(
        handle, getattr(smi.AmdSmiClkType, kind)
    ).get("clk")


def _temperature(kind: str) -> _Read:
    return lambda smi, handle: smi.amdsmi_get_temp_metric(
        handle, getattr(smi.AmdSmiTemperatureType, kind), smi.AmdSmiTemperatureMetric.CURRENT
    )


# One by one: what a GPU lacks raises, and must not take its neighbour along.
_READS: dict[str, _Read] = {
    "power_instant_w": _answer("amdsmi_get_power_info", "current_socket_power"),
    "power_avg_w": _answer("amdsmi_get_power_info", "average_socket_power"),
    "power_limit_w": _power_limit_w,
    "energy_j": _energy_j,
    "sm_clock_mhz": _clock("GFX"),
    "mem_clock_mhz": _clock("MEM"),
    "temperature_c": _temperature("HOTSPOT"),
    "mem_temperature_c": _temperature("VRAM"),
    "gpu_util_pct": _answer("amdsmi_get_gpu_activity", "gfx_activity"),
    "mem_util_pct": _answer("amdsmi_get_gpu_activity", "umc_activity"),
    "mem_used_bytes": lambda smi, handle: smi.amdsmi_get_gpu_memory_usage(
        handle, smi.AmdSmiMemoryType.VRAM
    ),
    "ecc_volatile_corrected": _answer("amdsmi_get_gpu_total_ecc_count", "correctable_count"),
    "ecc_volatile_uncorrected": _answer("amdsmi_get_gpu_total_ecc_count", "uncorrectable_count"),
}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value and value != "N/A" else None


def _binding() -> Any:
    try:
        import amdsmi
    except Exception as error:  # noqa: BLE001 - it loads ROCm's library, and raises what it likes
        raise _unavailable(f"the package amdsmi cannot be loaded ({error})") from None
    return amdsmi


def _unavailable(why: str) -> TelemetryUnavailableError:
    return TelemetryUnavailableError(
        f"{why}; power, clocks and temperature are not recorded",
        hint="the trace is recorded all the same",
    )
