"""What the profiler cost the recording, and the model without it.

Every operator, annotation and CUDA call that the profiler records costs the thread some
microseconds (``record_function``, shapes, the CUPTI callbacks). They are taken out of the host's
work in proportion to the events recorded, so a host that was only slowed by being
watched is not taken for the limit of the job. Where the recorder saw the job's own steps
before and after the window, the cost per event is the one with which the replay gives
that step. Otherwise it is a range measured on other recordings. What the profiler took in one
piece (``_profiler_time``) is taken out as it is, from the call first.

Kernels and the pauses between them are taken to last as long without the profiler, unless
the job's own step is known and shorter than the GPU alone needs in the replay: then the GPU
was slower in the window, and all its operations and pauses are taken to be so by the same
share. (CUPTI adds some tenths of a microsecond per kernel: 0.4 us on one H200, from one
recording of CUDA graphs and the same job unwatched.)
"""

from __future__ import annotations

import numpy as np

from diagnose.replay.execute import Execution
from diagnose.replay.model import Array, Dependencies, Kind, Model, ProfilerCost
from diagnose.replay.steady import settle

ASSUMED = "What the profiler cost the host is assumed: 3.5 us an event (1 to 5 us)."
PRIOR = ProfilerCost(
    1_000.0,
    3_500.0,
    5_000.0,
    ("The recording does not say how long steps take without the profiler. " + ASSUMED,),
)
"""Recordings with their step unwatched and bound by the host, from one machine with an H200
(a virtual one, torch 2.11, shapes recorded): 3.2 and 4.2 us; FSDP, whose hooks run in Python, took
7 us, more than is assumed. 1 us is what a bare
``record_function`` and a CUPTI callback take on a fast host (their documentation speaks of
"about a microsecond"), 5 us leaves room for stacks and slower ones."""
MOST_NS = 20_000.0
"""Highest cost looked for: five times the highest measured. Beyond, something else is at work."""
SAME = 0.01
"""Steps closer than that are the same: step times of one job repeat to about 1 %."""
_PRECISION_NS = 10.0
"""Of a cost found: 0.05 ms in a step of 5000 events."""
_PRECISION = 0.0005
"""A step that near the observed one will do."""
LEAST_SHARE = 0.9
"""A GPU that would have to be faster than that without the profiler was doing something else:
the largest difference measured is 5 %."""
CALL_FLOOR_NS = 1_000
"""What is left of a call at least: no call into CUDA was seen to return sooner unwatched."""


def without_profiler(model: Model, event_ns: float) -> Model:
    """The model as it would have run unwatched, if each recorded event cost ``event_ns``.

    The cost is taken from the work before a call, or from the lag of the handoff that
    stands for it, and what is left from the call itself. 0: only what it took in one
    piece is taken out, and ``ProfilerCost.gpu_share``.
    """
    calls, share = model.calls, model.profiler.gpu_share
    if share != 1.0:
        ops = model.operations
        pause = np.where(ops.pause_ns > 0, np.rint(share * ops.pause_ns), ops.pause_ns)
        model = model.with_operations(
            duration_ns=np.rint(share * ops.duration_ns).astype(np.int64),
            pause_ns=pause.astype(np.int64),
        )
    cost = np.rint(event_ns * calls.num_events).astype(np.int64)
    floor = np.minimum(calls.call_ns, CALL_FLOOR_NS)
    call_ns = calls.call_ns
    if calls.profiler_ns.size:
        call_ns = np.maximum(call_ns - calls.profiler_ns, floor)
        cost = cost + calls.profiler_ns - (calls.call_ns - call_ns)
    work = np.where(calls.work_ns > 0, np.maximum(calls.work_ns - cost, 0), calls.work_ns)
    handed, dependencies = _handoff_lags(model, cost)
    # Of a handed call the cost is in the lag: its work is what it shares with that.
    taken = np.where(handed >= 0, handed, calls.work_ns - work)
    call_ns = np.maximum(call_ns - np.maximum(cost - taken, 0), floor)
    return model.with_calls(work_ns=work, call_ns=call_ns).with_dependencies(dependencies)


