"""Which GPU a rank trains on, from everything that is known of its process."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from diagnose.telemetry.devices import VisibleDevice, visible_devices, with_uuid
from diagnose.telemetry.source import GpuIdentity, MigIdentity


@dataclass(frozen=True)
class RankGpu:
    """The GPU of a rank. ``device`` None: unknown, and ``reason`` says why, else how it is known.

    Readings of a GPU that might be another's are worse than none.
    """

    device: VisibleDevice | None
    reason: str


def gpu_of_rank(
    gpus: Sequence[GpuIdentity],
    *,
    gpu_uuid: str | None = None,
    cuda_device: int | None = None,
    environ: Mapping[str, str] | None = None,
    computes_on: Collection[int] = (),
    mig_devices: Sequence[MigIdentity] = (),
) -> RankGpu:
    """The GPU of one rank, by the surest of what is known.

    ``gpu_uuid`` is what torch reports of the device it trains on; ``cuda_device`` that
    device's number in the process; ``environ`` the process's environment at its start;
    ``computes_on`` the driver's numbers of the GPUs on which the driver sees the process
    (empty: sees it nowhere, as from inside a container).
    """
    if gpu_uuid:
        device = with_uuid(gpu_uuid, gpus, mig_devices)
        if device is not None:
            return RankGpu(device, "torch reports its UUID")
        return RankGpu(None, f"torch reports {gpu_uuid[:60]}, which the driver here does not list")
    environment = environ or {}
    listed = visible_devices(
        environment.get("CUDA_VISIBLE_DEVICES"),
        gpus,
        device_order=environment.get("CUDA_DEVICE_ORDER"),
        mig_devices=mig_devices,
    )
    number = 0 if cuda_device is None and listed is not None and len(listed) == 1 else cuda_device
    if environ is not None and listed is not None and number is not None:
        if not 0 <= number < len(listed):
            return RankGpu(None, f"it uses cuda:{number}, but is shown {len(listed)} device(s)")
        if computes_on and listed[number].index not in computes_on:
            return RankGpu(
                None, "CUDA_VISIBLE_DEVICES names one GPU, the driver sees it on another"
            )
        return RankGpu(listed[number], "from CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER")
    if len(computes_on) == 1:
        [index] = computes_on
        split = any(gpu.index == index and gpu.mig_enabled for gpu in gpus)
        return RankGpu(VisibleDevice(index, mig=split), "the only GPU it computes on")
    if number is None:
        return RankGpu(None, "it has not used CUDA yet, and is shown more than one device")
    return RankGpu(None, "CUDA numbers the GPUs of this machine in an order that is a guess")
