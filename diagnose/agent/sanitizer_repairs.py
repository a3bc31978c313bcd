"""What PyTorch's sanitizer gets wrong in whole jobs, put right: crashes, false alarms, blindness.

Wrappers around its own functions; seen with PyTorch 2.11 and 2.13.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def where_cuda_runs(original: Any) -> Any:
    """The sanitizer asks CUDA at each operator, which fails where CUDA does not run.

    So it would end every data-loader worker (a fork, in which CUDA cannot be used) and every
    job on the CPU. Where CUDA does not run no operator can touch memory of a GPU, but for the
    one that starts it. While a graph is captured nothing runs, so that nothing is ordered.

    A tensor that only wraps others (DTensor, as of FSDP2) has no memory: the sanitizer would miss
    theirs, and take its ``id``, given out again, for memory. It is unwrapped before.
    """

    @functools.wraps(original)
    def dispatch(
        mode: Any, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        cuda = sys.modules["torch.cuda"]
        runs = cuda.is_initialized()
        if (not runs and not _starts_cuda(kwargs)) or (runs and _captures(cuda)):
            return func(*args, **(kwargs or {}))
        if not hasattr(func, "_schema") or any(one.__name__ == "FakeTensor" for one in types):
            # Of higher order, as cond, whose inside goes unseen; or without any memory.
            return func(*args, **(kwargs or {}))
        if any(hasattr(one, "__tensor_flatten__") for one in types):
            return NotImplemented  # torch asks the class, and comes here with what is inside
        return original(mode, func, types, args, kwargs)

    # As torch does for each such mode: else torch.compile compiles this function.
    with suppress(Exception):
        return sys.modules["torch"]._disable_dynamo(dispatch, recursive=True)
    return dispatch


def _starts_cuda(kwargs: dict[str, Any] | None) -> bool:
    return str((kwargs or {}).get("device", "")).startswith("cuda")


def _captures(cuda: Any) -> bool:
    with suppress(Exception):
        return bool(cuda.is_current_stream_capturing())
    return False


def of_memory(original: Any) -> Any:
    """Of a tensor without memory the sanitizer takes the ``id``, which is soon given out again."""

    @functools.wraps(original)
    def handle(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        with suppress(Exception):
            if type(value).__name__ == "FakeTensor" or not value.numel():
                return None
        return original(self, value, *args, **kwargs)

    return handle


def tell_of_queries(events: Any) -> None:
    """``query()`` that returns true orders as ``synchronize()``; the sanitizer is not told."""
    streams = sys.modules["torch.cuda.streams"]
    for kind, over, handle in (
        (streams.Event, events._handle_event_synchronization, "cuda_event"),
        (streams.Stream, events._handle_stream_synchronization, "cuda_stream"),
    ):
        kind.query = _telling(kind.query, over, handle)


def _telling(original: Any, over: Callable[[int], None], handle: str) -> Any:
    @functools.wraps(original)
    def query(self: Any) -> Any:
        done = original(self)
        if done:
            with suppress(Exception):
                over(getattr(self, handle))
        return done

    return query
