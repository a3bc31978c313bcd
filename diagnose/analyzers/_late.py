"""Lateness per GPU and step: what it cost the others, and whether it is the schedule's doing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.analyzers._lanes import Mask
from diagnose.analyzers._waits import Analysed, Floats, Waits, upper_median
from diagnose.analyzers.matching import matched_table
from diagnose.intervals import Array
from diagnose.schema import NULL
from diagnose.timeline.step_times import step_times
from diagnose.trace import Trace


class Lateness(NamedTuple):
    """Per match: ``is_pair`` (send and receive), ``of_pipeline`` (its GPUs also send to each
    other, so their order of arrival is the schedule's), ``of_group`` (neither). Per (GPU, step),
    in ns, the last column for what belongs to no step: ``cost``, ``behind``, and ``lost``, which
    is ``behind`` where the GPU was the last to arrive. Per GPU the totals, means per step, and
    share of the step time (of the window where steps have no time).
    """

    is_pair: Mask
    of_pipeline: Mask
    of_group: Mask
    cost: Array
    behind: Array
    lost: Array
    num_steps: int
    step_ns: float
    observed_ns: float
    cost_total: Array
    cost_per_step: Floats
    cost_share: Floats
    behind_per_step: Floats
    behind_share: Floats


def lateness(trace: Trace, analysed: Analysed) -> Lateness:
    """Sum lateness over matches, per GPU and step."""
    waits, num_gpus = analysed.waits, len(trace.gpus)
    is_pair, of_pipeline = _structure(trace, analysed)
    of_group = ~is_pair & ~of_pipeline
    step, num_steps = _steps(trace, analysed)
    shape = (num_gpus, num_steps + 1)
    cost = _cost(waits, of_group, step, shape)
    behind = _behind(waits, of_group, step, shape)
    lost = _behind(waits, of_group, step, shape, last_only=True)
    step_ns = _step_ns(trace)
    observed = num_steps * step_ns if num_steps and step_ns == step_ns else _window(trace)
    chosen = slice(0, num_steps) if num_steps and step_ns == step_ns else slice(0, num_steps + 1)
    divisor = num_steps if num_steps else float("nan")
    return Lateness(
        is_pair=is_pair,
        of_pipeline=of_pipeline,
        of_group=of_group,
        cost=cost,
        behind=behind,
        lost=lost,
        num_steps=num_steps,
        step_ns=step_ns,
        observed_ns=observed,
        cost_total=cost.sum(1),
        cost_per_step=cost[:, :num_steps].sum(1) / divisor,
        cost_share=cost[:, chosen].sum(1) / observed,
        behind_per_step=behind[:, :num_steps].sum(1) / divisor,
        behind_share=behind[:, chosen].sum(1) / observed,
    )


def _structure(trace: Trace, analysed: Analysed) -> tuple[Mask, Mask]:
    """Which matches are pairs, and which join several stages of one pipeline."""
    waits, matches = analysed.waits, analysed.matches
    code = trace.strings.code("send_recv")
    content = matches.lanes.content[waits.row]
    is_pair = np.zeros(matches.num_matches, bool)
    if code >= 0:
        is_pair[waits.match[content == code]] = True
    chain = _chains(waits, is_pair, len(trace.gpus))
    chained = np.bincount(chain, minlength=len(chain))[chain] > 1
    link = np.where(chained, chain, -1)[waits.gpu]
    key = (waits.match * len(chain) + link)[link >= 0]
    joined, count = np.unique(key, return_counts=True)
    of_pipeline = np.zeros(matches.num_matches, bool)
    of_pipeline[joined[count > 1] // len(chain)] = True
    return is_pair, of_pipeline & ~is_pair


def _chains(waits: Waits, is_pair: Mask, num_gpus: int) -> Array:
    """For each GPU a number that it shares with those it sends to or receives from, in any hops."""
    begin = np.cumsum(waits.num_matched) - waits.num_matched
    pairs = is_pair[waits.match]
    one_side, other_side = waits.gpu[begin[waits.match[pairs]]], waits.gpu[pairs]
    chain = np.arange(num_gpus)
    for link in np.unique(one_side * num_gpus + other_side).tolist():
        one, other = divmod(link, num_gpus)
        if chain[one] != chain[other]:
            chain[chain == chain[other]] = chain[one]
    return chain


def _steps(trace: Trace, analysed: Analysed) -> tuple[Array, int]:
    """Column of each match's step (the last column: no step), and the number of steps."""
    matched = matched_table(trace, analysed.matches).take(analysed.waits.row)
    number = matched["step_number"][analysed.waits.last]
    known = number != NULL
    distinct, inverse = np.unique(number[known], return_inverse=True)
    column = np.full(len(number), len(distinct))
    column[known] = inverse.reshape(-1)
    return column, len(distinct)


def _cost(waits: Waits, of_group: Mask, step: Array, shape: tuple[int, int]) -> Array:
    """Per (late GPU, step): the exposed wait that it caused to the GPU that lost most to it."""
    match = waits.match
    chosen = np.flatnonzero((of_group & waits.told_apart)[match] & (waits.blocked > 0))
    chosen = chosen[chosen != waits.last[match[chosen]]]
    late = waits.gpu[waits.last[match[chosen]]]
    key = (late * shape[1] + step[match[chosen]]) * shape[0] + waits.gpu[chosen]
    distinct, inverse = np.unique(key, return_inverse=True)
    lost = np.zeros(len(distinct), np.int64)
    np.add.at(lost, inverse.reshape(-1), waits.blocked[chosen])
    cost = np.zeros(shape[0] * shape[1], np.int64)
    np.maximum.at(cost, distinct // shape[0], lost)
    return cost.reshape(shape)


def _behind(
    waits: Waits,
    counted: Mask,
    step: Array,
    shape: tuple[int, int],
    *,
    last_only: bool = False,
) -> Array:
    """Per (GPU, step): lateness against the middle rank, as far as the middle rank waited for it.

    Unlike the cost, this also sees several ranks that are late together.
    """
    match = waits.match
    late = waits.arrival - waits.middle_arrival[match]
    is_last = np.arange(len(match)) == waits.last[match]
    inherited = np.where(is_last, waits.inherited[match], 0)
    late = np.minimum(late - inherited, upper_median(waits, waits.exposed)[match])
    chosen = (counted & waits.comparable)[match] & (late > waits.uncertainty[match])
    if last_only:
        chosen &= is_last
    behind = np.zeros(shape, np.int64)
    np.add.at(behind, (waits.gpu[chosen], step[match[chosen]]), late[chosen])
    return behind


def _step_ns(trace: Trace) -> float:
    """Median step time over GPUs and steps; NaN if no step has one."""
    if not len(trace.steps):
        return float("nan")
    times = []
    for gpu in trace.gpus:
        begin, end = step_times(trace, gpu)
        known = begin != NULL
        times.append((end - begin)[known])
    all_times = np.concatenate(times) if times else np.empty(0, np.int64)
    return float(np.median(all_times)) if all_times.size else float("nan")


def _window(trace: Trace) -> float:
    """The longest window of a GPU; NaN without work."""
    spans = [
        int(trace.gpu_ops["end_ns"][rows].max() - trace.gpu_ops["start_ns"][rows].min())
        for rows in (trace.on(gpu) for gpu in trace.gpus)
    ]
    return float(max(spans)) if spans and max(spans) > 0 else float("nan")
