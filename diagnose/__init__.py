"""Find out why a distributed GPU training job is slower than it should be.

``import diagnose`` is cheap: everything else is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diagnose.in_code import record
    from diagnose.recording import Recording, load

__version__ = "0.1.0"
__all__ = ["Recording", "__version__", "load", "record"]

_LAZY = {
    "load": "diagnose.recording",
    "Recording": "diagnose.recording",
    "record": "diagnose.in_code",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError("module 'diagnose' has no attribute {!r}".format(name))


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_LAZY))
