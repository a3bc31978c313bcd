"""Which GPU of the driver is ``cuda:0`` of a process.

NVML numbers GPUs its own way and ignores ``CUDA_VISIBLE_DEVICES``; CUDA numbers what
that variable lists, and without ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` puts the fastest GPU
first. A wrong guess shows power and clocks of somebody else's GPU, so whatever the rules
do not settle is unknown here.

The rules are those of "CUDA Environment Variables" in the CUDA C++ Programming Guide
and, where that is silent, of ``torch.cuda`` (a repeated device leaves none at all), and
what one H200 showed (one GPU, driver 580.159): "0x0", "0abc" and "0 0" are GPU 0, so the
digits count that an entry begins with; ``GPU-`` alone is no device. Whether "0x1" is 0
or, in base 16, 1 could not be told there.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.telemetry.source import GpuIdentity, MigIdentity

_NUMBER = re.compile(r"([+-]?[0-9]{1,18})(?![0-9])")
_OTHER_IN_BASE_16 = re.compile(r"[+-]?0[xX]0*[1-9a-fA-F]")
_PCI = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.[0-7]")
# MIG-GPU-<uuid>/<gpu instance>/<compute instance>: how drivers before 470 name an instance.
_OLD_MIG = re.compile(r"mig-(gpu-[0-9a-f-]+)/[0-9]+/[0-9]+")


@dataclass(frozen=True)
class VisibleDevice:
    """What stands behind one CUDA device number."""

    index: int
    """The driver's number of the GPU; for a MIG instance, of the GPU it is a part of."""
    mig: bool = False
    """A MIG instance: readings of the GPU are not those of the instance alone."""


def visible_devices(
    value: str | None,
    gpus: Sequence[GpuIdentity],
    *,
    device_order: str | None = None,
    torch_uuids: Sequence[str] | None = None,
    mig_devices: Sequence[MigIdentity] = (),
) -> list[VisibleDevice] | None:
    """cuda:0, cuda:1, ... of a process; None if that cannot be known.

    ``value`` is its ``CUDA_VISIBLE_DEVICES`` (None: not set), ``device_order`` its
    ``CUDA_DEVICE_ORDER``, ``torch_uuids`` what the framework in it reports for its devices
    in order, which settles everything. The list may be shorter than CUDA's where a later
    entry is doubtful, never different: a number past its end is unknown.
    """
    if torch_uuids:
        return _from_framework(torch_uuids, gpus, mig_devices)
    in_pci_order = device_order is not None and device_order.strip().upper() == "PCI_BUS_ID"
    numbered = _numbered(gpus, in_pci_order)
    if value is None:
        return None if numbered is None else [VisibleDevice(index) for index in numbered]
    return _listed(value, gpus, numbered, mig_devices)


def with_uuid(
    uuid: str, gpus: Sequence[GpuIdentity], mig_devices: Sequence[MigIdentity] = ()
) -> VisibleDevice | None:
    """The device with exactly this UUID, with or without its ``GPU-`` or ``MIG-``; None if none."""
    wanted = _bare(uuid)
    if not wanted:
        return None
    whole = [VisibleDevice(gpu.index) for gpu in gpus if gpu.uuid and _bare(gpu.uuid) == wanted]
    parts = [VisibleDevice(m.parent_index, True) for m in mig_devices if _bare(m.uuid) == wanted]
    found = whole + parts
    return found[0] if len(found) == 1 else None


def _from_framework(
    uuids: Sequence[str], gpus: Sequence[GpuIdentity], mig_devices: Sequence[MigIdentity]
) -> list[VisibleDevice] | None:
    devices = [with_uuid(uuid, gpus, mig_devices) for uuid in uuids]
    known = [device for device in devices if device is not None]
    return known if len(known) == len(devices) else None


def _bare(uuid: str) -> str:
    text = uuid.strip().lower()
    for prefix in ("gpu-", "mig-"):
        text = text.removeprefix(prefix)
    return text


