"""What a sweep would do, against limits of 200 to 700 W."""

from __future__ import annotations

import pynvml
import pytest

from diagnose.errors import UsageError
from diagnose.power_sweep.plan import chosen_gpus, parse_caps, parse_gpus, plan
from diagnose.power_sweep.sweep import refuse
from diagnose.telemetry.limits import PowerLimitError, PowerLimits
from diagnose.telemetry.source import TelemetryUnavailableError
from tests.simulated_limits import FileNvml
from tests.unit.telemetry.simulated_nvml import SimulatedGpu, SimulatedNvml


@pytest.fixture
def nvml(tmp_path):
    FileNvml.create(tmp_path / "limits", {"GPU-a": 700.0, "GPU-b": 650.0})
    return FileNvml(tmp_path / "limits")


@pytest.mark.parametrize(("text", "caps"), [("700", [700]), ("700,600.5,500", [700, 600.5, 500])])
def test_caps_are_watts(text, caps):
    assert parse_caps(text) == caps


@pytest.mark.parametrize("text", ["", "a", "700,", "-5", "0", "1e9", "nan", "700W"])
def test_what_is_no_cap_is_refused(text):
    with pytest.raises(UsageError, match="not understood"):
        parse_caps(text)


def test_numbers_of_gpus():
    assert parse_gpus("0,3") == [0, 3]
    assert parse_gpus("1, GPU-a") == [1, "GPU-a"]
    for text in ("", "0,", "-1", "0x1", "MIG-a"):
        with pytest.raises(UsageError, match="not understood"):
            parse_gpus(text)


def test_the_first_run_is_without_a_cap_and_the_rest_in_the_order_given(nvml):
    found = plan(PowerLimits(nvml), [600, 500, 600], [1])
    assert found.runs == (None, 600, 500)
    assert [(gpu.index, gpu.uuid, gpu.current_w) for gpu in found.gpus] == [(1, "GPU-b", 650)]
    assert [gpu.index for gpu in plan(PowerLimits(nvml), [600]).gpus] == [0, 1]


def test_a_cap_that_a_gpu_does_not_allow_is_refused_with_what_it_allows(nvml):
    with pytest.raises(UsageError, match="does not allow a limit of 150 W") as refused:
        plan(PowerLimits(nvml), [600, 150])
    assert refused.value.hint == "it allows 200 to 700 W"
    assert nvml.log() == []


def test_a_gpu_that_is_not_there(nvml):
    with pytest.raises(UsageError, match="no GPU 7") as refused:
        plan(PowerLimits(nvml), [600], [0, 7])
    assert refused.value.hint == "this machine has GPUs 0, 1"


def four_gpus():
    """Numbered by the driver against the order of their PCI addresses."""
    addresses = ("DB", "9B", "5D", "1B")
    return PowerLimits(
        SimulatedNvml(
            [
                SimulatedGpu("NVIDIA H200", f"GPU-{number}", f"00000000:{address}:00.0")
                for number, address in enumerate(addresses)
            ]
        )
    )


@pytest.mark.parametrize(
    ("asked", "environ", "chosen"),
    [
        (None, {}, None),
        ([0, 2], {}, [0, 2]),  # the driver's numbers
        # CUDA numbers GPUs of one model by PCI address: cuda:2 and cuda:0 without the variable.
        (None, {"CUDA_VISIBLE_DEVICES": "2,0"}, [1, 3]),
        ([1], {"CUDA_VISIBLE_DEVICES": "2,0"}, [3]),
        ([0], {"CUDA_VISIBLE_DEVICES": "GPU-2"}, [2]),
        (["GPU-0"], {"CUDA_VISIBLE_DEVICES": "GPU-2"}, [0]),  # a UUID is a UUID
        (["GPU-0"], {"CUDA_VISIBLE_DEVICES": "MIG-1"}, [0]),
    ],
)
def test_only_gpus_that_the_job_is_shown_are_limited(asked, environ, chosen):
    limits = four_gpus()
    assert chosen_gpus(limits, asked, environ) == chosen
    limits.close()


@pytest.mark.parametrize(
    ("asked", "visible", "said"),
    [
        ([2], "2,0", "shown 2 GPUs .*cuda:2 is none"),
        (None, "", "cannot be told"),
        (None, "MIG-GPU-1/7/0", "cannot be told"),
        ([0], "0x1", "cannot be told"),
        (["GPU-9"], "0", "there is no GPU GPU-9"),
    ],
)
def test_gpus_that_cannot_be_told_are_not_limited(asked, visible, said):
    limits = four_gpus()
    with pytest.raises(UsageError, match=said) as refused:
        chosen_gpus(limits, asked, {"CUDA_VISIBLE_DEVICES": visible})
    assert "nvidia-smi -L" in refused.value.hint or "UUIDs" in refused.value.hint
    limits.close()


def test_setting_needs_root_and_a_gpu_of_ones_own(nvml):
    limits = PowerLimits(nvml)
    found = plan(limits, [600])
    with pytest.raises(UsageError, match="needs root") as refused:
        refuse(found, limits, as_root=False)
    assert "sudo" in refused.value.hint
    refuse(found, limits, as_root=True)
    nvml.pids["GPU-b"] = [4711]
    with pytest.raises(UsageError, match="process 4711 computes on GPU 1"):
        refuse(found, limits, as_root=True)


def nvidia(**options):
    gpus = [SimulatedGpu("NVIDIA H200", "GPU-1", "00000000:1B:00.0", **options)]
    return SimulatedNvml(gpus)


def test_limits_of_nvml_are_watts():
    limits = PowerLimits(nvidia(limit_w=650.0, pids=[12, 7]))
    found = limits.read("GPU-1")
    assert (found.index, found.name, found.current_w) == (0, "NVIDIA H200", 650)
    assert (found.default_w, found.least_w, found.most_w) == (700, 200, 700)
    assert limits.processes("GPU-1") == [7, 12]
    # 400 W for the 100 s that the simulated clock shows.
    assert limits.energy_j("GPU-1") == 40_000
    limits.set("GPU-1", 512.5)
    assert limits.read("GPU-1").current_w == 512.5
    limits.close()
    limits.close()


def test_what_nvml_refuses_says_why():
    nvml = nvidia()
    nvml.as_root = False
    limits = PowerLimits(nvml)
    with pytest.raises(PowerLimitError, match="cannot be set to 500 W") as refused:
        limits.set("GPU-1", 500)
    assert "root" in refused.value.hint
    with pytest.raises(PowerLimitError, match="no GPU GPU-2"):
        limits.read("GPU-2")
    limits.close()
    lacking = PowerLimits(nvidia(lacks={"nvmlDeviceGetPowerManagementLimitConstraints"}))
    with pytest.raises(PowerLimitError, match="does not tell its power limit"):
        lacking.read("GPU-1")
    lacking.close()


def test_a_limit_that_does_not_hold_is_an_error(monkeypatch):
    nvml = nvidia()
    monkeypatch.setattr(nvml, "nvmlDeviceSetPowerManagementLimit", lambda handle, milliwatt: None)
    limits = PowerLimits(nvml)
    with pytest.raises(PowerLimitError, match="reads 700 W after it was set to 500 W"):
        limits.set("GPU-1", 500)
    limits.close()


def test_without_a_driver_there_is_a_reason():
    nvml = SimulatedNvml([], init_error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    with pytest.raises(TelemetryUnavailableError, match="no NVIDIA driver is installed"):
        PowerLimits(nvml)
