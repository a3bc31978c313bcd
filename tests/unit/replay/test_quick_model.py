"""A report makes one model of a trace, and lets go of it with the trace."""

from __future__ import annotations

import gc
import weakref

from diagnose import replay
from diagnose.trace import Trace
from tests.builder import TraceBuilder, build_trace


def stepping() -> Trace:
    builder = TraceBuilder(rank=0, world_size=1)
    for step in range(4):
        builder.step(step, step * 100, 99).kernel("gemm", step * 100 + 10, 80, launch=step * 100)
    return build_trace(builder)


def test_a_trace_has_one_quick_model_that_dies_with_it():
    trace = stepping()
    model = replay.quick_model(trace)
    assert isinstance(model, replay.Model)
    assert replay.quick_model(trace) is model
    assert replay.quick_model(stepping()) is not model
    gone = weakref.ref(trace)
    del trace, model
    gc.collect()
    assert gone() is None
