"""What the sanitizer saw of one process, as JSON lines in ``PID.jsonl``.

Each race once (``race``), how often it came again and in which steps (``again``), how far the
process is (``step``), and at its end what was watched (``end``). Appended line by line: the
process may die any time. Bounded, whatever the job does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_MOST_RACES = 1000
_MOST_FRAMES = 32
_MOST_STEPS = 100
_MOST_TEXT = 1000
_MOST_BYTES = 32 << 20
"""After that only the end is written: at most a megabyte or so."""


class RaceLog:
    """The file of this process in ``folder``; one object for each process."""

    def __init__(self, folder: str) -> None:
        self.left_out = 0
        self._path = os.path.join(folder, f"{os.getpid()}.jsonl")
        self._bytes = 0
        self._known: dict[tuple[Any, ...], int] = {}
        self._counts: list[int] = []
        self._seen_in: list[list[int]] = []
        self._changed: set[int] = set()
        torch = getattr(sys.modules.get("torch"), "__file__", None) or ""
        here = os.path.dirname(os.path.abspath(__file__))
        self._foreign = (os.path.dirname(os.path.abspath(torch)) + os.sep, here + os.sep, "<frozen")

    def race(self, error: Any, step: int, device: Callable[[], int | None]) -> None:
        """Note one report of the sanitizer, made in ``step`` (counted from 1)."""
        second, first = error.current_access, error.previous_access
        stacks = self._own(second.stack_trace), self._own(first.stack_trace)
        key = (
            str(second.operator),
            str(first.operator),
            second.type.name,
            first.type.name,
            second.stream,
            first.stream,
            *(tuple(stack[-1]) if stack else None for stack in stacks),
        )
        number = self._known.get(key)
        if number is None:
            if len(self._known) >= _MOST_RACES or self._bytes > _MOST_BYTES:
                self.left_out += 1
                return
            number = self._known[key] = len(self._known)
            self._counts.append(0)
            self._seen_in.append([])
            self.write(
                kind="race",
                id=number,
                step=step,
                device=device(),
                data_ptr=int(error.data_ptr),
                second=_access(second, stacks[0]),
                first=_access(first, stacks[1]),
                allocated=self._own(error.allocation_stack_trace),
            )
        self._counts[number] += 1
        steps = self._seen_in[number]
        if len(steps) < _MOST_STEPS and (not steps or steps[-1] != step):
            steps.append(step)
        self._changed.add(number)

    def counts(self, *, last: bool) -> None:
        """Write how often each race was seen that was seen since; ``last``: room or not."""
        if self._bytes > _MOST_BYTES and not last:
            return
        changed, self._changed = sorted(self._changed), set()
        for number in changed:
            steps = self._seen_in[number]
            self.write(kind="again", id=number, count=self._counts[number], steps=steps)

    def write(self, **fields: Any) -> None:
        """Append one line, whole or not at all where there is no room; never raises OSError."""
        data = (json.dumps({"pid": os.getpid(), **fields}) + "\n").encode("ascii")
        if self._bytes > _MOST_BYTES and fields["kind"] not in ("again", "end"):
            return
        with suppress(OSError), open(self._path, "ab", buffering=0) as file:
            file.write(data)
            self._bytes += len(data)

    def _own(self, stack: Any) -> list[list[Any]]:
        """File, line and function of the frames that are neither torch's nor ours; innermost last.

        Empty where there are none: the backward pass runs operators without a Python frame.
        """
        frames = [
            [_text(frame.filename), int(frame.lineno or 0), _text(frame.name)]
            for frame in stack or ()
            if not str(frame.filename).startswith(self._foreign)
        ]
        return frames[-_MOST_FRAMES:]


def _access(access: Any, stack: list[list[Any]]) -> dict[str, Any]:
    return {
        "operator": _text(access.operator),
        "stream": int(access.stream),
        "writes": access.type.name == "WRITE",
        "arguments": [_text(name) for name in list(access.aliases)[:_MOST_FRAMES]],
        "output": bool(access.is_output),
        "stack": stack,
    }


def _text(value: Any) -> str:
    return str(value)[:_MOST_TEXT]
