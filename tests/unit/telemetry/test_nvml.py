"""What is read of GPUs that have everything, little, or stop answering."""

from __future__ import annotations

import sys

import pynvml
import pytest

from diagnose import telemetry
from diagnose.schema import SAMPLES
from diagnose.telemetry.nvml import NvmlSource
from diagnose.telemetry.nvml_fields import FIELD_NUMBERS
from tests.unit.telemetry.simulated_nvml import (
    BEGIN_UNIX_NS,
    Clock,
    SimulatedNvml,
    hopper,
    mig_parent,
    old_gpu,
)


def opened(*gpus, **options):
    nvml = SimulatedNvml(list(gpus))
    clock = nvml.clock
    source = NvmlSource(nvml, steady_s=clock.steady_s, unix_ns=clock.unix_ns, **options)
    return source, nvml, clock


def test_columns_are_those_of_the_table():
    assert tuple(c.name for c in SAMPLES.columns)[2:] == telemetry.COLUMNS
    assert telemetry.COLUMNS[:3] == ("power_avg_w", "power_instant_w", "energy_j")


def test_field_numbers_are_those_of_the_binding():
    """As far as its version knows them: the oldest allowed lacks three of the names."""
    known = {name: getattr(pynvml, f"NVML_FI_DEV_{name}", None) for name in FIELD_NUMBERS}
    later = {name for name, number in known.items() if number is None}
    assert later <= {
        "PCIE_COUNT_TX_BYTES",
        "PCIE_COUNT_RX_BYTES",
        "NVLINK_COUNT_LINK_RECOVERY_EVENTS",
    }
    assert {n: v for n, v in known.items() if n not in later} == {
        n: v for n, v in FIELD_NUMBERS.items() if n not in later
    }


def test_a_gpu_that_has_everything():
    source, _, _ = opened(hopper())
    assert source.sample(0, everything=True) == {
        "power_avg_w": 401.25,
        "power_instant_w": 612.5,
        "energy_j": 40000.0,  # 400 W for 100 s
        "sm_clock_mhz": 1980,
        "mem_clock_mhz": 3201,
        "temperature_c": 55,
        "gpu_util_pct": 97,
        "mem_util_pct": 41,
        "clocks_event_reasons": 4,
        "power_limit_w": 700.0,
        "mem_temperature_c": 71,
        "mem_used_bytes": 20 << 30,
        "pcie_tx_bytes": 5_000_000_001,
        "pcie_rx_bytes": 7_000_000_003,
        "nvlink_tx_bytes": 3 * 1024,
        "nvlink_rx_bytes": 5 * 1024,
        "nvlink_crc_errors": 17,  # 10 on link 0, 7 on link 1
        "nvlink_replay_errors": 0,  # measured, and none
        "pcie_replay_errors": 4,
        "ecc_volatile_corrected": 0,
        "ecc_volatile_uncorrected": 0,
        "ecc_aggregate_corrected": 12,
        "ecc_aggregate_uncorrected": 1,
    }


def test_what_an_old_gpu_lacks_is_absent_not_zero():
    source, nvml, _ = opened(old_gpu())
    source.prepare(0)
    row = source.sample(0, everything=True)
    assert row.pop("pcie_tx_mib_s", None) == 2.0 or row.pop("pcie_rx_mib_s") == 0.5
    assert row == {
        "power_instant_w": 163.5,  # before Ampere the sensor is read, not averaged
        "energy_j": pytest.approx(163.5 * nvml.clock.now_s, abs=10),
        "sm_clock_mhz": 1980,
        "mem_clock_mhz": 3201,
        "temperature_c": 55,
        "gpu_util_pct": 97,
        "mem_util_pct": 41,
        "clocks_event_reasons": 4,  # by the name it had before driver 535
        "power_limit_w": 300.0,
        "mem_used_bytes": 20 << 30,
    }
    assert source.notes == []  # lacking is no failure


@pytest.mark.parametrize(
    ("capability", "column"),
    [((7, 0), "power_instant_w"), ((8, 0), "power_instant_w"), ((8, 6), "power_avg_w")],
)
def test_one_power_function_means_a_mean_only_from_ampere_on(capability, column):
    source, _, _ = opened(old_gpu(capability=capability))
    row = source.sample(0)
    assert row[column] == 163.5
    assert len({"power_avg_w", "power_instant_w"} & row.keys()) == 1


