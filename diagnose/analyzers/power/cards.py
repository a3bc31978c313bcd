"""Which recorded processes share a physical GPU, and whose telemetry speaks for it.

Energy belongs to a GPU, not to a rank: two ranks on one GPU read the same counter, and
counted per rank it would be counted twice. Ranks share a GPU if their environment files (or,
where one does not, the manifest) name the same UUID, or, where one is not named at all, if
their energy counters went through the same values at the same times: a counter in millijoules
since the driver was loaded is as good as a name.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from diagnose.analyzers.power.plausible import plausible
from diagnose.trace import Gpu, Source, Table, Trace

_LEAST_EQUAL = 3
"""Values of the counter, different among themselves, that two ranks must have in common."""
_EQUAL_SHARE = 0.5
"""Of the values that they saw in their common time: two counters may cross, not run along."""
_SAME_TIME_NS = 300_000_000


class Card(NamedTuple):
    """One physical GPU and the GPUs of the trace that it is, by rank."""

    gpus: tuple[Gpu, ...]
    told_by: str | None
    """What tied several ranks together: ``uuid`` or ``energy counter``."""
    samples: Table | None
    """The telemetry that speaks for it, by time; None without any."""
    why_not: str | None
    """Why there is no power to speak of."""
    caution: str | None
    """What the figures hold that this recording does not explain."""


def cards(trace: Trace) -> list[Card]:
    """The physical GPUs, in the order of ``Trace.gpus``."""
    samples = plausible(trace.samples)
    by_source: dict[int, list[Gpu]] = {}
    for gpu in trace.gpus:
        by_source.setdefault(gpu.source, []).append(gpu)
    alone = [gpus[0] for gpus in by_source.values() if len(gpus) == 1]
    label = {gpu.source: gpu.source for gpu in alone}
    told: dict[int, str] = {}
    _by_uuid(trace, alone, label, told)
    _by_counter(trace, samples, alone, label, told)
    found: dict[Any, list[Gpu]] = {}
    for gpu in trace.gpus:
        single = len(by_source[gpu.source]) == 1
        key = label[gpu.source] if single else (gpu.source, gpu.device)
        found.setdefault(key, []).append(gpu)
    return [
        _card(
            trace,
            samples,
            tuple(gpus),
            told.get(gpus[-1].source),
            num_devices=len(by_source[gpus[0].source]),
        )
        for gpus in found.values()
    ]


def _join(label: dict[int, int], told: dict[int, str], one: int, other: int, by: str) -> None:
    first, second = sorted((label[one], label[other]))
    if first == second:
        return
    for source, own in label.items():
        if own in (first, second):
            label[source] = first
            told.setdefault(source, by)


def _by_uuid(trace: Trace, gpus: list[Gpu], label: dict[int, int], told: dict[int, str]) -> None:
    first: dict[str, int] = {}
    for gpu in gpus:
        uuid = trace.sources[gpu.source].gpu_uuid
        if uuid is not None:
            _join(label, told, first.setdefault(uuid, gpu.source), gpu.source, "uuid")


def _by_counter(
    trace: Trace, samples: Table, gpus: list[Gpu], label: dict[int, int], told: dict[int, str]
) -> None:
    sources = np.array([gpu.source for gpu in gpus])
    usable = samples.known("energy_j") & np.isin(samples["source"], sources)
    rows = samples.take(usable)
    # The first row of each value: later ones repeat it until the next refresh.
    counter = np.rint(rows["energy_j"] * 1e3).astype(np.int64)
    pairs = np.stack([counter, rows["source"].astype(np.int64)], 1)
    distinct, at = np.unique(pairs, axis=0, return_index=True)
    same = np.flatnonzero(distinct[1:, 0] == distinct[:-1, 0])
    near = np.abs(rows["unix_ns"][at[same + 1]] - rows["unix_ns"][at[same]]) < _SAME_TIME_NS
    met = np.stack([distinct[same[near], 1], distinct[same[near] + 1, 1]], 1)
    matches, times = np.unique(met, axis=0, return_counts=True)
    for (one, other), number in zip(matches.tolist(), times.tolist(), strict=True):
        first, second = trace.sources[one], trace.sources[other]
        named = [uuid for uuid in (first.gpu_uuid, second.gpu_uuid) if uuid is not None]
        elsewhere = first.host != second.host and None not in (first.host, second.host)
        seen = _seen_together(rows, one, other)
        enough = number >= max(_LEAST_EQUAL, _EQUAL_SHARE * seen)
        if enough and len(set(named)) < 2 and not elsewhere:
            _join(label, told, one, other, "energy counter")


def _seen_together(rows: Table, one: int, other: int) -> int:
    """Values of the counter that either of two sources has seen in the time of both: the fewer."""
    every = [rows.take(rows["source"] == source) for source in (one, other)]
    begin = max(int(table["unix_ns"][0]) for table in every)
    end = min(int(table["unix_ns"][-1]) for table in every)
    inside = [(table["unix_ns"] >= begin) & (table["unix_ns"] <= end) for table in every]
    return min(
        len(np.unique(table["energy_j"][mask])) for table, mask in zip(every, inside, strict=True)
    )


def _card(
    trace: Trace, samples: Table, gpus: tuple[Gpu, ...], told: str | None, *, num_devices: int
) -> Card:
    sources = [trace.sources[gpu.source] for gpu in gpus]
    names = " and ".join(source.label for source in sources[:4])
    told = told if len(gpus) > 1 else None
    if num_devices > 1:
        why = f"{names} uses {num_devices} GPUs and its telemetry does not say which one it is of"
        return Card(gpus, told, None, why, None)
    every = [samples.take(samples["source"] == gpu.source) for gpu in gpus]
    most = max(every, key=len)
    if not len(most):
        return Card(gpus, told, None, f"no telemetry was recorded for {names}", None)
    if any(source.base_ns is None for source in sources):
        why = f"the trace of {names} does not say its unix time, so telemetry cannot be aligned"
        return Card(gpus, told, None, why, None)
    return Card(gpus, told, most, None, _caution(sources))


def _caution(sources: list[Source]) -> str | None:
    """A sentence if some of the GPU's work is in nobody's trace."""
    if not all(source.complete for source in sources):
        return "events of a trace were lost: some of the power is of work that is not shown"
    shares = [_mps_share(source) for source in sources]
    known = [share for share in shares if share is not None]
    if len(known) == len(sources) and sum(known) < 100:
        return (
            f"MPS gives the recorded ranks {sum(known):.0f} % of this GPU: what other processes "
            "draw on it is in the figures"
        )
    return None


def _mps_share(source: Source) -> float | None:
    variables = source.environment.get("env")
    share = (
        variables.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") if isinstance(variables, dict) else None
    )
    try:
        return float(share) if share is not None else None
    except (TypeError, ValueError):
        return None
