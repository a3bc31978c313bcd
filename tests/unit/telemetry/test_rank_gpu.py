"""The GPU of a rank, from what is known of its process."""

from __future__ import annotations

import pytest

from diagnose.telemetry import GpuIdentity, VisibleDevice, gpu_of_rank

A = "GPU-11111111-aaaa-0000-0000-000000000001"
B = "GPU-22222222-bbbb-0000-0000-000000000002"
PAIR = [
    GpuIdentity(0, A, "00000000:1B:00.0", "H100"),
    GpuIdentity(1, B, "00000000:43:00.0", "H100"),
]
MIXED = [PAIR[0], GpuIdentity(1, B, "00000000:43:00.0", "A100")]


def test_the_uuid_from_torch_is_the_surest():
    found = gpu_of_rank(
        PAIR, gpu_uuid=B, cuda_device=0, environ={"CUDA_VISIBLE_DEVICES": "0"}, computes_on=[0]
    )
    assert found.device == VisibleDevice(1)


def test_a_uuid_that_is_not_here_is_not_replaced_by_a_guess():
    found = gpu_of_rank(PAIR, gpu_uuid="GPU-9", cuda_device=0, environ={}, computes_on=[0])
    assert found.device is None
    assert "GPU-9" in found.reason


@pytest.mark.parametrize(
    ("environ", "cuda_device", "computes_on", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, 0, [], 1),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, 1, [0, 1], 0),
        ({"CUDA_VISIBLE_DEVICES": "1"}, None, [], 1),  # only one, so it is that
        ({}, 1, [], 1),
        ({}, None, [], None),  # two, and CUDA not yet used
        ({}, None, [1], 1),
        ({"CUDA_VISIBLE_DEVICES": "1"}, 1, [], None),  # cuda:1 of one device
        ({"CUDA_VISIBLE_DEVICES": "1"}, 0, [0], None),  # contradiction
        ({"CUDA_VISIBLE_DEVICES": ""}, 0, [], None),
        (None, 0, [], None),  # its environment could not be read
        (None, 0, [1], 1),
        (None, 0, [0, 1], None),
    ],
)
def test_without_a_uuid(environ, cuda_device, computes_on, expected):
    found = gpu_of_rank(PAIR, cuda_device=cuda_device, environ=environ, computes_on=computes_on)
    assert (None if found.device is None else found.device.index) == expected
    assert found.reason


def test_a_mixed_machine_needs_the_uuid_or_the_process():
    assert gpu_of_rank(MIXED, cuda_device=0, environ={}).device is None
    assert "guess" in gpu_of_rank(MIXED, cuda_device=0, environ={}).reason
    assert gpu_of_rank(MIXED, cuda_device=0, environ={}, computes_on=[1]).device == VisibleDevice(1)
    ordered = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert gpu_of_rank(MIXED, cuda_device=0, environ=ordered).device == VisibleDevice(0)


def test_a_process_on_a_split_gpu_is_on_a_part_of_it():
    split = [GpuIdentity(0, A, "00000000:1B:00.0", "H100", mig_enabled=True)]
    assert gpu_of_rank(split, cuda_device=1, computes_on=[0]).device == VisibleDevice(0, mig=True)
