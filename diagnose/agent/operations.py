"""What a controller may ask for: one method or function for each operation of the protocol."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from . import AGENT_VERSION, environment, rank
from .conversation import Conversation
from .hooks import OptimizerHook
from .protocol import BAD_REQUEST, PROTOCOL, RefusalError, number_of
from .recorder import Recorder, lists
from .steps import StepClock


class Operations:
    """The operations of one agent."""

    def __init__(
        self, clock: StepClock, hook: OptimizerHook, recorder: Recorder, *, injected: bool
    ) -> None:
        self._clock = clock
        self._hook = hook
        self._recorder = recorder
        self._injected = injected
        self._operations: dict[str, Callable[[dict[str, Any], Conversation], dict[str, Any]]] = {
            "status": self._status,
            "steps": self._steps,
            "environment": self._environment,
            "arm": recorder.arm,
            "go": recorder.go,
            "after": recorder.after,
            "execution_trace": recorder.trace_execution,
            "cancel": self._cancel,
            "detach": self._cancel,
        }

    def perform(self, request: dict[str, Any], conversation: Conversation) -> dict[str, Any]:
        """The reply to a request. Raises GoneError if the controller leaves meanwhile."""
        operation = self._operations.get(request["op"])
        try:
            if operation is None:
                raise RefusalError(BAD_REQUEST, f"there is no op {request['op'][:40]!r}")
            return {"ok": True, **operation(request, conversation)}
        except RefusalError as refusal:
            return refusal.reply()

    def _status(self, _request: dict[str, Any], _conversation: Conversation) -> dict[str, Any]:
        device = self._clock.cuda_device
        return {
            "protocol": PROTOCOL,
            "agent": AGENT_VERSION,
            "pid": os.getpid(),
            **rank.place(),
            "host": socket.gethostname(),
            "torch": rank.torch_version(),
            "step": self._clock.step,
            "hooked": self._hook.active,
            "injected": self._injected,
            "state": self._recorder.state,
            "step_ns": self._clock.interval_ns(),
            "cuda_device": device,
            "gpu_uuid": rank.gpu_uuid(rank.gpu_properties(device)),
        }

    def _steps(self, request: dict[str, Any], _conversation: Conversation) -> dict[str, Any]:
        since = number_of(request, "since", 0, 0, 2**63)
        return {"marks": lists(self._clock.marks(int(since)))}

    def _environment(self, _request: dict[str, Any], _conversation: Conversation) -> dict[str, Any]:
        return {"environment": environment.collect(self._clock.cuda_device)}

    def _cancel(self, _request: dict[str, Any], _conversation: Conversation) -> dict[str, Any]:
        self._recorder.disarm()
        return {}