def _handoff_lags(model: Model, cost: Array) -> tuple[Array, Dependencies]:
    """What each call's handoff gave up of its cost (-1: has none), and the dependencies."""
    dependencies = model.dependencies
    rows = np.flatnonzero(dependencies.kind == Kind.HANDOFF)
    given = np.full(cost.size, -1, np.int64)
    to = dependencies.to_node[rows] - model.num_ops
    lag = dependencies.lag_ns.copy()
    shorter = np.minimum(lag[rows], np.maximum(lag[rows] - cost[to], 0))
    given[to] = lag[rows] - shorter
    lag[rows] = shorter
    return given, dependencies._replace(lag_ns=lag)


def calibrated(model: Model, execution: Execution) -> ProfilerCost:
    """The profiler's cost per event for this recording; see the module.

    The step without the profiler falls as the cost rises, so the costs that give the
    observed step, to within its spread, are an interval. Where the step stops falling (the
    GPU is the limit) the observed step does not tell: the assumed range stands there.
    """
    observer = model.trace.observer
    outside = None if observer is None else (observer.before_ns or observer.after_ns)
    if observer is None or outside is None:
        return PRIOR
    unwatched = _Unwatched(model, execution)
    slack = max((observer.before_spread_ns or 0) / 2, SAME * outside)
    low = unwatched.cost_at(outside + slack)
    high = unwatched.cost_at(outside - slack)
    shown = f"{outside / 1e6:.2f} ms, seen {'before' if observer.before_ns else 'after'} the window"
    if low is None:
        return _gpu_slower(outside, shown, unwatched)
    if high is None:
        # A cost that is higher still changes nothing: the range matters to changes only.
        high, likely = max(low, PRIOR.high_ns), max(low, PRIOR.likely_ns)
    else:
        middle = unwatched.cost_at(outside)
        likely = min(max(middle if middle is not None else high, low), high)
        if low == 0.0 and unwatched.step(0.0) <= outside:
            likely = min(PRIOR.likely_ns, high)
    return ProfilerCost(
        low,
        likely,
        high,
        (
            f"The profiler cost the host {likely / 1000:.1f} us an event ({low / 1000:.1f} to "
            f"{high / 1000:.1f} us): found from the job's own step, {shown}.",
        ),
    )


def _gpu_slower(outside_ns: int, shown: str, unwatched: _Unwatched) -> ProfilerCost:
    """Where not even a host at no cost gives a step as short as the job's own."""
    limit = unwatched.step(MOST_NS)
    told = (
        f"The job's own step was {shown}; the replay takes {limit / 1e6:.2f} ms however little "
        "the host had to do."
    )
    share = outside_ns / limit
    by_gpu = unwatched.step(PRIOR.high_ns) <= (1 + SAME) * limit
    if by_gpu and share >= LEAST_SHARE:
        told += f" So its GPU was {100 / share - 100:.1f} % slower in the window: taken out."
        return PRIOR._replace(basis=(told, ASSUMED), gpu_share=share)
    told += " The job itself changed, or more than the profiler slowed it; nothing is taken out."
    return PRIOR._replace(basis=(told, ASSUMED))


class _Unwatched:
    """The step as a function of the profiler's cost per event; it never rises."""

    def __init__(self, model: Model, execution: Execution) -> None:
        self._model, self._execution = model, execution
        self._known: dict[float, float] = {}

    def step(self, event_ns: float) -> float:
        """The step of the slowest GPU in ns if an event cost that much."""
        if event_ns not in self._known:
            model = without_profiler(self._model, event_ns)
            self._known[event_ns] = settle(model, self._execution.reweighted(model)).slowest_ns
        return self._known[event_ns]

    def cost_at(self, step_ns: float) -> float | None:
        """The least cost at which the step is no longer than that; None: at no cost.

        By false position with halved ends (the Illinois method): the step is made of
        few straight pieces, so a handful of executions do.
        """
        low, high = 0.0, MOST_NS
        above, below = self.step(low) - step_ns, self.step(high) - step_ns
        if above <= 0:
            return low
        if below > 0:
            return None
        while high - low > _PRECISION_NS:
            share = min(max(above / (above - below), 0.02), 0.98)
            middle = low + share * (high - low)
            off = self.step(middle) - step_ns
            if off <= 0:
                high, below, above = middle, off, above / 2
            else:
                low, above, below = middle, off, below / 2
            if 0 <= -off <= _PRECISION * step_ns:
                break
        return high
