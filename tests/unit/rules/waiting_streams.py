"""Stream waits as the profiler writes them: the host's call, and the span on the stream."""

from __future__ import annotations

from typing import Any

from tests.builder import TraceBuilder


def wait(
    builder: TraceBuilder,
    at: float,
    *,
    stream: int,
    of: int | None = None,
    record: int | None = None,
) -> None:
    """``stream`` waits for an event: of another stream, recorded by a call, where these are said.

    As PyTorch writes it, -1 says that neither is known.
    """
    correlation = builder.call("cudaStreamWaitEvent", at, 0.5)
    args: dict[str, Any] = {
        "cuda_sync_kind": "Stream Wait Event",
        "stream": stream,
        "device": 0,
        "correlation": correlation,
        "wait_on_stream": -1 if of is None else of,
        "wait_on_cuda_event_record_corr_id": -1 if record is None else record,
    }
    builder.event("cuda_sync", "Stream Wait Event", at + 1, 0.5, pid=0, tid=stream, args=args)


def shape(blocks: int) -> dict[str, Any]:
    """The launch of a kernel with so many blocks."""
    return {"grid": [blocks, 1, 1], "block": [128, 1, 1]}
