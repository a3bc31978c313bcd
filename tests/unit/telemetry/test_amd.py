"""AMD SMI through a stand-in written after its documentation: no such GPU was ever at hand."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace

import pytest

from diagnose.telemetry import TelemetryUnavailableError, open_source


class AmdSmiException(Exception):  # noqa: N818 - its name in amdsmi
    pass


class SimulatedAmdSmi:
    AmdSmiException = AmdSmiException
    AmdSmiClkType = Enum("AmdSmiClkType", ["GFX", "MEM"])
    AmdSmiTemperatureType = Enum("AmdSmiTemperatureType", ["HOTSPOT", "VRAM"])
    AmdSmiTemperatureMetric = Enum("AmdSmiTemperatureMetric", ["CURRENT"])
    AmdSmiMemoryType = Enum("AmdSmiMemoryType", ["VRAM"])

    def __init__(self, handles=("first", "second")):
        self.handles, self.running = list(handles), 0

    def amdsmi_init(self):
        self.running += 1

    def amdsmi_shut_down(self):
        self.running -= 1

    def amdsmi_get_processor_handles(self):
        return self.handles

    def amdsmi_get_gpu_device_uuid(self, handle):
        return f"75ff74a1-0000-1000-80{self.handles.index(handle)}d-000000000000"

    def amdsmi_get_gpu_device_bdf(self, handle):
        return "0000:0c:00.0"

    def amdsmi_get_gpu_asic_info(self, handle):
        return {"market_name": "AMD Instinct MI300X", "vendor_id": 4098}

    def amdsmi_get_gpu_memory_total(self, handle, kind):
        return 192 << 30

    def amdsmi_get_gpu_memory_usage(self, handle, kind):
        return 5 << 30

    def amdsmi_get_power_info(self, handle):
        return {"current_socket_power": 512, "average_socket_power": "N/A"}

    def amdsmi_get_power_cap_info(self, handle):
        return {"power_cap": 750_000_000}

    def amdsmi_get_energy_count(self, handle):
        return {"energy_accumulator": 2_000_000, "counter_resolution": 15.3}

    def amdsmi_get_clock_info(self, handle, kind):
        return {"clk": 2100 if kind is self.AmdSmiClkType.GFX else 1300}

    def amdsmi_get_temp_metric(self, handle, kind, metric):
        if kind is self.AmdSmiTemperatureType.VRAM:
            raise AmdSmiException("not supported")
        return 61

    def amdsmi_get_gpu_activity(self, handle):
        return {"gfx_activity": 98, "umc_activity": "N/A"}

    def amdsmi_get_gpu_total_ecc_count(self, handle):
        return {"correctable_count": 3, "uncorrectable_count": 0}

    def amdsmi_get_gpu_process_list(self, handle):
        return [{"pid": 41}, {"pid": 40}, "damaged"]


def test_a_reading():
    source = open_source("amdsmi", amdsmi=SimulatedAmdSmi())
    row = source.sample(0)
    assert {key: value for key, value in row.items() if value is not None} == {
        "power_instant_w": 512,
        "power_limit_w": pytest.approx(750.0),
        "energy_j": pytest.approx(30.6),  # 2,000,000 ticks of 15.3 uJ
        "sm_clock_mhz": 2100,
        "mem_clock_mhz": 1300,
        "temperature_c": 61,
        "gpu_util_pct": 98,
        "mem_used_bytes": 5 << 30,
        "ecc_volatile_corrected": 3,
        "ecc_volatile_uncorrected": 0,
    }
    assert source.sample(7) == {}
    assert "never checked on hardware" in source.notes[0]


def test_identity_and_processes():
    source = open_source("amdsmi", amdsmi=SimulatedAmdSmi())
    assert [gpu.uuid for gpu in source.gpus()] == [
        "75ff74a1-0000-1000-800d-000000000000",
        "75ff74a1-0000-1000-801d-000000000000",
    ]
    assert source.describe(0) == {
        "name": "AMD Instinct MI300X",
        "uuid": "75ff74a1-0000-1000-800d-000000000000",
        "pci_bus_id": "0000:0c:00.0",
        "memory_bytes": 192 << 30,
    }
    assert source.processes(0) == [40, 41]


def test_closing():
    smi = SimulatedAmdSmi()
    source = open_source("amdsmi", amdsmi=smi)
    source.close()
    source.close()
    assert smi.running == 0
    assert source.sample(0) == {}
    assert source.processes(0) == []


def test_no_gpu_and_no_driver():
    smi = SimulatedAmdSmi([])
    with pytest.raises(TelemetryUnavailableError, match="finds no GPU"):
        open_source("amdsmi", amdsmi=smi)
    assert smi.running == 0

    def failing():
        raise AmdSmiException("no driver")

    broken = SimpleNamespace(AmdSmiException=AmdSmiException, amdsmi_init=failing)
    with pytest.raises(TelemetryUnavailableError, match="does not answer \\(no driver\\)"):
        open_source("amdsmi", amdsmi=broken)
