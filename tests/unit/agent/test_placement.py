"""Where a process may run: from trees of files as the kernel writes them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from diagnose.agent import environment
from diagnose.agent.placement import pci_address, placement

H200 = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def read(folder: Path, properties: object = H200) -> dict[str, object]:
    return placement(properties, proc=str(folder / "proc"), system=str(folder / "sys"))


def test_a_machine_of_two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(get_num_threads=lambda: 16))
    tree(
        tmp_path,
        {
            "proc/self/status": "Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t0-31,64-95\n"
            "Mems_allowed_list:\t0-1\n",
            "proc/sys/kernel/numa_balancing": "1\n",
            "sys/devices/system/cpu/online": "0-127\n",
            "sys/devices/system/node/node0/cpulist": "0-31,64-95\n",
            "sys/devices/system/node/node1/cpulist": "32-63,96-127\n",
            # Memory of a GPU, as Grace shows it: a node without CPUs.
            "sys/devices/system/node/node2/cpulist": "\n",
            "sys/devices/system/node/power/cpulist": "0\n",
            "sys/bus/pci/devices/0000:1b:00.0/numa_node": "1\n",
            "sys/bus/pci/devices/0000:1b:00.0/local_cpulist": "32-63,96-127\n",
        },
    )
    assert read(tmp_path) == {
        "allowed_cpus": "0-31,64-95",
        "online_cpus": "0-127",
        "node_cpus": {"0": "0-31,64-95", "1": "32-63,96-127"},
        "numa_balancing": 1,
        "gpu_pci": "0000:1b:00.0",
        "gpu_numa_node": 1,
        "gpu_cpus": "32-63,96-127",
        "num_threads": 16,
        "ranks_per_node": 8,
        "amd_links": None,
    }


def test_nothing_to_read_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    found = read(tmp_path)
    assert found.pop("gpu_pci") == "0000:1b:00.0"
    assert set(found.values()) == {None}


def test_a_gpu_of_no_node(tmp_path: Path) -> None:
    folder = "sys/bus/pci/devices/0000:1b:00.0"
    tree(tmp_path, {f"{folder}/numa_node": "-1\n", f"{folder}/local_cpulist": "0-3\n"})
    found = read(tmp_path)
    assert (found["gpu_numa_node"], found["gpu_cpus"]) == (None, "0-3")


@pytest.mark.parametrize("text", ["", "0-3,", "all", "0-3\n4-7", "1," * 3000 + "1"])
def test_a_list_that_is_none_is_left_out(tmp_path: Path, text: str) -> None:
    tree(tmp_path, {"sys/devices/system/cpu/online": text})
    assert read(tmp_path)["online_cpus"] is None


@pytest.mark.parametrize(
    ("properties", "address"),
    [
        (H200, "0000:1b:00.0"),
        (SimpleNamespace(pci_domain_id=1, pci_bus_id=0xC3, pci_device_id=2), "0001:c3:02.0"),
        (SimpleNamespace(name="an older torch"), None),
        (SimpleNamespace(pci_domain_id=0, pci_bus_id=-1, pci_device_id=0), None),
        (None, None),
    ],
)
def test_the_address_as_the_kernel_writes_it(properties: object, address: str | None) -> None:
    assert pci_address(properties) == address


NODES = "sys/class/kfd/kfd/topology/nodes"
CPU = {f"{NODES}/0/gpu_id": "0\n"}


def link(node: int, kind: str, number: int, link_type: int, to: int) -> dict[str, str]:
    text = f"type {link_type}\nversion_major 0\nnode_from {node}\nnode_to {to}\nweight 20\n"
    return {f"{NODES}/{node}/{kind}/{number}/properties": text}


def gpus(*more: dict[str, str]) -> dict[str, str]:
    """Two GPUs, nodes 1 and 2, each with a PCIe link to the CPU, node 0, and others."""
    files = CPU | {f"{NODES}/{node}/gpu_id": f"{4000 + node}\n" for node in (1, 2)}
    for node in (1, 2):
        files |= link(node, "io_links", 0, 2, 0)
    for one in more:
        files |= one
    return files


def test_gpus_without_a_direct_link(tmp_path: Path) -> None:
    found = read(tree(tmp_path, gpus()))
    assert found["amd_links"] == {"num_gpus": 2, "num_xgmi": 0, "num_pcie": 0}


def test_gpus_with_xgmi_or_over_pcie(tmp_path: Path) -> None:
    xgmi = gpus(link(1, "io_links", 1, 11, 2), link(2, "io_links", 1, 11, 1))
    found = read(tree(tmp_path / "a", xgmi))
    assert found["amd_links"] == {"num_gpus": 2, "num_xgmi": 2, "num_pcie": 0}
    pcie = gpus(link(1, "p2p_links", 0, 2, 2), link(2, "p2p_links", 0, 2, 1))
    found = read(tree(tmp_path / "b", pcie))
    assert found["amd_links"] == {"num_gpus": 2, "num_xgmi": 0, "num_pcie": 2}


def test_damaged_topology_does_not_raise(tmp_path: Path) -> None:
    files = gpus({f"{NODES}/1/io_links/0/properties": "type eleven\nnode_to\n\x00"})
    found = read(tree(tmp_path, files | {f"{NODES}/generation": "x"}))
    assert found["amd_links"] == {"num_gpus": 2, "num_xgmi": 0, "num_pcie": 0}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc of Linux")
def test_this_process() -> None:
    found = environment.collect(None)["placement"]
    import os

    numbers = set()
    for part in found["allowed_cpus"].split(","):
        low, _, high = part.partition("-")
        numbers |= set(range(int(low), int(high or low) + 1))
    assert numbers == os.sched_getaffinity(0)
    assert found["gpu_pci"] is None
