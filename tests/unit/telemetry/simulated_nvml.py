"""A stand-in for ``pynvml`` with GPUs whose sensors are known.

Constants, structures and errors are those of the real binding, so a name that it does
not have fails here as it would there. Functions are the simulation's own. Time stands
still until ``clock.pass_s``, so every reading can be worked out by hand.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

BEGIN_UNIX_NS = 1_796_000_000_000_000_000
_HANDLES = 0x10_000
_INSTANCES = 0x20_000
_SAMPLES = 0x30_000


class Clock:
    """The steady clock and the wall clock of the simulated machine."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds

    def steady_s(self) -> float:
        return self.now_s

    def unix_ns(self) -> int:
        return BEGIN_UNIX_NS + round((self.now_s - 100.0) * 1e9)


@dataclass
class SimulatedGpu:
    """One GPU. ``fields``: number of a field, or (number, scope) -> value; others are unsupported.

    ``lacks``: functions it does not support. ``gone_at_s``: from then on it is lost.
    """

    name: str
    uuid: str
    bus_id: str
    capability: tuple[int, int] = (9, 0)
    fields: dict[Any, float] = field(default_factory=dict)
    lacks: set[str] = field(default_factory=set)
    power_w: float = 400.0
    limit_w: float = 700.0
    limit_range_w: tuple[float, float] = (200.0, 700.0)
    mask: int = 0x4
    gpm: dict[int, float] | None = None
    driver_samples: list[tuple[int, int]] = field(default_factory=list)
    xids: list[int] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    mig_uuids: list[str | None] = field(default_factory=list)
    links: dict[int, tuple[str, int]] = field(default_factory=dict)
    gone_at_s: float = float("inf")
    no_handle: bool = False


