"""The cooperative way in: counts steps from the first one on, and is reachable when needed.

``enable`` puts a finder in front of the import system and does nothing else: a process that
never imports torch notices nothing. When torch's optimizer module has been executed the hook is
registered (on the importing thread; no optimizer can be stepping yet). Thread and socket come
with the first sign of a rank, so launchers and data-loader workers never get any:

- the first optimizer step,
- a process group that was initialised,
- CUDA that was initialised (inference in a single process).

What shows none of them (inference on the CPU without a process group) is left alone;
``diagnose attach`` injects an agent there.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

VARIABLE = "DIAGNOSE_AGENT"
CHECK_SYNC = "DIAGNOSE_CHECK_SYNC"  # see ``sanitizer``, which only such a job loads


def enable() -> None:
    """Watch for torch, once, if the environment asks for it (``DIAGNOSE_AGENT=1``)."""
    if os.environ.get(VARIABLE) != "1":
        return
    if not any(isinstance(finder, _TorchFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TorchFinder())


class _TorchFinder(MetaPathFinder):
    """Finds nothing itself: lets the others find, and acts when the module has been executed."""

    def __init__(self) -> None:
        self._actions: dict[str, Callable[[Any], None]] = {
            "torch.optim.optimizer": _count_steps,
            "torch.distributed.distributed_c10d": _watch_process_group,
            "torch.cuda": _watch_cuda,
        }
        if os.environ.get(CHECK_SYNC):
            self._actions["torch.cuda._sanitizer"] = _watch_races

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        action = self._actions.pop(fullname, None)
        if action is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                with suppress(Exception):
                    _act_after(spec, action)
                return spec
        return None


def _act_after(spec: ModuleSpec, action: Callable[[Any], None]) -> None:
    loader: Any = spec.loader
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        with suppress(AttributeError):
            del loader.exec_module  # the loader is as it was before its module runs
        execute(module)
        with suppress(Exception):
            action(module)

    loader.exec_module = exec_module


def _count_steps(_module: Any) -> None:
    from . import server

    agent = server.prepare()
    agent.hook.install_now()
    agent.clock.on_first = _open
    os.register_at_fork(after_in_child=_start_over)


def _watch_process_group(module: Any) -> None:
    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _open()
        return result

    module.init_process_group = init_process_group


def _watch_cuda(module: Any) -> None:
    module._lazy_call(_open)
    if os.environ.get(CHECK_SYNC):
        from . import sanitizer

        sanitizer.note_if_missing(module)


def _watch_races(module: Any) -> None:
    from . import sanitizer

    sanitizer.watch(module)


def _open() -> None:
    """Be reachable from now on."""
    from . import server

    with suppress(Exception):
        agent = server.prepare()
        agent.open()
        if os.environ.get("DIAGNOSE_STORE") == "1":
            from . import store  # for jobs on several hosts, and only where it is asked for

            store.listen(agent.socket_path)


def _start_over() -> None:
    """In the child of a fork: the thread is the parent's, and so is the count of steps."""
    from . import server

    with suppress(Exception):
        server.start_over_in_child()
        server.prepare().clock.on_first = _open
