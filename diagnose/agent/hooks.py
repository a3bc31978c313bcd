"""The one hook of the agent: behind every optimizer step, put in and taken out safely."""

from __future__ import annotations

import sys
from contextlib import suppress
from types import CodeType
from typing import Any

from .main_thread import edit_hooks
from .steps import StepClock


class OptimizerHook:
    """torch's global optimizer hook that drives a clock."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._handle: Any = None

    @property
    def active(self) -> bool:
        """Whether the steps of the process are being counted."""
        return self._handle is not None

    def install(self, timeout_s: float) -> bool:
        """Count from now on; False if there was no safe moment in the time."""
        if self._handle is not None:
            return True
        return edit_hooks(self.install_now, _walker(), timeout_s)

    def install_now(self) -> None:
        """Count from now on, at a moment when no optimizer of the process can be stepping."""
        _hide_from_compiler(StepClock.hook.__code__)
        optimizer = sys.modules["torch.optim.optimizer"]
        self._handle = optimizer.register_optimizer_step_post_hook(self._clock.hook)

    def remove(self, timeout_s: float) -> bool:
        """Count no more; False if there was no safe moment in the time."""
        if self._handle is None:
            return True
        return edit_hooks(self._remove_now, _walker(), timeout_s)

    def _remove_now(self) -> None:
        handle, self._handle = self._handle, None
        handle.remove()


def _walker() -> CodeType | None:
    """The code of torch that runs the hooks: the wrapper it puts around every ``step``."""
    with suppress(Exception):
        kind = sys.modules["torch.optim.optimizer"].Optimizer
        code = kind.profile_hook_step(lambda optimizer: optimizer).__code__
        return code if isinstance(code, CodeType) else None
    return None


def _hide_from_compiler(code: CodeType) -> None:
    """Where a compiled function steps an optimizer, its compiler would try to compile the hook.

    So this code, and what it calls, is marked to be run as it is. Costs nothing elsewhere.
    """
    with suppress(Exception):
        frames = sys.modules["torch"]._C._dynamo.eval_frame
        if hasattr(frames, "set_code_exec_strategy"):
            skip = frames._FrameAction.SKIP
            frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
        else:
            frames.skip_code(code)
