"""Which GPU of the driver a CUDA number means. Expected values from CUDA's rules, by hand.

The machine of the shipped case (``attach-which-gpu-is-cuda0``) is tested there.
"""

from __future__ import annotations

import pytest

from diagnose.telemetry import GpuIdentity, MigIdentity, VisibleDevice, visible_devices, with_uuid

A = "GPU-11111111-aaaa-0000-0000-000000000001"
B = "GPU-22222222-bbbb-0000-0000-000000000002"
C = "GPU-33333333-cccc-0000-0000-000000000003"
D = "GPU-33334444-dddd-0000-0000-000000000004"
MIG = MigIdentity("MIG-55555555-eeee-0000-0000-000000000005", 2)
MIG_6 = MigIdentity("MIG-66666666-eeee-0000-0000-000000000006", 3)

ALIKE = [
    GpuIdentity(0, A, "00000000:1B:00.0", "H100"),
    GpuIdentity(1, B, "00000000:43:00.0", "H100"),
    GpuIdentity(2, C, "00000000:9D:00.0", "H100"),
    GpuIdentity(3, D, "00000000:DF:00.0", "H100"),
]
MIXED = [
    GpuIdentity(0, A, "00000000:1B:00.0", "A100"),
    GpuIdentity(1, B, "00000000:43:00.0", "H100"),
]
SHUFFLED = [  # the driver's order is not that of the PCI addresses
    GpuIdentity(0, A, "00000001:00:00.0", "H100"),
    GpuIdentity(1, B, "00000000:C3:00.0", "H100"),
    GpuIdentity(2, C, "00000000:0A:00.0", "H100"),
]


def indexes(*arguments, **options):
    found = visible_devices(*arguments, **options)
    return None if found is None else [device.index for device in found]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        (" ", []),
        ("2", [2]),
        ("3,0", [3, 0]),
        (" 3 ,\t0 ", [3, 0]),
        ("02", [2]),
        ("+1", [1]),
        ("-1", []),  # the usual way to hide all
        ("0,-1,1", [0]),
        ("0,4,1", [0]),
        ("0,,1", [0]),
        ("0,1,", [0, 1]),
        ("NoDevFiles", []),
        ("none", []),
        ("0,abc,1", [0]),
        ("99999999999999999999", None),  # too long to say how CUDA reads it
        ("1,1", []),  # a repeated device leaves none
        ("0,1,0", []),
        ("0,-1,0", [0]),  # never reached
        ("01,1", []),
        ("0x1", None),  # 0 or, in base 16, 1
        ("0X0a", None),
        ("0,0x1", [0]),
        ("0x0", [0]),  # these three and "GPU-" below: seen on one H200
        ("0abc", [0]),
        ("0 0", [0]),
        ("1gpu", [1]),
        ("2,1 3", [2, 1]),
        ("7gpu", []),
        ("\u0661", None),  # a digit, but not of ASCII
        (A, [0]),
        (A.lower(), [0]),
        (f"{D},{B}", [3, 1]),
        (f" {D} , {B}", [3, 1]),
        ("GPU-1", [0]),
        ("GPU-33334", [3]),
        ("GPU-3333", None),
        ("GPU-", []),
        ("gpu-", []),
        (f"{B},GPU-,{A}", [1]),
        ("GPU-9", []),
        (f"{B},GPU-9,{A}", [1]),
        (f"{B},{B}", []),
        (f"{B},GPU-2", []),  # the same in short
        (f"0,{B}", [0]),  # how a mixed list goes on is not written down
        (f"{B},0", [1]),
    ],
)
def test_what_a_list_means(value, expected):
    assert indexes(value, ALIKE, device_order="PCI_BUS_ID") == expected


