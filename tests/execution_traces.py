"""Execution traces written by hand, as PyTorch's observer lays them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Tensor = tuple[list[Any], list[int], list[int]]
"""Its value as written, shape and strides."""


def tensor(
    identity: int,
    storage: int,
    shape: list[int],
    strides: list[int],
    *,
    offset: int = 0,
    item: int = 4,
    device: str = "cuda:0",
) -> Tensor:
    """A tensor; the number of elements is the product of the shape."""
    elements = 1
    for size in shape:
        elements *= size
    return [identity, storage, offset, elements, item, device], shape, strides


def node(
    function_id: int,
    name: str,
    schema: str = "",
    inputs: list[Any] | None = None,
    outputs: list[Any] | None = None,
    *,
    identity: int = 0,
    parent: int = 2,
    scope: int = 0,
) -> dict[str, Any]:
    """One operator. Inputs and outputs: tensors, lists of tensors, or plain values."""
    attributes = {"rf_id": function_id, "scope": scope, "op_schema": schema}
    return {
        "id": identity,
        "name": name,
        "ctrl_deps": parent,
        "inputs": _listed(inputs or []),
        "outputs": _listed(outputs or []),
        "attrs": [{"name": key, "type": "", "value": value} for key, value in attributes.items()],
    }


def document(*nodes: dict[str, Any], pid: int | None = 4000) -> str:
    """The text of a file."""
    content = {"schema": "1.1.1-chakra.0.0.4", "pid": pid, "nodes": list(nodes)}
    return json.dumps(content)


def write(folder: Path, *nodes: dict[str, Any], rank: int = 0, pid: int | None = 4000) -> Path:
    """A file beside the trace of a rank."""
    path = folder / f"rank{rank}.execution_trace.json"
    path.write_text(document(*nodes, pid=pid), encoding="utf-8")
    return path


def _listed(given: list[Any]) -> dict[str, Any]:
    parts = [_parts(value) for value in given]
    return {
        "values": [value for value, _, _ in parts],
        "shapes": [shape for _, shape, _ in parts],
        "types": ["" for _ in parts],
        "strides": [strides for _, _, strides in parts],
    }


def _parts(value: Any) -> tuple[Any, Any, Any]:
    if isinstance(value, tuple):
        return value
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return tuple(list(part) for part in zip(*value, strict=True))  # type: ignore[return-value]
    return value, [], []
