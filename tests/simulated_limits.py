"""Power limits of simulated GPUs kept in a file, so that several processes see the same GPUs.

``FileNvml(path)`` stands in for ``pynvml`` in ``PowerLimits``. Run as a program it is a
watchdog over such a file: ``python tests/simulated_limits.py FILE``. Every limit that is
set is appended to ``FILE.log`` with the pid that set it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

DEFAULT_W, LEAST_W, MOST_W = 700.0, 200.0, 700.0


class SimulatedError(Exception):
    """What NVML raises."""


class FileNvml:
    """The functions of NVML that limits need, over GPUs whose limits stand in a file."""

    NVMLError = SimulatedError

    def __init__(self, path: Path) -> None:
        self.path = path
        self.refuse: set[str] = set()
        """UUIDs whose limit this process cannot set."""
        self.pids: dict[str, list[int]] = {}

    @staticmethod
    def create(path: Path, limits_w: dict[str, float]) -> None:
        path.write_text(json.dumps(limits_w))

    def limits_w(self) -> dict[str, float]:
        return dict(json.loads(self.path.read_text()))

    def nvmlInit(self) -> None:  # noqa: N802
        self.limits_w()

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.limits_w())

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return list(self.limits_w())[index]

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return "Simulated GPU"

    def nvmlDeviceGetPowerManagementLimit(self, handle: str) -> int:  # noqa: N802
        return round(self.limits_w()[handle] * 1000)

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: str) -> int:  # noqa: N802
        return round(DEFAULT_W * 1000)

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: str) -> list[int]:  # noqa: N802
        return [round(LEAST_W * 1000), round(MOST_W * 1000)]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        return 1000 * len(self.log())

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.pids.get(handle, [])]

    def nvmlDeviceSetPowerManagementLimit(self, handle: str, milliwatt: int) -> None:  # noqa: N802
        if handle in self.refuse:
            raise SimulatedError("Insufficient Permissions")
        limits = self.limits_w()
        limits[handle] = milliwatt / 1000
        temporary = self.path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(limits))
        temporary.replace(self.path)
        with open(f"{self.path}.log", "a") as log:
            log.write(f"{os.getpid()} {handle} {milliwatt / 1000:g}\n")

    def log(self) -> list[list[str]]:
        """Pid, UUID and watts of every limit that was set, in order."""
        log = Path(f"{self.path}.log")
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def main() -> int:
    from diagnose.power_sweep.watchdog import watch
    from diagnose.telemetry.limits import PowerLimits

    nvml = FileNvml(Path(sys.argv[1]))
    return watch(sys.stdin.buffer, sys.stdout.buffer, lambda: PowerLimits(nvml))


if __name__ == "__main__":
    sys.exit(main())
