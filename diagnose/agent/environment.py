"""The facts about a process that explain its speed: versions, GPU, place, variables that matter.

Variables are on an allow-list, cut at 200 characters, and left out where the name or the value
looks like a credential. Nothing is initialised: without CUDA running there is no GPU.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from contextlib import suppress
from typing import Any

from .placement import placement
from .rank import gpu_properties, gpu_uuid, place, torch_version

MAX_VALUE = 200
_PREFIXES = (
    "NCCL_",
    "TORCH_NCCL_",
    "CUDA_",
    "CUBLAS",
    "CUDNN_",
    "NVTE_",
    "NVSHMEM_",
    "RCCL_",
    "HIP_",
    "HSA_",
    "ROCR_",
    "AMD_SERIALIZE_",
    "GLOO_",
    "UCX_",
    "UCC_",
    "FI_",
    "OMP_",
    "KMP_",
    "GOMP_",
    "MKL_",
    "KINETO_",
    "TORCHINDUCTOR_",
    "TORCHDYNAMO_",
)
_NAMES = frozenset(
    {
        "NVIDIA_VISIBLE_DEVICES",
        "GPU_MAX_HW_QUEUES",
        "NVIDIA_TF32_OVERRIDE",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_HIP_ALLOC_CONF",
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "TEARDOWN_CUPTI",
        "DISABLE_CUPTI_LAZY_REINIT",
        "TORCH_DISTRIBUTED_DEBUG",
        "TORCH_CUDNN_V8_API_DISABLED",
        "TORCH_BLAS_PREFER_CUBLASLT",
        "TORCH_COMPILE_DISABLE",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "TORCH_LOGS",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "SLURM_NNODES",
        "SLURM_NTASKS",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_CPUS_PER_TASK",
        "SLURM_GPUS_ON_NODE",
        "SLURM_CPU_BIND",
        "LD_PRELOAD",
        "MALLOC_ARENA_MAX",
        "MALLOC_TRIM_THRESHOLD_",
        "PYTHONHASHSEED",
        "PYTHONGIL",
    }
)
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASS(WORD|WD|PHRASE)?(_|$)|CREDENTIAL|(^|_)AUTH|API_?KEY|ACCESS_?KEY"
    r"|PRIVATE|(_|^)KEY$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"://[^/\s@]+@|bearer\s|-----BEGIN|\b(ghp|gho|ghs|hf|sk|pk|xox[abp])[_-][\w-]{16}"
    r"|github_pat_|glpat-|\bAKIA[0-9A-Z]{12}|\beyJ[\w-]{16}|(password|passwd|token|secret)\s*[=:]",
    re.IGNORECASE,
)


def collect(cuda_device: int | None) -> dict[str, Any]:
    """The content of ``rankNNNNN.env.json``; what is unknown is null.

    ``cuda_device`` is the current device of the training thread: CUDA keeps one per thread.
    """
    torch = sys.modules.get("torch")
    where = place()
    properties = gpu_properties(cuda_device)
    return {
        "rank": where["rank"],
        "local_rank": where["local_rank"],
        "world_size": where["world_size"],
        "backend": where["backend"],
        "python": platform.python_version(),
        "torch": torch_version(),
        "cuda": _text(getattr(getattr(torch, "version", None), "cuda", None)),
        "nccl": _nccl_built(),
        "nccl_loaded": _nccl_loaded(),
        "gpu": _gpu(properties),
        "placement": placement(properties),
        "env": variables(dict(os.environ)),
    }


def variables(environ: dict[str, str]) -> dict[str, str]:
    """The variables of the allow-list that look like no credential, cut, by name."""
    return {
        name: value[:MAX_VALUE]
        for name, value in sorted(environ.items())
        if (name in _NAMES or name.startswith(_PREFIXES))
        and not _SECRET_NAME.search(name)
        and not _SECRET_VALUE.search(value)
    }


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _gpu(properties: Any) -> dict[str, Any] | None:
    if properties is None:
        return None
    major, minor = getattr(properties, "major", None), getattr(properties, "minor", None)
    return {
        "name": _text(getattr(properties, "name", None)),
        "uuid": gpu_uuid(properties),
        "sm_count": getattr(properties, "multi_processor_count", None),
        "memory_bytes": getattr(properties, "total_memory", None),
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "compute_capability": None if major is None else f"{major}.{minor}",
    }


def _nccl_built() -> str | None:
    """The version that torch was built against."""
    with suppress(Exception):
        version = sys.modules["torch.cuda.nccl"].version()
        return ".".join(map(str, version))
    return None


def _nccl_loaded() -> str | None:
    """The version of the library in this process: it often is another than the build's."""
    # The program's own symbols first: there a preloaded library wins, as it does for torch.
    version = _answer_of(None)
    if version is None:
        with suppress(Exception):
            path = _mapped_nccl("/proc/self/maps")
            version = None if path is None else _answer_of(path)
    return version


def _answer_of(path: str | None) -> str | None:
    with suppress(Exception):
        # RTLD_NOLOAD: a handle of what is loaded; nothing is loaded for us.
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        number = ctypes.c_int(0)
        if library.ncclGetVersion(ctypes.byref(number)) == 0:
            return nccl_version(number.value)
    return None


def _mapped_nccl(maps: str) -> str | None:
    with open(maps, encoding="utf-8", errors="replace") as file:
        for line in file:
            fields = line.rstrip("\n").split(None, 5)
            name = os.path.basename(fields[5]) if len(fields) == 6 else ""
            if name.startswith(("libnccl.so", "librccl.so")):
                return fields[5]
    return None


def nccl_version(number: int) -> str:
    """NCCL's number as text: 21903 is 2.19.3, 2804 (before 2.9) is 2.8.4."""
    major_unit, minor_unit = (10_000, 100) if number >= 10_000 else (1000, 100)
    return f"{number // major_unit}.{number % major_unit // minor_unit}.{number % minor_unit}"
