"""Where this process may run, and how far that is from its GPU: CPUs, NUMA nodes, links.

From ``/proc``, ``/sys`` and what torch already knows; nothing is initialised, nothing is written.
What cannot be read is None, as in a container that hides a part of ``/sys``.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import Any

from .rank import _first_number

_RANKS_ON_NODE = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_NTASKS_PER_NODE",
)
_CPU_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_MAX_LIST = 4096
_XGMI, _PCIE = 11, 2
"""Types of links, as the driver of AMD GPUs numbers them."""


def placement(properties: Any, *, proc: str = "/proc", system: str = "/sys") -> dict[str, Any]:
    """The key ``placement`` of the environment record.

    ``properties``: torch's of this process's GPU, None without one. ``proc`` and ``system`` are
    the trees that are read. Lists of CPUs and nodes are as the kernel writes them: ``0-31,64-95``.
    """
    gpu = pci_address(properties)
    device = None if gpu is None else os.path.join(system, "bus", "pci", "devices", gpu)
    node = None if device is None else _number(os.path.join(device, "numa_node"))
    return {
        "allowed_cpus": _allowed_cpus(os.path.join(proc, "self", "status")),
        "online_cpus": _cpu_list(os.path.join(system, "devices", "system", "cpu", "online")),
        "node_cpus": _node_cpus(os.path.join(system, "devices", "system", "node")),
        "numa_balancing": _number(os.path.join(proc, "sys", "kernel", "numa_balancing")),
        "gpu_pci": gpu,
        # The kernel writes -1 for a device that belongs to no node.
        "gpu_numa_node": node if node is not None and node >= 0 else None,
        "gpu_cpus": None if device is None else _cpu_list(os.path.join(device, "local_cpulist")),
        "num_threads": _num_threads(),
        "ranks_per_node": _first_number(_RANKS_ON_NODE),
        "amd_links": _amd_links(os.path.join(system, "class", "kfd", "kfd", "topology", "nodes")),
    }


def pci_address(properties: Any) -> str | None:
    """``0000:1b:00.0``; None where torch does not tell (before about 2.8)."""
    told = [getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    numbers = [part for part in told if isinstance(part, int) and part >= 0]
    if len(numbers) < 3:
        return None
    domain, bus, device = numbers
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def _read(path: str) -> str | None:
    with suppress(Exception), open(path, encoding="utf-8", errors="replace") as file:
        return file.read(_MAX_LIST * 4).strip()
    return None


def _number(path: str) -> int | None:
    with suppress(Exception):
        return int(_read(path) or "")
    return None


def _cpu_list(path: str) -> str | None:
    return _checked(_read(path))


def _node_cpus(folder: str) -> dict[str, str] | None:
    """The CPUs of each NUMA node that has some; None where the kernel does not say."""
    found = {}
    with suppress(OSError):
        for name in sorted(os.listdir(folder)):
            cpus = _cpu_list(os.path.join(folder, name, "cpulist"))
            if cpus is not None and re.fullmatch(r"node\d{1,4}", name):
                found[name[4:]] = cpus
    return found or None


def _checked(text: str | None) -> str | None:
    # A list that was cut would name fewer CPUs than there are.
    good = text and len(text) < _MAX_LIST and _CPU_LIST.fullmatch(text)
    return text if good else None


def _allowed_cpus(path: str) -> str | None:
    """Of the main thread: what the launcher set, and what threads inherit."""
    for line in (_read(path) or "").splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            return _checked(value.strip())
    return None


def _num_threads() -> int | None:
    """How many threads PyTorch uses for one operator on the CPU."""
    with suppress(Exception):
        return int(sys.modules["torch"].get_num_threads())
    return None


def _amd_links(nodes: str) -> dict[str, int] | None:
    """How the AMD GPUs of this machine are connected; None without the driver's topology."""
    with suppress(Exception):
        gpus = {name for name in os.listdir(nodes) if _is_gpu(os.path.join(nodes, name))}
        found = {"num_gpus": len(gpus), "num_xgmi": 0, "num_pcie": 0}
        for gpu in gpus:
            for kind in ("io_links", "p2p_links"):
                for link in _links(os.path.join(nodes, gpu, kind)):
                    # Each link to another GPU is listed at both ends; those to a CPU do not count.
                    if str(link.get("node_to")) in gpus:
                        found["num_xgmi"] += link.get("type") == _XGMI
                        found["num_pcie"] += link.get("type") == _PCIE
        return found if gpus else None
    return None


def _is_gpu(folder: str) -> bool:
    return (_number(os.path.join(folder, "gpu_id")) or 0) > 0


def _links(folder: str) -> list[dict[str, int]]:
    with suppress(OSError):
        return [_properties(os.path.join(folder, name)) for name in os.listdir(folder)]
    return []


def _properties(folder: str) -> dict[str, int]:
    """The file ``properties``: a name and a number a line."""
    found = {}
    for line in (_read(os.path.join(folder, "properties")) or "").splitlines():
        name, _, value = line.partition(" ")
        with suppress(ValueError):
            found[name] = int(value)
    return found
