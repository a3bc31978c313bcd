"""What a job ran on, from what its processes said: GPU, versions. Untrusted, so shown plain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from diagnose.trace import Source, Trace
from diagnose.wording.plain import plain

_WIDTH = 40
_MOST_VALUES = 3


def _within(values: Mapping[str, Any], *keys: str) -> Any:
    found: Any = values
    for key in keys:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def _gpu_name(source: Source) -> Any:
    named = _within(source.environment, "gpu", "name")
    if named is not None:
        return named
    devices = source.metadata.get("deviceProperties")
    if isinstance(devices, list) and devices and isinstance(devices[0], Mapping):
        return devices[0].get("name")
    return None


def _nccl(source: Source) -> Any:
    built = _within(source.environment, "nccl")
    return (
        built if built is not None else _within(source.metadata, "distributedInfo", "nccl_version")
    )


_SAYS: tuple[tuple[str, Callable[[Source], Any]], ...] = (
    ("", _gpu_name),
    ("torch", lambda source: _within(source.environment, "torch")),
    ("CUDA", lambda source: _within(source.environment, "cuda")),
    ("NCCL", _nccl),
    ("NCCL loaded:", lambda source: _within(source.environment, "nccl_loaded")),
)


def software(trace: Trace, *, unicode: bool) -> tuple[str, ...]:
    """Like ``NVIDIA H200``, ``torch 2.11.0``; where processes differ, their different answers."""
    said = []
    for label, ask in _SAYS:
        answers = {str(a) for a in map(ask, trace.sources) if isinstance(a, (str, int, float))}
        if answers:
            shown = [plain(a, _WIDTH, unicode=unicode) for a in sorted(answers)[:_MOST_VALUES]]
            more = " ..." if len(answers) > _MOST_VALUES else ""
            said.append(f"{label} {' / '.join(shown)}{more}".strip())
    return tuple(said)