def test_numbers_go_by_pci_address_not_by_the_drivers_order():
    assert indexes(None, SHUFFLED, device_order="PCI_BUS_ID") == [2, 1, 0]
    assert indexes("0", SHUFFLED, device_order="PCI_BUS_ID") == [2]
    assert indexes("2,0", SHUFFLED, device_order="PCI_BUS_ID") == [0, 2]
    assert indexes(B, SHUFFLED, device_order="PCI_BUS_ID") == [1]


@pytest.mark.parametrize("order", [None, "FASTEST_FIRST", ""])
def test_the_default_order_is_a_guess_among_different_models(order):
    assert indexes("0", MIXED, device_order=order) is None
    assert indexes(None, MIXED, device_order=order) is None
    assert indexes("0,1", MIXED, device_order=order) is None
    # In any order:
    assert indexes("", MIXED, device_order=order) == []
    assert indexes("-1", MIXED, device_order=order) == []
    assert indexes("5", MIXED, device_order=order) == []
    assert indexes("1,1", MIXED, device_order=order) == []
    assert indexes(B, MIXED, device_order=order) == [1]


def test_the_default_order_of_one_model_is_that_of_the_addresses():
    assert indexes("1,0", ALIKE) == [1, 0]
    assert indexes("0", SHUFFLED) == [2]
    assert indexes("0", MIXED[1:]) == [1]  # one GPU alone


def test_numbers_without_addresses_are_unknown():
    nameless = [*ALIKE[:1], GpuIdentity(1, None, None)]
    assert indexes("0", nameless, device_order="PCI_BUS_ID") is None
    assert indexes(A, nameless) == [0]
    twice = [ALIKE[0], GpuIdentity(1, B, ALIKE[0].pci_bus_id, "H100")]
    assert indexes("0", twice, device_order="PCI_BUS_ID") is None


def test_no_gpu():
    assert indexes(None, []) == []
    assert indexes("0", []) == []


@pytest.mark.parametrize("prefix", ["GPU-", ""])
def test_what_torch_reports_settles_it(prefix):
    reported = [prefix + uuid.removeprefix("GPU-").upper() for uuid in (B, A)]
    assert indexes("0,1", MIXED, torch_uuids=reported) == [1, 0]
    assert indexes("0,0x1", MIXED, torch_uuids=reported) == [1, 0]


def test_torch_reports_a_gpu_that_the_driver_does_not_list():
    assert indexes("0,1", ALIKE, device_order="PCI_BUS_ID", torch_uuids=[A, "GPU-9"]) is None


@pytest.mark.parametrize(
    ("value", "instances", "expected"),
    [
        (MIG.uuid, [MIG, MIG_6], [VisibleDevice(2, mig=True)]),
        ("MIG-6", [MIG, MIG_6], [VisibleDevice(3, mig=True)]),
        ("MIG-", [MIG, MIG_6], None),
        ("MIG-9", [MIG], []),
        (MIG.uuid, [], None),  # the driver lists none: hidden from this process
        (f"{MIG_6.uuid},{MIG.uuid}", [MIG, MIG_6], [VisibleDevice(3, mig=True)]),  # only one
        (f"MIG-{D}/1/0", [], [VisibleDevice(3, mig=True)]),  # before driver 470
        ("MIG-GPU-99999999-dddd-0000-0000-000000000004/1/0", [], []),
    ],
)
def test_mig(value, instances, expected):
    assert visible_devices(value, ALIKE, mig_devices=instances) == expected


def test_mig_uuid_from_torch_leads_to_the_parent():
    reported = [MIG.uuid.removeprefix("MIG-")]
    found = visible_devices(None, MIXED, torch_uuids=reported, mig_devices=[MIG])
    assert found == [VisibleDevice(2, mig=True)]


def test_with_uuid_wants_all_of_it():
    assert with_uuid(D, ALIKE) == VisibleDevice(3)
    assert with_uuid("GPU-33334444", ALIKE) is None
    assert with_uuid("", ALIKE) is None
    assert with_uuid("GPU-", [GpuIdentity(0, "GPU-", None)]) is None
