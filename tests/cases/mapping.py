"""Cases of kind ``attach``: which GPU of the driver each CUDA number means.

``input.json`` describes a machine and environments; ``expect.mapping`` gives, for each,
the driver's numbers in CUDA's order, "unknown", or the parent of a MIG instance.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diagnose.telemetry import GpuIdentity, MigIdentity, VisibleDevice, visible_devices


def failures(files: list[Path], expect: dict[str, Any]) -> Iterator[str]:
    """What does not hold of one ``expect``; a key or an environment not known is a failure."""
    if expect.keys() != {"mapping"} or len(files) != 1:
        yield f"only a mapping of one file is known, not {sorted(expect)} of {len(files)} files"
        return
    machine = json.loads(files[0].read_text())
    expected = expect["mapping"]
    environments = {case["name"]: case for case in machine["cases"]}
    if environments.keys() != expected.keys():
        yield f"expected {sorted(expected)}, there are {sorted(environments)}"
        return
    for name, environment in environments.items():
        found = _in_words(_devices(machine, environment))
        if found != expected[name]:
            yield f"{name}: {found}, expected {expected[name]}"


def _devices(machine: dict[str, Any], environment: dict[str, Any]) -> list[VisibleDevice] | None:
    gpus = [
        GpuIdentity(one["nvml_index"], one["uuid"], one.get("pci_bus_id"), one.get("name"))
        for one in machine["nvml_devices"]
    ]
    instances = machine.get("mig_devices", [])
    return visible_devices(
        environment["env"].get("CUDA_VISIBLE_DEVICES"),
        gpus,
        device_order=environment["env"].get("CUDA_DEVICE_ORDER"),
        torch_uuids=environment.get("torch_uuids"),
        mig_devices=[MigIdentity(one["uuid"], one["parent_nvml_index"]) for one in instances],
    )


def _in_words(devices: list[VisibleDevice] | None) -> Any:
    if devices is None:
        return "unknown"
    return [{"parent": d.index, "mig": True} if d.mig else d.index for d in devices]