class SimulatedNvml:
    """What ``NvmlSource(nvml=...)`` takes instead of the module."""

    def __init__(
        self, gpus: list[SimulatedGpu], clock: Clock | None = None, *, init_error: int | None = None
    ) -> None:
        self.gpus, self.clock = gpus, clock or Clock()
        self.init_error = init_error
        self.running = 0
        self.calls: list[str] = []
        self.samples_alive = 0
        self.event_sets_alive = 0
        self.as_root = True
        self.whole_ring = False  # a driver that hands out samples it has given before
        self._next_sample = _SAMPLES
        self._watched: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        """Constants, structures and errors of the real binding; never a function of it."""
        value = getattr(pynvml, name)
        if callable(value) and name.startswith("nvml"):
            raise AttributeError(f"the simulation has no {name}")
        return value

    # Finding GPUs

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init_error is not None:
            raise pynvml.NVMLError(self.init_error)
        self.running += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.running -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        if self.gpus[index].no_handle:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return _pointer(_HANDLES + index)

    def nvmlDeviceGetUUID(self, handle: Any) -> str | None:  # noqa: N802
        number = _address(handle)
        if number >= _INSTANCES:
            index, place = divmod(number - _INSTANCES, 16)
            return self.gpus[index].mig_uuids[place]
        return self._gpu(handle, "nvmlDeviceGetUUID").uuid

    def nvmlDeviceGetName(self, handle: Any) -> str:  # noqa: N802
        return self._gpu(handle, "nvmlDeviceGetName").name

    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:  # noqa: N802
        return SimpleNamespace(busId=self._gpu(handle, "nvmlDeviceGetPciInfo").bus_id.encode())

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]:  # noqa: N802
        return self._gpu(handle, "nvmlDeviceGetCudaComputeCapability").capability

    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:  # noqa: N802
        mode = int(bool(self._gpu(handle, "nvmlDeviceGetMigMode").mig_uuids))
        return [mode, mode]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:  # noqa: N802
        return len(self._gpu(handle, "nvmlDeviceGetMaxMigDeviceCount").mig_uuids)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, place: int) -> Any:  # noqa: N802
        gpu = self._gpu(handle, "nvmlDeviceGetMigDeviceHandleByIndex")
        if gpu.mig_uuids[place] is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return _pointer(_INSTANCES + 16 * self.gpus.index(gpu) + place)

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "570.86.15"

    def nvmlSystemGetNVMLVersion(self) -> str:  # noqa: N802
        return "12.570.86.15"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:  # noqa: N802
        gpu = self._gpu(handle, "nvmlDeviceGetComputeRunningProcesses")
        return [SimpleNamespace(pid=pid) for pid in gpu.pids]

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: Any) -> list[Any]:  # noqa: N802
        gpu = self._gpu(handle, "nvmlDeviceGetComputeRunningProcesses_v2")
        return [SimpleNamespace(pid=pid) for pid in gpu.pids]

    # Sensors

    def nvmlDeviceGetFieldValues(self, handle: Any, wanted: list[Any]) -> Any:  # noqa: N802
        gpu = self._gpu(handle, "nvmlDeviceGetFieldValues")
        values = (pynvml.c_nvmlFieldValue_t * len(wanted))()
        for value, (number, scope) in zip(values, wanted, strict=True):
            found = gpu.fields.get((number, scope), gpu.fields.get(number) if not scope else None)
            value.fieldId, value.scopeId = number, scope
            if found is None:
                value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
            elif isinstance(found, float):
                value.valueType, value.value.dVal = pynvml.NVML_VALUE_TYPE_DOUBLE, found
            else:
                value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
                value.value.ullVal = found
        return values

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:  # noqa: N802
        return round(self._gpu(handle, "nvmlDeviceGetPowerUsage").power_w * 1000)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> int:  # noqa: N802
        gpu = self._gpu(handle, "nvmlDeviceGetTotalEnergyConsumption")
        return round(gpu.power_w * self.clock.now_s * 1000)

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int) -> int:  # noqa: N802
        self._gpu(handle, "nvmlDeviceGetClockInfo")
        return {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}[kind]

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:  # noqa: N802
        self._gpu(handle, "nvmlDeviceGetTemperature")
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return 55

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:  # noqa: N802
        self._gpu(handle, "nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=97, memory=41)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:  # noqa: N802
        return self._gpu(handle, "nvmlDeviceGetCurrentClocksEventReasons").mask

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int:  # noqa: N802
        return self._gpu(handle, "nvmlDeviceGetCurrentClocksThrottleReasons").mask

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:  # noqa: N802
        self._gpu(handle, "nvmlDeviceGetMemoryInfo")
        return SimpleNamespace(total=80 << 30, used=20 << 30)

    def nvmlDeviceGetPcieThroughput(self, handle: Any, counter: int) -> int:  # noqa: N802
        self._gpu(handle, "nvmlDeviceGetPcieThroughput")
        self.clock.pass_s(0.02)
        return {pynvml.NVML_PCIE_UTIL_TX_BYTES: 2048, pynvml.NVML_PCIE_UTIL_RX_BYTES: 512}[counter]

    # Power limits

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any) -> int:  # noqa: N802
        return round(self._gpu(handle, "nvmlDeviceGetEnforcedPowerLimit").limit_w * 1000)

    def nvmlDeviceGetPowerManagementLimit(self, handle: Any) -> int:  # noqa: N802
        return round(self._gpu(handle, "nvmlDeviceGetPowerManagementLimit").limit_w * 1000)

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: Any) -> int:  # noqa: N802
        gpu = self._gpu(handle, "nvmlDeviceGetPowerManagementDefaultLimit")
        return round(gpu.limit_range_w[1] * 1000)

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: Any) -> list[int]:  # noqa: N802
        gpu = self._gpu(handle, "nvmlDeviceGetPowerManagementLimitConstraints")
        return [round(limit * 1000) for limit in gpu.limit_range_w]

    def nvmlDeviceSetPowerManagementLimit(self, handle: Any, milliwatt: int) -> None:  # noqa: N802
        gpu = self._gpu(handle, "nvmlDeviceSetPowerManagementLimit")
        if not self.as_root:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        if not gpu.limit_range_w[0] <= milliwatt / 1000 <= gpu.limit_range_w[1]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        gpu.limit_w = milliwatt / 1000

    # What the driver notes on its own

    def nvmlDeviceGetSamples(self, handle: Any, kind: int, after_us: int) -> Any:  # noqa: N802
        gpu = self._gpu(handle, "nvmlDeviceGetSamples")
        assert kind == pynvml.NVML_TOTAL_POWER_SAMPLES
        fresh = [(us, mw) for us, mw in gpu.driver_samples if us > after_us or self.whole_ring]
        if not fresh:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        samples = (pynvml.c_nvmlSample_t * len(fresh))()
        for sample, (us, mw) in zip(samples, fresh, strict=True):
            sample.timeStamp, sample.sampleValue.uiVal = us, mw
        return pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, samples[0 : len(fresh)]

    def nvmlEventSetCreate(self) -> Any:  # noqa: N802
        self.event_sets_alive += 1
        return "event set"

    def nvmlEventSetFree(self, event_set: Any) -> None:  # noqa: N802
        self.event_sets_alive -= 1

    def nvmlDeviceRegisterEvents(self, handle: Any, kinds: int, event_set: Any) -> None:  # noqa: N802
        gpu = self._gpu(handle, "nvmlDeviceRegisterEvents")
        assert kinds == pynvml.nvmlEventTypeXidCriticalError
        self._watched.add(self.gpus.index(gpu))

    def nvmlEventSetWait_v2(self, event_set: Any, timeout_ms: int) -> Any:  # noqa: N802
        assert timeout_ms == 0, "waiting for an event would stop the sampling"
        for index in sorted(self._watched):
            if self.gpus[index].xids:
                event = pynvml.c_nvmlEventData_t()
                event.device = _pointer(_HANDLES + index)
                event.eventType = pynvml.nvmlEventTypeXidCriticalError
                event.eventData = self.gpus[index].xids.pop(0)
                return event
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)

    # GPM

    def nvmlGpmQueryDeviceSupport(self, handle: Any) -> Any:  # noqa: N802
        gpu = self._gpu(handle, "nvmlGpmQueryDeviceSupport")
        return SimpleNamespace(isSupportedDevice=int(gpu.gpm is not None))

    def nvmlGpmSampleAlloc(self) -> Any:  # noqa: N802
        self.samples_alive += 1
        self._next_sample += 1
        return ctypes.cast(self._next_sample, pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, sample: Any) -> None:  # noqa: N802
        self.samples_alive -= 1

    def nvmlGpmSampleGet(self, handle: Any, sample: Any) -> Any:  # noqa: N802
        self._sampled = getattr(self, "_sampled", {})
        self._sampled[_address(sample)] = (self._gpu(handle, "nvmlGpmSampleGet"), self.clock.now_s)
        return sample

    def nvmlGpmMetricsGet(self, request: Any) -> Any:  # noqa: N802
        gpu, before_s = self._sampled[_address(request.sample1)]
        same, after_s = self._sampled[_address(request.sample2)]
        assert gpu is same
        if after_s - before_s < 0.0999:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        for place in range(request.numMetrics):
            metric = request.metrics[place]
            value = gpu.gpm.get(metric.metricId)
            metric.nvmlReturn = 0 if value is not None else pynvml.NVML_ERROR_NOT_SUPPORTED
            metric.value = value or 0.0
        return request

    # Topology

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Any) -> int:  # noqa: N802
        self._gpu(handle, "nvmlDeviceGetCurrPcieLinkGeneration")
        return 4

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any) -> int:  # noqa: N802
        self._gpu(handle, "nvmlDeviceGetCurrPcieLinkWidth")
        return 8

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any) -> int:  # noqa: N802
        self._gpu(handle, "nvmlDeviceGetMaxPcieLinkGeneration")
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any) -> int:  # noqa: N802
        self._gpu(handle, "nvmlDeviceGetMaxPcieLinkWidth")
        return 16

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int) -> int:  # noqa: N802
        return int(link in self._gpu(handle, "nvmlDeviceGetNvLinkState").links)

    def nvmlDeviceGetNvLinkVersion(self, handle: Any, link: int) -> int:  # noqa: N802
        self._gpu(handle, "nvmlDeviceGetNvLinkVersion")
        return 4

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Any, link: int) -> Any:  # noqa: N802
        gpu = self._gpu(handle, "nvmlDeviceGetNvLinkRemotePciInfo")
        return SimpleNamespace(busId=gpu.links[link][0].encode())

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: int) -> int:  # noqa: N802
        return self._gpu(handle, "nvmlDeviceGetNvLinkRemoteDeviceType").links[link][1]

    def _gpu(self, handle: Any, function: str) -> SimulatedGpu:
        assert self.running == 1, f"{function} was called without the driver"
        self.calls.append(function)
        gpu = self.gpus[_address(handle) - _HANDLES]
        if self.clock.now_s >= gpu.gone_at_s:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        if function in gpu.lacks:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return gpu


