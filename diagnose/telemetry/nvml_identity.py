"""Which NVIDIA GPUs there are, what they are called, and how they are wired."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diagnose.telemetry.nvml_calls import MILLI
from diagnose.telemetry.nvml_sensors import Failures
from diagnose.telemetry.source import GpuIdentity, MigIdentity

SYSFS_PCI = Path("/sys/bus/pci/devices")
_PEERS = {0: "GPU", 1: "NPU", 2: "switch"}
_MAX_LINKS = 64


class Identities:
    """Identity and topology by the driver's number. What the driver will not say is left out."""

    def __init__(self, nvml: Any, failures: Failures, sysfs_pci: Path = SYSFS_PCI) -> None:
        self._nvml, self._failures, self._sysfs_pci = nvml, failures, sysfs_pci

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer of a function of NVML, as text where it gives bytes; None if it fails."""
        try:
            answer = getattr(self._nvml, function)(*arguments)
        except self._failures:
            return None
        return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer

    def gpu(self, index: int, handle: Any) -> GpuIdentity:
        """One GPU; without a handle (it does not answer) only its number."""
        if handle is None:
            return GpuIdentity(index, None, None)
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
        mig = self.ask("nvmlDeviceGetMigMode", handle)
        return GpuIdentity(
            index,
            self.ask("nvmlDeviceGetUUID", handle),
            self._bus_id("nvmlDeviceGetPciInfo", handle),
            self.ask("nvmlDeviceGetName", handle),
            None if memory is None else int(memory.total),
            None if mig is None else bool(mig[0]),
        )

    def mig_devices(self, index: int, handle: Any) -> list[MigIdentity]:
        """The instances of one GPU. Places without an instance are passed over."""
        count = self.ask("nvmlDeviceGetMaxMigDeviceCount", handle)
        instances = []
        for place in range(int(count or 0)):
            instance = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
            uuid = None if instance is None else self.ask("nvmlDeviceGetUUID", instance)
            if uuid is not None:
                instances.append(MigIdentity(uuid, index))
        return instances

    def processes(self, handle: Any) -> list[int]:
        """Pids that compute on a GPU, clients of MPS among them; the host's numbers."""
        pids: set[int] = set()
        for kind in ("Compute", "MPSCompute"):
            for version in ("", "_v2"):  # drivers before 510 lack what the first one calls
                found = self.ask(f"nvmlDeviceGet{kind}RunningProcesses{version}", handle)
                if found is not None:
                    pids.update(int(process.pid) for process in found)
                    break
        return sorted(pids)

    def describe(self, gpu: GpuIdentity, handle: Any, indexes: dict[str, int]) -> dict[str, Any]:
        """What ``*.env.json`` says of a GPU. ``indexes``: PCI address in lower case -> number."""
        described = {
            "name": gpu.name,
            "uuid": gpu.uuid,
            "pci_bus_id": gpu.pci_bus_id,
            "memory_bytes": gpu.memory_bytes,
            "mig_enabled": gpu.mig_enabled,
            "driver": self.ask("nvmlSystemGetDriverVersion"),
            "nvml": self.ask("nvmlSystemGetNVMLVersion"),
            "power_limit": self._power_limits(handle),
            "pcie": self._pcie(handle),
            "numa_node": self._numa_node(gpu.pci_bus_id),
            "nvlinks": self._nvlinks(handle, indexes),
        }
        return {key: value for key, value in described.items() if value not in (None, {}, [])}

    def _power_limits(self, handle: Any) -> dict[str, float]:
        limits = {
            "enforced_w": self.ask("nvmlDeviceGetEnforcedPowerLimit", handle),
            "default_w": self.ask("nvmlDeviceGetPowerManagementDefaultLimit", handle),
        }
        span = self.ask("nvmlDeviceGetPowerManagementLimitConstraints", handle)
        if span is not None:
            limits["min_w"], limits["max_w"] = span
        return {key: value * MILLI for key, value in limits.items() if value is not None}

    def _pcie(self, handle: Any) -> dict[str, int]:
        asked = {
            "generation": "nvmlDeviceGetCurrPcieLinkGeneration",
            "width": "nvmlDeviceGetCurrPcieLinkWidth",
            "max_generation": "nvmlDeviceGetMaxPcieLinkGeneration",
            "max_width": "nvmlDeviceGetMaxPcieLinkWidth",
        }
        answers = {key: self.ask(function, handle) for key, function in asked.items()}
        return {key: int(value) for key, value in answers.items() if value is not None}

    def _numa_node(self, pci_bus_id: str | None) -> int | None:
        """The node of the host to which a GPU is wired; None on a host without several."""
        if pci_bus_id is None:
            return None
        domain, _, rest = pci_bus_id.lower().partition(":")
        try:
            text = (self._sysfs_pci / f"{domain[-4:]}:{rest}" / "numa_node").read_text()
            node = int(text)
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None

    def _nvlinks(self, handle: Any, indexes: dict[str, int]) -> list[dict[str, Any]]:
        links = []
        for link in range(min(int(getattr(self._nvml, "NVML_NVLINK_MAX_LINKS", 18)), _MAX_LINKS)):
            if not self.ask("nvmlDeviceGetNvLinkState", handle, link):
                continue
            peer = self._bus_id("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            kind = self.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            entry = {
                "link": link,
                "version": self.ask("nvmlDeviceGetNvLinkVersion", handle, link),
                "peer": _PEERS.get(kind) if kind is not None else None,
                "peer_pci_bus_id": peer,
                "peer_gpu": indexes.get(peer.lower()) if peer is not None else None,
            }
            links.append({key: value for key, value in entry.items() if value is not None})
        return links

    def _bus_id(self, function: str, *arguments: Any) -> str | None:
        info: Any = self.ask(function, *arguments)
        if info is None:
            return None
        text = info.busId
        return text.decode("ascii", "replace") if isinstance(text, bytes) else str(text)


_REASONS = {
    "LIBRARY_NOT_FOUND": "no NVIDIA driver is installed here (libnvidia-ml.so.1 was not found)",
    "DRIVER_NOT_LOADED": "the NVIDIA driver is installed, but not loaded",
    "NO_PERMISSION": "this user may not talk to the NVIDIA driver",
    "LIB_RM_VERSION_MISMATCH": "the NVIDIA driver was updated and waits for a reboot",
    "GPU_NOT_FOUND": "the NVIDIA driver finds no GPU",
}


def reason(nvml: Any, error: Exception) -> str:
    """Why NVML cannot be used, as one sentence for a person."""
    code = getattr(error, "value", None)
    for name, sentence in _REASONS.items():
        if code is not None and code == getattr(nvml, f"NVML_ERROR_{name}", None):
            return sentence
    return f"the NVIDIA driver does not answer ({error})"
