"""Sensors of an NVIDIA GPU that are a function of NVML each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

Reading = dict[str, float | None]

MILLI = 0.001
"""NVML counts in mW and mJ."""
_KIB_IN_MIB = 1 / 1024
_GA100 = (8, 0)


class Turn(Enum):
    """How often a sensor is asked."""

    EACH = "at every reading"
    SLOW = "once a second: it rarely changes"
    BLOCKING = "one at a time, seldom: the call itself measures for 20 ms"


@dataclass
class Sensor:
    """One call to the driver and the columns it fills."""

    columns: tuple[str, ...]
    read: Callable[[], Reading]
    turn: Turn = Turn.EACH
    unless: tuple[str, ...] = ()
    """Columns that say the same: with one of them this sensor is not needed."""
    failures: int = 0


def sensors(nvml: Any, handle: Any) -> Iterator[Sensor]:
    """Everything that may be asked; what this GPU, driver or binding lacks fails when read."""

    def one(column: str, call: Callable[[], float], turn: Turn = Turn.EACH) -> Sensor:
        return Sensor((column,), lambda: {column: call()}, turn)

    yield one("energy_j", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) * MILLI)
    yield one("sm_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
    yield one("mem_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))
    yield one(
        "temperature_c",
        lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
    )
    yield Sensor(("gpu_util_pct", "mem_util_pct"), lambda: _utilization(nvml, handle))
    yield one(
        "power_limit_w", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) * MILLI, Turn.SLOW
    )
    yield one("mem_used_bytes", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used, Turn.SLOW)


def alternatives(nvml: Any, handle: Any) -> Iterator[Sensor]:
    """Asked only for columns that nothing before has filled, in this order."""
    for name in ("ClocksEventReasons", "ClocksThrottleReasons"):  # the second until driver 535
        yield Sensor(("clocks_event_reasons",), _mask(nvml, handle, f"nvmlDeviceGetCurrent{name}"))
    yield Sensor(("power_avg_w", "power_instant_w"), lambda: _power(nvml, handle))
    for way, counter in (("tx", "TX"), ("rx", "RX")):
        column = f"pcie_{way}_mib_s"
        read = _pcie(nvml, handle, column, counter)
        yield Sensor((column,), read, Turn.BLOCKING, unless=(f"pcie_{way}_bytes",))


def _utilization(nvml: Any, handle: Any) -> Reading:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"gpu_util_pct": rates.gpu, "mem_util_pct": rates.memory}


def _mask(nvml: Any, handle: Any, function: str) -> Callable[[], Reading]:
    return lambda: {"clocks_event_reasons": int(getattr(nvml, function)(handle))}


def _power(nvml: Any, handle: Any) -> Reading:
    """What one function gives since ever: a mean over 1 s from Ampere on, but not on GA100."""
    capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    column = "power_avg_w" if capability > _GA100 else "power_instant_w"
    return {column: nvml.nvmlDeviceGetPowerUsage(handle) * MILLI}


def _pcie(nvml: Any, handle: Any, column: str, direction: str) -> Callable[[], Reading]:
    def read() -> Reading:
        counter = getattr(nvml, f"NVML_PCIE_UTIL_{direction}_BYTES")
        return {column: nvml.nvmlDeviceGetPcieThroughput(handle, counter) * _KIB_IN_MIB}

    return read
