"""Who this process is in its job: rank, world size, backend, GPU. Nothing is initialised here."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_WORLD_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


def torch_version() -> str | None:
    """The version of the torch that is loaded, None if there is none."""
    version = getattr(sys.modules.get("torch"), "__version__", None)
    return None if version is None else str(version)


def place() -> dict[str, Any]:
    """rank, local_rank, world_size and backend; None where unknown."""
    group = _process_group()
    return {
        "rank": group.get("rank", _first_number(_RANK)),
        "local_rank": _first_number(_LOCAL_RANK),
        "world_size": group.get("world_size", _first_number(_WORLD_SIZE)),
        "backend": group.get("backend"),
    }


def _process_group() -> dict[str, Any]:
    distributed: Any = sys.modules.get("torch.distributed")
    with suppress(Exception):
        if distributed and distributed.is_available() and distributed.is_initialized():
            return {
                "rank": int(distributed.get_rank()),
                "world_size": int(distributed.get_world_size()),
                "backend": str(distributed.get_backend()),
            }
    return {}


def _first_number(names: tuple[str, ...]) -> int | None:
    for name in names:
        text = os.environ.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 10:
            return int(text)
    return None


def gpu_properties(device: int | None) -> Any:
    """torch's properties of a CUDA device; None unless CUDA runs already."""
    cuda = sys.modules.get("torch.cuda")
    with suppress(Exception):
        if cuda is not None and device is not None and cuda.is_initialized():
            return cuda.get_device_properties(device)
    return None


def gpu_uuid(properties: Any) -> str | None:
    """The UUID as NVML writes it, ``GPU-...``; None where torch does not tell."""
    uuid = getattr(properties, "uuid", None)
    if uuid is None:
        return None
    text = str(uuid)
    return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"
