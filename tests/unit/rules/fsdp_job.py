"""A job that looks like FSDP2: units gathered, computed, gathered again, computed backward."""

from __future__ import annotations

from tests.builder import TraceBuilder

STEP, BACKWARD = 2000, 77


def job(
    *,
    gather: int = 50,
    forward: int = 100,
    prefetch: bool = False,
    regather_last: bool = True,
    beside: bool = False,
) -> TraceBuilder:
    """Three steps of units a, b, c. Every gather takes ``gather`` us, backward 100 us a unit.

    With ``beside``, compute runs on another stream beside every backward gather.
    """
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(3):
        begin = at = step * STEP
        builder.step(step, begin, STEP - 1)
        for unit in "abc":
            _gather(builder, unit, at, gather, 4242)
            builder.kernel(f"forward {unit}", at + gather, forward, launch=at + 20)
            at += gather + forward
        for unit in "cba":
            if unit != "c" or regather_last:
                ahead = prefetch and unit != "c"
                if ahead:
                    name = f"FSDP::backward_prefetch for {unit}"
                    builder.operator(name, at - 1, 18, category="user_annotation", thread=BACKWARD)
                _gather(builder, unit, at, gather, BACKWARD)
                if beside:
                    builder.kernel("other", at, gather, launch=at + 4, stream=9, thread=BACKWARD)
                at += gather
            builder.kernel(f"backward {unit}", at, 100, launch=at + 1, thread=BACKWARD)
            at += 100
        builder.kernel("adam", begin + STEP - 100, 100, launch=begin + 1800)
    return builder


def _gather(builder: TraceBuilder, unit: str, at: int, length: int, thread: int) -> None:
    name = f"FSDP::all_gather ({unit})"
    builder.operator(name, at, 10, category="user_annotation", thread=thread)
    builder.collective(
        "_allgather_base",
        at,
        length,
        launch=at + 2,
        thread=thread,
        elements=1 << 20,
        out_elements=1 << 21,
    )
