"""What launchers tell a process through its environment: its rank, and which job it belongs to.

Sources: torch.distributed.run (elastic agent), DeepSpeed's launcher, Accelerate, Lightning,
Open MPI and PMIx (``mpirun --help``), MPICH's Hydra and Intel MPI (PMI), MVAPICH,
``srun``'s manual page, Kubeflow's PyTorchJob. Slurm, MPI and Kubernetes: not run on hardware.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MOST_RANKS = 10**7
# Run identifiers that say nothing: torchrun's default, and the random ones of --standalone.
_NO_NAME = re.compile(r"none|[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}", re.IGNORECASE)
# Steps that `srun` did not start: batch script, extern, interactive, pending (SLURM_BATCH_SCRIPT
# and its neighbours in slurm.h).
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
_POD = re.compile(r"(.+?)-(?:master|worker|node|launcher)-\d+(?:[.-].*)?")


@dataclass(frozen=True)
class Placement:
    """Where a launcher put a process. None: it does not say."""

    launcher: str
    rank: int | None
    local_rank: int | None
    world_size: int | None
    run: str
    """What names the run for people; empty if nothing does."""
    identity: tuple[str, ...]
    """What all ranks of the job share, on every host, and ranks of other jobs do not."""
    meeting_point: str = ""
    """MASTER_ADDR:MASTER_PORT."""

    @property
    def is_final(self) -> bool:
        """Whether the process itself must be the rank: what it starts is part of it.

        A task of ``srun`` or ``mpirun``, or a pod with RANK alone, may start several ranks.
        """
        return self.identity[0] == "torch" and self.local_rank is not None

    @property
    def meets_locally(self) -> bool:
        """Whether the meeting point names another machine in every network namespace."""
        host = self.meeting_point.rpartition(":")[0].strip("[]")
        return not host or host in ("localhost", "::1") or host.startswith("127.")


def placement(environ: Mapping[str, str]) -> Placement | None:
    """What the environment says; None if no launcher that is known left a trace.

    What comes first is nearest to the process: torchrun under ``srun`` sets RANK,
    and the variables of Slurm then number its own tasks.
    """
    for read in (_torch, _open_mpi, _mvapich, _pmi, _slurm, _lightning):
        found = read(environ)
        if found is not None:
            return found
    return None


def _torch(environ: Mapping[str, str]) -> Placement | None:
    rank, world = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    if rank is None or world is None or rank >= world:
        return None
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    return Placement(
        _torch_launcher(environ),
        rank,
        _number(environ, "LOCAL_RANK"),
        world,
        run if run and not _NO_NAME.fullmatch(run) else _site_name(environ),
        ("torch", run, _meeting_point(environ), str(world)),
        _meeting_point(environ),
    )


def _torch_launcher(environ: Mapping[str, str]) -> str:
    if "ACCELERATE_MIXED_PRECISION" in environ or "ACCELERATE_DYNAMO_BACKEND" in environ:
        return "accelerate"
    if "TORCHELASTIC_RUN_ID" in environ:
        return "torchrun"
    if "CROSS_RANK" in environ and "CROSS_SIZE" in environ:
        return "deepspeed"
    return "kubernetes" if "KUBERNETES_SERVICE_HOST" in environ else "environment"


def _open_mpi(environ: Mapping[str, str]) -> Placement | None:
    names = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"
    identity = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid", "")
    return _numbered(environ, "openmpi", names, ("openmpi", identity))


def _mvapich(environ: Mapping[str, str]) -> Placement | None:
    names = "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_SIZE"
    return _numbered(environ, "mvapich", names, ("mvapich",))


def _pmi(environ: Mapping[str, str]) -> Placement | None:
    rank = _number(environ, "PMI_RANK")
    if rank is None:
        rank = _number(environ, "PMIX_RANK")
    if rank is None or rank == _number(environ, "SLURM_PROCID"):
        return None  # `srun --mpi=...` speaks PMI too; its own variables say more
    identity = environ.get("PMIX_NAMESPACE") or environ.get("PMI_PORT", "")
    world = _number(environ, "PMI_SIZE")
    if world is not None and rank >= world:
        return None
    return Placement(
        "mpich" if "PMI_RANK" in environ else "pmix",
        rank,
        _number(environ, "MPI_LOCALRANKID"),
        world,
        _site_name(environ),
        ("pmi", identity, _meeting_point(environ), str(world)),
        _meeting_point(environ),
    )


def _slurm(environ: Mapping[str, str]) -> Placement | None:
    step = _number(environ, "SLURM_STEP_ID", most=2**32)
    if step is None or step >= _FIRST_SPECIAL_STEP:
        return None  # the batch script itself has SLURM_PROCID=0 as well
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    identity = ("slurm", environ.get("SLURM_JOB_ID", ""), str(step))
    return _numbered(environ, "slurm", ("SLURM_PROCID", "SLURM_LOCALID", size), identity)


def _lightning(environ: Mapping[str, str]) -> Placement | None:
    """Lightning starts ranks 1, 2, ... of a node itself and sets no RANK."""
    local, world = _number(environ, "LOCAL_RANK"), _number(environ, "WORLD_SIZE")
    if local is None or world is None or "NODE_RANK" not in environ:
        return None
    first_node = _number(environ, "NODE_RANK") == 0
    point = _meeting_point(environ)
    return Placement(
        "lightning",
        local if first_node else None,
        local,
        world,
        _site_name(environ),
        ("lightning", point, str(world)),
        point,
    )


def _numbered(
    environ: Mapping[str, str],
    launcher: str,
    names: tuple[str, str, str],
    identity: tuple[str, ...],
) -> Placement | None:
    rank, local_rank, world = (_number(environ, name) for name in names)
    if rank is None or world is None or rank >= world:
        return None
    point = _meeting_point(environ)
    identity = (*identity, point, str(world))
    return Placement(launcher, rank, local_rank, world, _site_name(environ), identity, point)


def _site_name(environ: Mapping[str, str]) -> str:
    """The name of the Slurm job, or of the Kubernetes job by the name of its first pod."""
    if job := environ.get("SLURM_JOB_ID"):
        return f"slurm-{job}"
    if "KUBERNETES_SERVICE_HOST" in environ:
        for name in ("PET_MASTER_ADDR", "MASTER_ADDR", "HOSTNAME"):
            if match := _POD.fullmatch(environ.get(name, "")):
                return match.group(1)
    return ""


def _meeting_point(environ: Mapping[str, str]) -> str:
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    return f"{host}:{port}" if host or port else ""


def _number(environ: Mapping[str, str], name: str, most: int = MOST_RANKS) -> int | None:
    text = environ.get(name, "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        return None
    value = int(text)
    return value if value <= most else None
