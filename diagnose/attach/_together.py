"""The same call for many ranks at once, each answer as it comes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from diagnose.errors import RecordingError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def together(
    items: Sequence[_Item], call: Callable[[_Item], _Result]
) -> Iterator[tuple[_Item, _Result | RecordingError]]:
    """Call with each item in a thread of its own; yield results and refusals as they come.

    Any other error is a defect and raised here. The threads are daemons: who stops
    listening (Ctrl-C) has to end what they wait for, not to wait for them.
    """
    answers: queue.SimpleQueue[tuple[_Item, _Result | BaseException]] = queue.SimpleQueue()

    def work(item: _Item) -> None:
        try:
            answers.put((item, call(item)))
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            answers.put((item, error))

    for number, item in enumerate(items):
        threading.Thread(target=work, args=(item,), name=f"rank-{number}", daemon=True).start()
    for _ in items:
        item, answer = answers.get()
        if isinstance(answer, BaseException) and not isinstance(answer, RecordingError):
            raise answer
        yield item, answer