def test_lacking_sensors_are_asked_once():
    source, nvml, _ = opened(old_gpu())
    source.prepare(0)
    nvml.calls.clear()
    source.sample(0)
    assert not set(nvml.calls) & old_gpu().lacks


def test_a_zero_power_or_temperature_is_no_sensor():
    gpu = hopper()
    gpu.fields[pynvml.NVML_FI_DEV_MEMORY_TEMP] = 0
    gpu.fields[pynvml.NVML_FI_DEV_POWER_INSTANT] = 0
    row = opened(gpu)[0].sample(0)
    assert "mem_temperature_c" not in row
    assert "power_instant_w" not in row
    assert row["power_avg_w"] == 401.25


def test_slow_sensors_once_a_second_and_when_everything_is_asked():
    source, _, clock = opened(hopper())
    assert "ecc_aggregate_corrected" in source.sample(0)
    clock.pass_s(0.5)
    quick = source.sample(0)
    assert "power_instant_w" in quick
    assert not {"ecc_aggregate_corrected", "power_limit_w", "mem_used_bytes"} & quick.keys()
    assert "power_limit_w" in source.sample(0, everything=True)
    clock.pass_s(1.01)
    assert "ecc_aggregate_corrected" in source.sample(0)


def test_gpm_gives_rates_between_two_samples():
    source, _, clock = opened(hopper())
    source.prepare(0)
    clock.pass_s(0.05)
    assert "gpm_sm_util_pct" not in source.sample(0)  # under 100 ms
    clock.pass_s(0.06)
    row = source.sample(0)
    assert {key: value for key, value in row.items() if key.startswith("gpm")} == {
        "gpm_sm_util_pct": 80.4874,
        "gpm_sm_occupancy_pct": 26.4,
        "gpm_tensor_util_pct": 43.9,
        "gpm_dram_bw_util_pct": 35.6,
        "gpm_nvlink_tx_mib_s": None,  # not supported
        "gpm_nvlink_rx_mib_s": None,
        "gpm_pcie_tx_mib_s": 966.0,
        "gpm_pcie_rx_mib_s": None,  # not a number
    }
    clock.pass_s(0.02)
    assert "gpm_sm_util_pct" not in source.sample(0)


def test_gpm_that_stops_is_left_out_with_a_note():
    gpu = hopper()
    source, _, clock = opened(gpu)
    source.prepare(0)
    gpu.lacks.add("nvmlGpmSampleGet")
    for _ in range(4):
        clock.pass_s(0.2)
        assert not [key for key in source.sample(0) if key.startswith("gpm")]
    assert source.notes == ["GPU 0: gpm_*: no longer answered, left out since"]


def test_a_sensor_that_fails_twice_is_asked_again_and_thrice_is_dropped():
    gpu = hopper()
    source, nvml, _ = opened(gpu)
    source.prepare(0)
    for _ in range(2):
        gpu.lacks.add("nvmlDeviceGetUtilizationRates")
        for _ in range(2):
            assert "gpu_util_pct" not in source.sample(0)
        gpu.lacks.clear()
        assert source.sample(0)["gpu_util_pct"] == 97
    assert source.notes == []
    gpu.lacks.add("nvmlDeviceGetUtilizationRates")
    for _ in range(3):
        source.sample(0)
    assert source.notes == [
        "GPU 0: no longer answered and left out since: gpu_util_pct, mem_util_pct"
    ]
    nvml.calls.clear()
    assert source.sample(0)["sm_clock_mhz"] == 1980
    assert "nvmlDeviceGetUtilizationRates" not in nvml.calls


def test_a_gpu_that_is_lost_gives_nothing_and_one_note():
    source, _, clock = opened(hopper(gone_at_s=101.0), hopper(1))
    assert source.sample(0)["sm_clock_mhz"] == 1980
    clock.pass_s(2)
    for _ in range(4):
        assert not source.sample(0, everything=True)
        clock.pass_s(0.2)
    assert source.pending(0, everything=True) == []
    assert "GPU 0: nothing of it is answered any more" in source.notes
    assert source.sample(1)["sm_clock_mhz"] == 1980


