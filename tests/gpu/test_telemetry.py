"""Sensors of a real NVIDIA GPU: ``pytest -m gpu -s tests/gpu/test_telemetry.py``.

Needs a driver; torch, where it is there, keeps the GPU busy. Besides judging, each test
writes what it measured as a line of JSON, since that is what differs between GPUs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
import uuid
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from diagnose import telemetry
from diagnose.readers import telemetry_csv
from diagnose.telemetry.nvml_calls import Turn

pytestmark = pytest.mark.gpu

MEASURED_S = 4.0


def say(what, **facts):
    sys.stdout.write("\n" + json.dumps({"fact": what, **facts}, default=str) + "\n")


@pytest.fixture(scope="module")
def source():
    try:
        opened = telemetry.open_source("nvml")
    except telemetry.TelemetryUnavailableError as error:
        pytest.skip(error.message)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def load():
    """Half a second of work, half a second of none, until the module is done."""
    torch = pytest.importorskip("torch")
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    stop = threading.Event()

    def work():
        while not stop.is_set():
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                for _ in range(4):
                    matrix @ matrix
                torch.cuda.synchronize()
            stop.wait(0.5)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.fixture(scope="module")
def sampled(source, load, tmp_path_factory):
    """The readings of some seconds under load: (columns, what the sampler says)."""
    path = tmp_path_factory.mktemp("telemetry") / "rank00000.telemetry.csv"
    with telemetry.Sampler(source, {0: path}) as sampler:
        time.sleep(MEASURED_S)
    samples, notes = telemetry_csv.read(str(path))
    assert notes == []
    return samples, sampler.stop()


def test_identity(source):
    gpus = source.gpus()
    assert gpus
    assert all(gpu.uuid and gpu.uuid.startswith("GPU-") and gpu.pci_bus_id for gpu in gpus)
    say("identity", gpus=gpus, mig=source.mig_devices(), described=source.describe(0))


def test_which_sensors_there_are_and_what_each_costs(source):
    source.prepare(0)
    reader = source._readers[0]
    costs = {}
    for sensor in reader.sensors._sensors:
        times = []
        for _ in range(2 if sensor.turn is Turn.BLOCKING else 20):
            began = time.perf_counter()
            sensor.read()
            times.append((time.perf_counter() - began) * 1e3)
        costs[",".join(sensor.columns)] = round(statistics.median(times), 3)
    say(
        "sensors",
        cost_ms=costs,
        gpm=reader.gpm is not None,
        driver_samples=reader.power_samples.usable,
        xid=0 in source._xid._watched,
        notes=source.notes,
    )
    assert {"energy_j", "sm_clock_mhz", "temperature_c"} <= source.columns(0)
    assert {"power_avg_w", "power_instant_w"} & source.columns(0)


def test_rate_and_share_of_a_core(sampled):
    samples, result = sampled
    say(
        "rate",
        readings=result.num_readings,
        median_interval_ms=round((result.median_interval_s or 0) * 1e3, 2),
        median_cost_ms=round((result.median_cost_s or 0) * 1e3, 2),
        core_share=round(result.processor_s / MEASURED_S, 4),
        rows=len(samples["unix_ns"]),
        notes=result.notes,
    )
    # 50 ms may be used at once at the beginning.
    assert result.processor_s <= 0.1 * MEASURED_S + 0.05 + 0.05
    assert result.num_readings >= MEASURED_S / 0.2


def test_what_is_filled_and_how_often_power_changes(sampled):
    samples, _ = sampled
    filled = {c: int(np.isfinite(samples[c]).sum()) for c in telemetry.COLUMNS}
    changes = {}
    for column in ("power_avg_w", "power_instant_w", "energy_j", "gpu_util_pct"):
        known = np.isfinite(samples[column])
        values, times = samples[column][known], samples["unix_ns"][known]
        at = times[1:][np.diff(values) != 0]
        changes[column] = round(float(np.median(np.diff(at))) / 1e6, 1) if len(at) > 2 else None
    say("columns", filled=filled, median_change_ms=changes)
    assert filled["energy_j"]
    assert filled["sm_clock_mhz"]


def test_the_drivers_own_samples_lie_on_the_hosts_clock(source, sampled):
    samples, _ = sampled
    own = np.isfinite(samples["power_sample_w"])
    if not own.any():
        pytest.skip("this GPU or driver keeps no power samples")
    times = samples["unix_ns"][own]
    read = samples["unix_ns"][~own]
    say(
        "driver samples",
        count=int(own.sum()),
        median_spacing_ms=round(float(np.median(np.diff(times))) / 1e6, 2),
        newest_before_last_reading_ms=round((read[-1] - times[-1]) / 1e6, 1),
    )
    assert (np.diff(times) > 0).all()
    # The driver's buffer reaches some seconds further back than the first reading.
    assert read[0] - 10e9 <= times[0]
    assert abs(read[-1] - times[-1]) <= 1e9


def test_energy_agrees_with_power(sampled):
    samples, _ = sampled
    energy = np.isfinite(samples["energy_j"])
    times, joules = samples["unix_ns"][energy], samples["energy_j"][energy]
    by_counter = (joules[-1] - joules[0]) / ((times[-1] - times[0]) / 1e9)
    # Over the same time; the average power lags by a second and is left out.
    same = (samples["unix_ns"] >= times[0]) & (samples["unix_ns"] <= times[-1])
    means = {
        column: round(float(np.nanmean(samples[column][same])), 1)
        for column in ("power_instant_w", "power_sample_w")
        if np.isfinite(samples[column][same]).any()
    }
    say("energy", by_counter_w=round(float(by_counter), 1), means_w=means)
    assert all(abs(mean - by_counter) < 0.25 * by_counter for mean in means.values())


def test_the_gpu_of_a_process(source, load):
    """The driver counts processes as the host does: inside a container it sees none of ours."""
    found = telemetry.gpus_of_pid(source, os.getpid())
    say("processes", own_pid=os.getpid(), seen=source.processes(0), found=found)
    assert found in ([], [0])


# What CUDA itself makes of the variable, without torch: a line of JSON with the UUIDs.
CUDA = """
import ctypes, json, uuid
cuda = ctypes.CDLL("libcuda.so.1")
answer, count = [], ctypes.c_int(0)
if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
    for number in range(count.value):
        name = (ctypes.c_char * 16)()
        cuda.cuDeviceGetUuid_v2(ctypes.byref(name), number)
        answer.append("GPU-" + str(uuid.UUID(bytes=bytes(name))))