def _numbered(gpus: Sequence[GpuIdentity], in_pci_order: bool) -> list[int] | None:
    """The driver's numbers in CUDA's order before any selection; None if it is a guess.

    Among GPUs of one model none is faster, and CUDA then goes by PCI address.
    """
    if len(gpus) < 2:
        return [gpu.index for gpu in gpus]
    models = {gpu.name for gpu in gpus}
    if not in_pci_order and (len(models) > 1 or None in models):
        return None
    addresses = {gpu.index: _pci_address(gpu.pci_bus_id) for gpu in gpus}
    if None in addresses.values() or len(set(addresses.values())) < len(gpus):
        return None
    return sorted(addresses, key=lambda index: addresses[index] or (0, 0, 0))


def _pci_address(text: str | None) -> tuple[int, int, int] | None:
    match = _PCI.fullmatch(text.strip()) if text else None
    if match is None:
        return None
    domain, bus, device = match.groups()
    return int(domain or "0", 16), int(bus, 16), int(device, 16)


def _listed(
    value: str,
    gpus: Sequence[GpuIdentity],
    numbered: list[int] | None,
    mig_devices: Sequence[MigIdentity],
) -> list[VisibleDevice] | None:
    tokens = [token.strip() for token in value.split(",")]
    kind = _kind(tokens[0])
    if kind == "doubtful":
        return None
    # How CUDA reads a list of mixed kinds is written nowhere; what comes before is certain.
    same_kind = list(itertools.takewhile(lambda token: _kind(token) == kind, tokens))
    if kind == "number":
        return _by_numbers(same_kind, len(gpus), numbered)
    return _by_uuids(same_kind, gpus, mig_devices)


def _kind(token: str) -> str:
    if token[:4].upper() in ("GPU-", "MIG-"):
        return token[:3].upper()
    readable = _NUMBER.match(token) and not _OTHER_IN_BASE_16.match(token)
    # isdigit() also of digits outside of ASCII, and of numbers too long to say.
    return "number" if readable or not token.lstrip("+-")[:1].isdigit() else "doubtful"


def _by_numbers(
    tokens: Sequence[str], num_gpus: int, numbered: list[int] | None
) -> list[VisibleDevice] | None:
    numbers: list[int] = []
    for token in tokens:
        match = _NUMBER.match(token)
        number = int(match[1]) if match else -1
        if not 0 <= number < num_gpus:
            break  # the first invalid entry ends the list
        if number in numbers:
            return []
        numbers.append(number)
    if numbers and numbered is None:
        return None
    return [VisibleDevice(numbered[number]) for number in numbers] if numbered else []


def _by_uuids(
    tokens: Sequence[str], gpus: Sequence[GpuIdentity], mig_devices: Sequence[MigIdentity]
) -> list[VisibleDevice] | None:
    devices: dict[str, VisibleDevice] = {}
    for token in tokens:
        found = _meant(token.lower(), gpus, mig_devices)
        if found is None or len(found) > 1:
            return None
        if not found:
            break  # the first invalid entry ends the list
        [(uuid, device)] = found.items()
        if device.mig:
            return [device]  # a process sees one MIG instance, the first
        if uuid in devices:
            return []
        devices[uuid] = device
    return list(devices.values())


def _meant(
    token: str, gpus: Sequence[GpuIdentity], mig_devices: Sequence[MigIdentity]
) -> dict[str, VisibleDevice] | None:
    """Every device that a UUID or the beginning of one fits, by whole UUID; None: cannot tell."""
    named = {gpu.uuid.lower(): VisibleDevice(gpu.index) for gpu in gpus if gpu.uuid}
    if token.startswith("mig-"):
        old = _OLD_MIG.fullmatch(token)
        if old is not None:
            parent = named.get(old[1])
            return {} if parent is None else {token: VisibleDevice(parent.index, mig=True)}
        if not mig_devices:
            return None  # the driver may hide instances from this process
        named = {mig.uuid.lower(): VisibleDevice(mig.parent_index, True) for mig in mig_devices}
    if token in named:
        return {token: named[token]}
    if token == "gpu-":
        return {}
    return {uuid: device for uuid, device in named.items() if uuid.startswith(token)}
