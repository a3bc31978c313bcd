"""Calls are answered one after the other, beside the conversation.

A thread of its own, because a call may take minutes and the client may meanwhile ask for a sign
of life, take a call back or leave. It is a daemon: nobody waits for a reader of a file of many
gigabytes when the client is gone.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from diagnose.assistant.shelf import Progress
from diagnose.assistant.tools import Answer

Call = Callable[[Progress], Answer]
_GONE = Answer("", is_error=True)


class _TakenBackError(BaseException):
    """Raised inside of a reader whose result nobody waits for; it catches every Exception."""


class _Job(NamedTuple):
    call: Call
    answer: Future[Answer]
    taken_back: threading.Event


class OneAtATime:
    """Runs calls in the order in which they come."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._waiting: set[asyncio.Future[Answer]] = set()
        self.left = False
        threading.Thread(target=self._work, daemon=True, name="answers").start()

    async def answer(self, call: Call) -> Answer:
        """The answer of a call. Taken back, it ends at the next piece that is read."""
        job = _Job(call, Future(), threading.Event())
        waiting = asyncio.wrap_future(job.answer)
        self._waiting.add(waiting)
        self._jobs.put(job)
        try:
            return await waiting
        except asyncio.CancelledError:
            if self.left:
                return _GONE
            raise
        finally:
            self._waiting.discard(waiting)
            job.taken_back.set()

    def leave(self) -> None:
        """The client is gone: everybody who waits gets an empty answer."""
        self.left = True
        for waiting in self._waiting:
            waiting.cancel()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job.taken_back.is_set() or not job.answer.set_running_or_notify_cancel():
                continue

            def progress(num_bytes: int, taken_back: threading.Event = job.taken_back) -> None:
                del num_bytes
                if taken_back.is_set():
                    raise _TakenBackError

            try:
                answer = job.call(progress)
            except _TakenBackError:
                continue
            except BaseException as problem:  # noqa: BLE001 - whoever waits must be told
                job.answer.set_exception(problem)
                continue
            job.answer.set_result(answer)
