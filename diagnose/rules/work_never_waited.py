"""A collective was started and nothing ever waits for its end.

## Looks for
Collectives started with `async_op=True` whose work is thrown away: of the events that are recorded
behind them, no other stream and no host call waits for any, and kernels go on.

## Why it costs time
It costs no time, it may cost the result: what reads the tensor, or writes into it, does not know
whether the collective is done. It is right on one day and wrong on a faster GPU.

## How it decides
By the notes that `--check-sync` writes into the trace: which event was recorded on which stream,
and who waited for it. A wait for any later event of the same stream counts. Of a stream that only
communicates, at least `min_num_unwaited` collectives have their event recorded, kernels of other
streams are launched after it, and nothing waits before the window ends; those of the last step, or
without step marks the last `min_num_later` of the stream, may be waited for later and are left out.
Where the host synchronises the device or the stream instead, only after further kernels were
launched, it is a hint: right if none of these uses the result.

## Stays silent when
A stream or the host waits, `Work.wait()` or a chain of events alike; the host asks whether work is
done; the collective runs on the stream of the kernels; or it is a send or a barrier, whose result
nobody reads. Without notes it is listed as not checked.

## What to do
Keep the work and call `wait()` before the tensor is used: the stream waits, the host goes on.

## Example
`dist.all_gather_into_tensor(out, part, async_op=True)`, and two lines later `out.add_(1)`: right as
long as the all-gather takes less than the launch of the addition.

## References
- PyTorch, distributed: synchronous and asynchronous collective operations
- PyTorch, ProcessGroupNCCL: Work.wait lets the current stream wait for the end event
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.rules import (
    Clean,
    Evidence,
    Facts,
    Fix,
    Need,
    NotApplicable,
    Outcome,
    Rule,
    Span,
    Symptom,
    Thresholds,
    Where,
    counted,
    limit,
    who,
)
from diagnose.rules._collective_ends import COLLECTIVE, Ends, ends_on
from diagnose.rules._event_log import NEVER, UNRECORDED, clean_as_recorded, event_log
from diagnose.trace import Gpu

Mask = npt.NDArray[np.bool_]
_MOST_SPANS = 3


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When work without a wait is worth naming."""

    min_num_unwaited: int = limit(2, "collectives of a stream; a single one may be the last")
    min_num_later: int = limit(8, "collectives at the end, where no steps are marked (judgement)")


class Unwaited(NamedTuple):
    """Collectives of one stream that nothing waits for."""

    gpu: Gpu
    stream: int
    rows: npt.NDArray[np.int64]
    """Rows of ``gpu_ops``."""
    number: int
    """Collectives of the stream with a recorded event."""
    synchronised: bool
    """Whether the host synchronised after each, if only after further kernels."""


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for each GPU and stream."""
    communicating = _communicating(facts)
    if not communicating:
        return NotApplicable("no communication")
    logs = {source: event_log(facts, source) for source in {gpu.source for gpu in facts.gpus}}
    ends = {gpu: ends_on(facts, gpu, logs[gpu.source]) for gpu in facts.gpus}
    if not any(one.row.size for one in ends.values()):
        if any(logs.values()):
            return Clean("no collective on a stream of its own has an event recorded behind it")
        return UNRECORDED
    found = [one for gpu in facts.gpus for one in _streams(facts, gpu, ends[gpu], limits)]
    if found:
        return tuple(_symptom(facts, one) for one in found)
    unrecorded = [gpu for gpu in facts.gpus if gpu.source in communicating and not logs[gpu.source]]
    return clean_as_recorded(facts.trace, "all work is waited for", unrecorded)


def _communicating(facts: Facts) -> set[int]:
    """The sources with collectives, on a GPU or as the host describes them."""
    trace = facts.trace
    described = trace.host_ops["name"] == trace.strings.code(COLLECTIVE)
    on_gpu = trace.gpu_ops["source"][trace.collectives["gpu_op_row"]]
    return {*trace.host_ops["source"][described].tolist(), *on_gpu.tolist()}


def _streams(facts: Facts, gpu: Gpu, ends: Ends, limits: Limits) -> Iterator[Unwaited]:
    for stream in np.unique(ends.stream).tolist():
        mine = ends.stream == stream
        open_ = mine & (ends.waited_at == NEVER) & (ends.kernel_at != NEVER)
        settled = ends.synchronised_at != NEVER
        never = open_ & ~settled & ~_at_the_end(facts, ends, mine, limits)
        # Kernels launched between the two might use the result; after it none is too early.
        late = open_ & settled & (ends.kernel_at < ends.synchronised_at)
        sure = int(never.sum()) >= limits.min_num_unwaited
        chosen = never if sure else never | late
        if int(chosen.sum()) >= max(limits.min_num_unwaited, 1):
            yield Unwaited(gpu, int(stream), ends.row[chosen], int(mine.sum()), not sure)


def _at_the_end(facts: Facts, ends: Ends, mine: Mask, limits: Limits) -> Mask:
    """Those that may be waited for after the window."""
    step = facts.trace.gpu_ops["step_row"][ends.row]
    if (step[mine] >= 0).any():
        found: Mask = mine & ((step < 0) | (step == step[mine].max()))
        return found
    last = np.zeros(mine.size, bool)
    rows = np.flatnonzero(mine)
    last[rows[max(len(rows) - limits.min_num_later, 0) :]] = True
    return last


def _symptom(facts: Facts, one: Unwaited) -> Symptom:
    ops, gpu = facts.trace.gpu_ops, one.gpu
    spans = tuple(
        Span(gpu.source, int(ops["start_ns"][row]), int(ops["end_ns"][row]))
        for row in one.rows[:_MOST_SPANS].tolist()
    )
    after = (
        "only the host synchronises, after further kernels were launched"
        if one.synchronised
        else "while kernels go on"
    )
    return Symptom(
        sentence=(
            f"Nothing waits for {counted(len(one.rows), 'collective')} of {one.number} on stream "
            f"{one.stream} of {who(facts.trace, (gpu,))}, {after}: what uses the result "
            "may use it too early."
        ),
        where=Where(gpus=(gpu,), streams=(one.stream,), spans=spans),
        evidence=(
            Evidence("num_unwaited", "without a wait", len(one.rows), "min_num_unwaited"),
            Evidence("num_collectives", "collectives with a recorded event", one.number),
        ),
        advice=(
            Fix(
                "Wait before the tensor is used: this makes the stream wait, not the host.",
                "work = dist.all_reduce(tensor, async_op=True); ...; work.wait()",
            ),
            Fix("See which operators use the result too early.", "diagnose attach --check-sync"),
        ),
        caveats=(
            "A result that nobody uses, or that is used after the host synchronised, needs no "
            "wait; the memory of its tensors must then stay allocated for as long.",
        ),
        confidence="low" if one.synchronised else "high",
        severity="hint" if one.synchronised else "warning",
        no_gain="it is about right results, not about time",
        subject=f"stream {one.stream}",
    )


RULE = Rule(
    check=check,
    area="correctness",
    confidence="high",
    needs=(Need.LAUNCHES, Need.HOST_OPS),
    thresholds=Limits(),
)