def _pointer(number: int) -> Any:
    return ctypes.cast(number, pynvml.c_nvmlDevice_t)


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def hopper(number: int = 0, **changes: Any) -> SimulatedGpu:
    """Everything there is: power now and averaged, GPM, links counted one by one.

    Fields 197 and 198 count bytes on PCIe; the oldest binding allowed has no names for them.
    """
    fields: dict[Any, float] = {
        pynvml.NVML_FI_DEV_POWER_AVERAGE: 401_250,
        pynvml.NVML_FI_DEV_POWER_INSTANT: 612_500,
        pynvml.NVML_FI_DEV_MEMORY_TEMP: 71,
        197: 5_000_000_001,
        198: 7_000_000_003,
        pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT: 2,
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0xFFFFFFFF): 3,
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, 0xFFFFFFFF): 5,
        (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC, 0): 10,
        (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC, 1): 7,
        (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, 0): 0,
        (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, 1): 0,
        pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL: 0,
        pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: 0,
        pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL: 12,
        pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL: 1,
        pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER: 4,
    }
    gpm = {
        pynvml.NVML_GPM_METRIC_SM_UTIL: 80.4874,
        pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: 26.4,
        pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 43.9,
        pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 35.6,
        pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: 966.0,
        pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: float("nan"),
    }
    gpu = SimulatedGpu(
        "NVIDIA H100 80GB HBM3",
        f"GPU-{number:08d}-aaaa-0000-0000-000000000000",
        f"00000000:{number + 0x1B:02X}:00.0",
        fields=fields,
        gpm=gpm,
        links={0: ("00000000:06:00.0", 2), 1: ("00000000:1C:00.0", 0)},
    )
    for name, value in changes.items():
        setattr(gpu, name, value)
    return gpu


def old_gpu(number: int = 0, capability: tuple[int, int] = (7, 0)) -> SimulatedGpu:
    """No field values, no instant power, no GPM, no events; rates of PCIe by a slow call."""
    return SimulatedGpu(
        "Tesla V100-SXM2-16GB",
        f"GPU-{number:08d}-bbbb-0000-0000-000000000000",
        f"00000000:{number + 0x5A:02X}:00.0",
        capability,
        lacks={
            "nvmlDeviceGetFieldValues",
            "nvmlGpmQueryDeviceSupport",
            "nvmlDeviceGetSamples",
            "nvmlDeviceRegisterEvents",
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetMigMode",
        },
        power_w=163.5,
        limit_w=300.0,
        limit_range_w=(150.0, 300.0),
    )


def mig_parent(number: int = 0) -> SimulatedGpu:
    """Split into two instances with an empty place between; utilisation is not known then."""
    gpu = hopper(number)
    gpu.mig_uuids = [
        "MIG-55555555-eeee-0000-0000-000000000005",
        None,
        "MIG-66666666-eeee-0000-0000-000000000006",
    ]
    gpu.gpm = None
    gpu.lacks = {"nvmlDeviceGetUtilizationRates"}
    return gpu