print(json.dumps(answer))
"""


def cuda_devices(value):
    environ = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_")}
    environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if value is not None:
        environ["CUDA_VISIBLE_DEVICES"] = value
    run = subprocess.run(
        [sys.executable, "-c", CUDA], env=environ, capture_output=True, text=True, timeout=60
    )
    return json.loads(run.stdout)


def test_the_mapping_is_what_cuda_does(source):
    gpus = source.gpus()
    first = gpus[0].uuid
    last = str(len(gpus) - 1)
    beyond = str(len(gpus))
    certain = [None, "", "0", " 0 ", last, f"{last},0", "-1", "0,-1", beyond, f"0,{beyond}"]
    certain += [first, first[:12], "0,0", f"{first},{first}", "none", "0,", "0,,0", "00", "+0"]
    certain += ["0x0", "0abc", "0 0", "GPU-"]
    doubtful = ["0x1", f"{first},0", f"0,{first}", first.upper()]
    answers = {}
    for value in [*certain, *doubtful]:
        found = telemetry.visible_devices(value, gpus, device_order="PCI_BUS_ID")
        ours = None if found is None else [gpus[device.index].uuid for device in found]
        answers[value] = (cuda_devices(value), ours)
    say("mapping", differing={k: v for k, v in answers.items() if v[0] != v[1]})
    for value in certain:
        assert answers[value][1] == answers[value][0], value
    for cuda, ours in answers.values():  # never another GPU than CUDA's
        assert ours is None or ours == cuda[: len(ours)]


def test_a_uuid_as_cuda_gives_it_is_found(source):
    bare = [name.removeprefix("GPU-") for name in cuda_devices(None)]
    assert [uuid.UUID(name) for name in bare]
    found = [telemetry.with_uuid(name, source.gpus()) for name in bare]
    assert None not in found


def test_closing_and_opening_again_leaks_no_descriptor():
    try:
        telemetry.open_source("nvml").close()
    except telemetry.TelemetryUnavailableError as error:
        pytest.skip(error.message)
    counts = []
    for _ in range(4):
        opened = telemetry.open_source("nvml")
        opened.sample(0, everything=True)
        opened.pending(0, everything=True)
        opened.close()
        counts.append(sum(1 for _ in Path("/proc/self/fd").iterdir()))
    say("descriptors", counts=counts)
    assert all(after <= before for before, after in pairwise(counts[1:]))
