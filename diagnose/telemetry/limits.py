"""Power limits of NVIDIA GPUs: read, and set where a person explicitly asked for that.

The only place of the package that changes anything on a GPU. Only ``diagnose.power_sweep``
uses it, which puts back what was there. Setting needs root. Not run on hardware: tested
against a simulated NVML.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diagnose.errors import RecordingError
from diagnose.telemetry.nvml_identity import Identities, reason
from diagnose.telemetry.source import GpuIdentity, TelemetryUnavailableError

MILLI = 0.001


class PowerLimitError(RecordingError):
    """A power limit could not be read or set. Says of which GPU, and the remedy."""

    code = "power-limit"


@dataclass(frozen=True)
class Limit:
    """The power limit of one GPU, in watts, and what the driver lets it be set to."""

    index: int
    """The driver's number, as ``nvidia-smi`` shows it."""
    uuid: str
    name: str
    current_w: float
    default_w: float
    least_w: float
    most_w: float


class PowerLimits:
    """Reads and sets limits. GPUs are named by UUID: numbers may differ between processes.

    Raises TelemetryUnavailableError where NVML cannot be used.
    """

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = _binding() if nvml is None else nvml
        self._failures = (self._nvml.NVMLError, AttributeError, TypeError, ValueError)
        try:
            self._nvml.nvmlInit()
        except self._failures as error:
            raise _unavailable(reason(self._nvml, error)) from None
        self._handles: dict[str, Any] = {}
        self._numbers: dict[str, int] = {}
        try:
            for index in range(int(self._nvml.nvmlDeviceGetCount())):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = _text(self._nvml.nvmlDeviceGetUUID(handle))
                self._handles[uuid], self._numbers[uuid] = handle, index
        except self._failures as error:
            self._nvml.nvmlShutdown()
            raise _unavailable(f"a GPU does not answer ({error})") from None

    def gpus(self) -> dict[int, str]:
        """The driver's number of each GPU and its UUID."""
        return {index: uuid for uuid, index in self._numbers.items()}

    def identities(self) -> list[GpuIdentity]:
        """What the driver calls each GPU, by which CUDA's numbers are told."""
        asked = Identities(self._nvml, self._failures)
        return [asked.gpu(self._numbers[uuid], handle) for uuid, handle in self._handles.items()]

    def read(self, uuid: str) -> Limit:
        """The limit as it is set now. Raises PowerLimitError."""
        handle = self._handle(uuid)
        try:
            least, most = self._nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
            return Limit(
                self._numbers[uuid],
                uuid,
                _text(self._nvml.nvmlDeviceGetName(handle)),
                MILLI * self._nvml.nvmlDeviceGetPowerManagementLimit(handle),
                MILLI * self._nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle),
                MILLI * least,
                MILLI * most,
            )
        except self._failures as error:
            raise PowerLimitError(
                f"GPU {self._numbers[uuid]} ({uuid}) does not tell its power limit ({error})",
                hint="its driver or firmware may not allow limits to be changed",
            ) from None

    def set(self, uuid: str, watts: float) -> None:
        """Set the limit and read it back. Raises PowerLimitError if it is not what was asked."""
        handle = self._handle(uuid)
        try:
            self._nvml.nvmlDeviceSetPowerManagementLimit(handle, round(watts / MILLI))
        except self._failures as error:
            raise PowerLimitError(
                f"the power limit of GPU {self._numbers[uuid]} cannot be set to {watts:g} W "
                f"({error})",
                hint="this needs root, and a GPU that is not part of a virtual machine's share",
            ) from None
        now = self.read(uuid).current_w
        if abs(now - watts) > 1:
            raise PowerLimitError(
                f"the power limit of GPU {self._numbers[uuid]} reads {now:g} W after it was set "
                f"to {watts:g} W",
                hint="something else sets it too: a cluster's power manager, nvidia-smi, DCGM",
            )

    def energy_j(self, uuid: str) -> float | None:
        """The GPU's energy counter; None where it has none."""
        try:
            counter = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle(uuid))
        except self._failures:
            return None
        return MILLI * float(counter)

    def processes(self, uuid: str) -> list[int]:
        """Pids that compute on the GPU now, as the host counts them; empty if none is told."""
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle(uuid))
        except self._failures:
            return []
        return sorted(int(process.pid) for process in found)

    def close(self) -> None:
        """Let go of the driver."""
        if self._handles:
            self._handles = {}
            self._nvml.nvmlShutdown()

    def _handle(self, uuid: str) -> Any:
        try:
            return self._handles[uuid]
        except KeyError:
            raise PowerLimitError(
                f"there is no GPU {uuid} any more", hint="look at `nvidia-smi -L`"
            ) from None


def _binding() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise _unavailable(f"the package nvidia-ml-py cannot be loaded ({error})") from None
    return pynvml


def _unavailable(why: str) -> TelemetryUnavailableError:
    return TelemetryUnavailableError(
        f"{why}; power limits can be neither read nor set",
        hint="run it on the machine with the GPUs, with its NVIDIA driver",
    )


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
