from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from diagnose.agent import environment, rank


def test_only_the_allow_list() -> None:
    shown = environment.variables(
        {
            "NCCL_ALGO": "Ring",
            "CUDA_VISIBLE_DEVICES": "0,1",
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            "HOME": "/root",
            "AWS_ACCESS_KEY_ID": "x",
            "USER": "me",
            "PATH": "/bin",
        }
    )
    assert shown == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_ALGO": "Ring",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_NET_TOKEN", "x"),
        ("UCX_SECRET", "x"),
        ("CUDA_PASSWORD", "x"),
        ("MKL_API_KEY", "x"),
        ("FI_OPX_AUTH", "x"),
        ("NCCL_KEY", "x"),
        ("NCCL_PRIVATE_DATA", "x"),
        ("NCCL_NET_PLUGIN", "https://me:hunter2@host/path"),
        ("NCCL_CONF_FILE", "AKIAIOSFODNN7EXAMPLE"),
        ("NCCL_CONF_FILE", "ghp_0123456789abcdefghij"),
        ("NCCL_CONF_FILE", "Bearer abc"),
        ("NCCL_CONF_FILE", "https://0123456789abcdef@host/path"),
        ("NCCL_CONF_FILE", "sk-proj-0123456789abcdef"),
        ("NCCL_CONF_FILE", "glpat-0123456789"),
        ("NCCL_net_token", "x"),
        ("UCX_CONFIG", "password=hunter2"),
        ("NCCL_DEBUG_FILE", "-----BEGIN RSA PRIVATE KEY-----"),
    ],
)
def test_what_looks_like_a_credential_is_left_out(name: str, value: str) -> None:
    assert environment.variables({name: value}) == {}


@pytest.mark.parametrize("name", ["NCCL_IB_HCA", "CUDA_MODULE_LOADING", "OMP_NUM_THREADS"])
def test_what_looks_like_none_is_kept(name: str) -> None:
    assert environment.variables({name: "=mlx5_0:1,mlx5_1:1"}) == {name: "=mlx5_0:1,mlx5_1:1"}


def test_values_are_cut() -> None:
    assert environment.variables({"NCCL_TOPO_FILE": "x" * 1000}) == {"NCCL_TOPO_FILE": "x" * 200}


@pytest.mark.parametrize(
    ("number", "text"),
    [(2804, "2.8.4"), (20908, "2.9.8"), (21903, "2.19.3"), (22809, "2.28.9"), (23102, "2.31.2")],
)
def test_nccl_version(number: int, text: str) -> None:
    assert environment.nccl_version(number) == text


def test_loaded_nccl_is_found_in_the_maps(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 123                        /usr/lib/libc.so.6\n"
        "7f02-7f03 rw-p 00000000 00:00 0 \n"
        "7f04-7f05 r-xp 00000000 08:01 456                        /opt/my libs/libnccl.so.2.31.2\n"
    )
    assert environment._mapped_nccl(str(maps)) == "/opt/my libs/libnccl.so.2.31.2"
    maps.write_text("7f00-7f01 r-xp 00000000 08:01 123 /opt/libnccl-net.so\n")
    assert environment._mapped_nccl(str(maps)) is None


class Cuda(SimpleNamespace):
    def get_device_properties(self, device: int) -> SimpleNamespace:
        assert device == 3
        return SimpleNamespace(
            name="NVIDIA H200",
            uuid="1b9c-22",
            multi_processor_count=132,
            total_memory=150109880320,
            L2_cache_size=62914560,
            major=9,
            minor=0,
        )


def test_gpu_of_the_training_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.cuda", Cuda(is_initialized=lambda: True))
    assert environment.collect(3)["gpu"] == {
        "name": "NVIDIA H200",
        "uuid": "GPU-1b9c-22",
        "sm_count": 132,
        "memory_bytes": 150109880320,
        "l2_bytes": 62914560,
        "compute_capability": "9.0",
    }
    assert environment.collect(None)["gpu"] is None


def test_cuda_is_not_started_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.cuda", Cuda(is_initialized=lambda: False))
    assert environment.collect(3)["gpu"] is None


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, (5, 1, 8)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, (2, None, 4)),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"}, (0, 0, 2)),
        ({"RANK": "-1"}, (None, None, None)),
        ({"RANK": "", "PMI_RANK": "3"}, (3, None, None)),
        ({}, (None, None, None)),
    ],
)
def test_rank_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], place: tuple[int | None, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    for name in (*rank._RANK, *rank._LOCAL_RANK, *rank._WORLD_SIZE):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = rank.place()
    assert (found["rank"], found["local_rank"], found["world_size"]) == place
    assert found["backend"] is None


def test_the_process_group_knows_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    group = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 6,
        get_world_size=lambda: 16,
        get_backend=lambda: "nccl",
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    found = rank.place()
    assert (found["rank"], found["world_size"], found["backend"]) == (6, 16, "nccl")


def test_a_preloaded_nccl_wins_over_the_one_that_torch_brought(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    for name, number in (("brought", 22809), ("preloaded", 23102)):
        (tmp_path / name).mkdir()
        source = tmp_path / f"{name}.c"
        source.write_text(f"int ncclGetVersion(int *v) {{ *v = {number}; return 0; }}\n")
        library = tmp_path / name / "libnccl.so.2"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    script = (
        "import ctypes, sys; ctypes.CDLL(sys.argv[1])\n"
        "from diagnose.agent import environment; print(environment._nccl_loaded())"
    )
    line = [sys.executable, "-c", script, str(tmp_path / "brought" / "libnccl.so.2")]
    preload = {**os.environ, "LD_PRELOAD": str(tmp_path / "preloaded" / "libnccl.so.2")}
    for environ, version in ((preload, "2.31.2"), (dict(os.environ), "2.28.9")):
        done = subprocess.run(line, env=environ, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == version