def test_a_gpu_without_a_handle_is_listed_without_a_uuid():
    source, _, _ = opened(hopper(no_handle=True), hopper(1))
    assert [gpu.uuid for gpu in source.gpus()] == [None, hopper(1).uuid]
    assert source.sample(0) == {}
    assert source.describe(0) == {}
    assert source.notes == ["GPU 0: does not answer, so nothing of it is known"]


def test_slow_pcie_readings_take_turns():
    source, nvml, clock = opened(old_gpu(0), old_gpu(1))
    for index in (0, 1):
        source.prepare(index)
    nvml.calls.clear()
    seen = []
    for _ in range(20):  # 20 readings of both GPUs, 20 ms apart: 0.4 s and what the calls take
        for index in (0, 1):
            seen += [(index, k) for k in source.sample(index) if k.startswith("pcie")]
        clock.pass_s(0.02)
    assert nvml.calls.count("nvmlDeviceGetPcieThroughput") <= 3
    assert seen


@pytest.mark.parametrize("whole_ring", [False, True])
def test_driver_samples_have_the_drivers_time(whole_ring):
    gpu = hopper()
    now_us = BEGIN_UNIX_NS // 1000
    gpu.driver_samples = [(now_us - 20_000, 399_000)]
    source, nvml, clock = opened(gpu)
    nvml.whole_ring = whole_ring
    source.prepare(0)
    clock.pass_s(1)
    gpu.driver_samples += [(now_us + 40_000, 512_000), (now_us + 20_000, 401_500)]
    rows = source.pending(0)
    assert rows == [
        ((now_us + 20_000) * 1000, {"power_sample_w": 401.5}),
        ((now_us + 40_000) * 1000, {"power_sample_w": 512.0}),
    ]
    clock.pass_s(1)
    assert source.pending(0) == []  # none twice, none from before


