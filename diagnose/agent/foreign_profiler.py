"""Never two profilers in one process, and the job's own always wins.

PyTorch's profiler is a single session of the process. A second start steals it silently, and
exporting the loser crashes. So from *before* we look whether the job is profiling until our
window is over, the places where any profiler starts tell us first, and ours ends before theirs
begins.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_ENTRANCES = (("profile", "_prepare_trace"), ("emit_nvtx", "__enter__"), ("emit_itt", "__enter__"))


class Guard:
    """Calls ``foreign`` before a profiler that is not ours starts, on the thread that starts it."""

    def __init__(self, is_ours: Callable[[Any], bool], foreign: Callable[[], None]) -> None:
        self._is_ours = is_ours
        self._foreign = foreign
        self._active = False
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def install(self) -> None:
        """From now on. Raises AttributeError where torch has no such entrance."""
        autograd = sys.modules["torch.autograd.profiler"]
        self._active = True
        for kind, name in _ENTRANCES:
            owner = getattr(autograd, kind, None)
            if owner is None and kind != "profile":
                continue
            original = vars(owner)[name]
            guarded = self._guarded(original)
            setattr(owner, name, guarded)
            self._replaced.append((owner, name, original, guarded))

    def remove(self) -> None:
        """Until now. A wrapper that somebody else put around ours stays, and ours is passive."""
        self._active = False
        while self._replaced:
            owner, name, original, guarded = self._replaced.pop()
            if vars(owner).get(name) is guarded:
                setattr(owner, name, original)

    def _guarded(self, original: Any) -> Any:
        @functools.wraps(original)
        def guarded(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            if self._active and not self._is_ours(profiler):
                with suppress(Exception):
                    self._foreign()
            return original(profiler, *args, **kwargs)

        return guarded


def working() -> str | None:
    """Why a window cannot start: the job's own profiler is recording or warming up; else None.

    May look at every object of the process, as a full garbage collection does and for about
    as long, but only in a process that has made a torch.profiler.profile at all.
    """
    autograd = sys.modules["torch.autograd.profiler"]
    if getattr(autograd, "_is_profiler_enabled", False) or _session_active():
        return "the job's own profiler is recording"
    if not _may_exist(autograd):
        return None
    profile: Any = getattr(sys.modules["torch.profiler"], "profile", None)
    session: Any = getattr(autograd, "profile", None)
    for found in _instances((profile, session)):
        with suppress(Exception):
            if isinstance(found, session):
                warming = found.entered and found.kineto_results is None
            else:
                warming = _is_warming(found)
            if warming:
                return "the job's own profiler is warming up"
    return None


def _session_active() -> bool:
    with suppress(Exception):
        return bool(sys.modules["torch"]._C._autograd._profiler_enabled())
    return False


def _may_exist(autograd: Any) -> bool:
    """Whether a torch.profiler.profile was made and not left: torch counts steps for it then."""
    try:
        return "ProfilerStep" in autograd.KinetoStepTracker._step_dict
    except AttributeError:
        return True


def _is_warming(scheduled: Any) -> bool:
    action = getattr(scheduled.current_action, "name", "")
    running = scheduled.profiler is not None and scheduled.profiler.kineto_results is None
    return running and action in ("WARMUP", "RECORD", "RECORD_AND_SAVE")


def _instances(kinds: tuple[Any, ...]) -> list[Any]:
    """The living objects of these classes and of those derived from them."""
    # An object refers to its class. A list of all objects instead (gc.get_objects) would keep
    # alive what the job lets go of meanwhile: its tensors, and so the GPU's memory.
    wanted = {kind for kind in kinds if isinstance(kind, type)}
    for kind in list(wanted):
        wanted |= _derived(kind)
    if not wanted:
        return []
    # By type(), never isinstance(): that would wake lazy proxies of the job.
    return [found for found in gc.get_referrers(*wanted) if type(found) in wanted]


def _derived(kind: type) -> set[type]:
    found: set[type] = set(type.__subclasses__(kind))
    for derived in list(found):
        found |= _derived(derived)
    return found
