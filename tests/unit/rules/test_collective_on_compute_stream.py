"""The collective sits in the queue of the compute."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "collective-on-compute-stream"


def alternating(stream: int, *, graph: bool = False) -> TraceBuilder:
    """Compute of 100 us on stream 7 and all-reduces of 20 us in turn, three times."""
    builder = TraceBuilder(rank=0, world_size=2)
    for number in range(3):
        at = number * 120
        launch: dict[str, float | int] = {"launch": number}
        if graph:
            launch = {"correlation": builder.call("cudaGraphLaunch", number, 1)}
        builder.kernel("gemm", at, 100, **launch)
        builder.collective("allreduce", at + 100, 20, stream=stream, **launch)
    return builder


def test_fires_on_the_stream_of_the_compute():
    finding = found(trace_of(alternating(7)), RULE)
    evidence = values(finding)
    assert evidence["communication_ns"] == 60_000
    assert round(evidence["communication_pct"], 2) == 16.67
    assert evidence["num_collectives"] == 3
    assert finding.where.streams == (7,)
    assert finding.key == "collective-on-compute-stream@stream 7"


def test_silent_on_a_stream_of_its_own():
    assert is_clean(trace_of(alternating(20)), RULE)


def test_silent_for_a_graph_which_replays_on_one_stream():
    assert is_clean(trace_of(alternating(7, graph=True)), RULE)


def test_silent_below_its_threshold():
    assert is_clean(trace_of(alternating(7)), RULE, min_communication_pct=17.0)


def test_a_stream_with_some_compute_is_not_the_compute_stream():
    builder = alternating(20)
    for number in range(3):
        builder.kernel("copy_kernel", number * 120 + 95, 5, stream=20, launch=number)
    assert is_clean(trace_of(builder), RULE)