@pytest.mark.parametrize("error_s", [-11, 11])
def test_driver_samples_on_another_clock_are_not_used(error_s):
    gpu = hopper()
    gpu.driver_samples = [(BEGIN_UNIX_NS // 1000 + error_s * 10**6, 399_000)]
    source, _, clock = opened(gpu)
    source.prepare(0)
    clock.pass_s(1)
    gpu.driver_samples.append((BEGIN_UNIX_NS // 1000 + error_s * 10**6 + 500_000, 400_000))
    assert source.pending(0) == []


def test_a_ring_that_stops_is_left_out_with_a_note():
    gpu = hopper()
    gpu.driver_samples = [(BEGIN_UNIX_NS // 1000 - 20_000, 399_000)]
    source, _, clock = opened(gpu)
    source.prepare(0)
    gpu.lacks.add("nvmlDeviceGetSamples")
    for _ in range(3):
        clock.pass_s(0.3)
        assert source.pending(0) == []
    assert source.notes == ["GPU 0: power_sample_w: no longer answered, left out since"]


def test_xid_errors_are_rows_of_their_gpu():
    source, nvml, clock = opened(hopper(), hopper(1))
    for index in (0, 1):
        source.prepare(index)
    assert source.pending(0) == []
    nvml.gpus[1].xids = [79, 31]
    clock.pass_s(0.6)
    assert source.pending(0) == []
    at_ns = BEGIN_UNIX_NS + 600_000_000
    assert source.pending(1) == [(at_ns, {"xid_error": 79}), (at_ns, {"xid_error": 31})]
    assert source.pending(1) == []


def test_mig_parent():
    source, _, _ = opened(hopper(), mig_parent(1))
    assert [gpu.mig_enabled for gpu in source.gpus()] == [False, True]
    assert source.mig_devices() == [
        telemetry.MigIdentity("MIG-55555555-eeee-0000-0000-000000000005", 1),
        telemetry.MigIdentity("MIG-66666666-eeee-0000-0000-000000000006", 1),
    ]
    row = source.sample(1)
    assert "gpu_util_pct" not in row
    assert row["power_avg_w"] == 401.25


def test_describe(tmp_path):
    node = tmp_path / "0000:1b:00.0" / "numa_node"
    node.parent.mkdir()
    node.write_text("1\n")
    source, _, _ = opened(hopper(), hopper(1), sysfs_pci=tmp_path)
    assert source.describe(0) == {
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-00000000-aaaa-0000-0000-000000000000",
        "pci_bus_id": "00000000:1B:00.0",
        "memory_bytes": 80 << 30,
        "mig_enabled": False,
        "driver": "570.86.15",
        "nvml": "12.570.86.15",
        "power_limit": {"enforced_w": 700.0, "default_w": 700.0, "min_w": 200.0, "max_w": 700.0},
        "pcie": {"generation": 4, "width": 8, "max_generation": 5, "max_width": 16},
        "numa_node": 1,
        "nvlinks": [
            {"link": 0, "version": 4, "peer": "switch", "peer_pci_bus_id": "00000000:06:00.0"},
            {
                "link": 1,
                "version": 4,
                "peer": "GPU",
                "peer_pci_bus_id": "00000000:1C:00.0",
                "peer_gpu": 1,
            },
        ],
    }
    assert "numa_node" not in source.describe(1)


def test_processes_and_the_gpu_of_a_process():
    shared = hopper(1, pids=[11, 12])
    source, nvml, _ = opened(hopper(0, pids=[10, 11]), shared)
    assert source.processes(0) == [10, 11]
    assert telemetry.gpus_of_pid(source, 11) == [0, 1]
    assert telemetry.gpu_of_pid(source, 11) is None
    assert telemetry.gpu_of_pid(source, 12) == 1
    assert telemetry.gpu_of_pid(source, 99) is None
    nvml.gpus[1].lacks.add("nvmlDeviceGetComputeRunningProcesses")  # an old driver
    assert source.processes(1) == [11, 12]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver is installed here"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "not loaded"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "may not talk"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "waits for a reboot"),
        (pynvml.NVML_ERROR_UNKNOWN, "does not answer (Unknown Error)"),
    ],
)
def test_no_driver_is_one_sentence(code, words):
    with pytest.raises(telemetry.TelemetryUnavailableError) as caught:
        NvmlSource(SimulatedNvml([hopper()], init_error=code))
    assert words in caught.value.message
    assert caught.value.message.endswith("power, clocks and temperature are not recorded")
    assert caught.value.hint


def test_no_gpu_lets_go_of_the_driver():
    nvml = SimulatedNvml([])
    with pytest.raises(telemetry.TelemetryUnavailableError, match="finds no GPU"):
        NvmlSource(nvml)
    assert nvml.running == 0


def test_close_gives_everything_back_and_nothing_is_read_afterwards():
    source, nvml, _ = opened(hopper(), hopper(1))
    for index in (0, 1):
        source.sample(index)
    assert (nvml.samples_alive, nvml.event_sets_alive) == (4, 1)
    source.close()
    source.close()
    assert (nvml.running, nvml.samples_alive, nvml.event_sets_alive) == (0, 0, 0)
    assert source.sample(0) == {}
    assert source.pending(0) == []
    assert source.processes(0) == []
    assert source.mig_devices() == []
    assert source.describe(0) == {}


def test_an_index_that_does_not_exist():
    source, _, _ = opened(hopper())
    assert source.sample(1) == source.sample(-1) == {}
    assert source.pending(5) == []
    assert source.describe(5) == {}


def test_nothing_of_the_machine_is_changed():
    source, nvml, clock = opened(hopper(), old_gpu(1), mig_parent(2))
    for index in range(3):
        source.prepare(index)
        clock.pass_s(1)
        source.sample(index, everything=True)
        source.describe(index)
    assert not [call for call in nvml.calls if "Set" in call.replace("EventSet", "")]


def test_where_no_kind_works_it_is_the_reason_of_nvml(monkeypatch):
    def refusing():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", refusing)
    monkeypatch.setitem(sys.modules, "amdsmi", None)  # as if it were not installed
    with pytest.raises(telemetry.TelemetryUnavailableError, match="installed, but not loaded"):
        telemetry.open_source()
    with pytest.raises(telemetry.TelemetryUnavailableError, match="amdsmi cannot be loaded"):
        telemetry.open_source("amdsmi")


def test_unknown_kind():
    with pytest.raises(ValueError, match="no kind"):
        telemetry.open_source("rocm")


def test_clock_of_the_simulation():
    clock = Clock()
    clock.pass_s(1.5)
    assert clock.unix_ns() == BEGIN_UNIX_NS + 1_500_000_000
