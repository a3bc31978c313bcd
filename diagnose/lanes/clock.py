"""One clock for all sources: what is added to the times of each to compare them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.analyzers.clocks import Alignment, clock_offsets
from diagnose.intervals import Array
from diagnose.schema import NULL
from diagnose.trace import Table, Trace


class SourceClock(NamedTuple):
    """``common = time + shift + drift * (time - origin)``; the drift's part in whole ns."""

    shift: int
    drift: float
    origin: int

    def forward(self, time: Array) -> Array:
        """From times of the source to the common clock."""
        if self.drift == 0:
            return time + self.shift
        drifted = np.rint(self.drift * (time - self.origin).astype(np.float64))
        moved: Array = time + self.shift + drifted.astype(np.int64)
        return moved

    def back(self, time: Array) -> Array:
        """From the common clock to times of the source; to within a nanosecond with drift."""
        own = time - self.shift
        if self.drift == 0:
            return own
        drifted = np.rint(
            self.drift / (1 + self.drift) * (own - self.origin).astype(np.float64)
        ).astype(np.int64)
        moved: Array = own - drifted
        return moved


class Clocks(NamedTuple):
    """The clocks of all sources; ``sentence`` says how they were tied together, and how well."""

    of_source: tuple[SourceClock, ...]
    sentence: str


def clocks_of(trace: Trace, first: list[int | None]) -> Clocks:
    """``first`` is the time of each source's first event (None: it has none).

    Times of a source are unix times less its base, as far as it has one; offsets and drift
    are those of ``clock_offsets``. A source that neither collectives nor a wall clock tie
    to the others is moved so that it begins when they do.
    """
    bases = [source.base_ns for source in trace.sources]
    if len(bases) < 2:
        return Clocks(tuple(SourceClock(base or 0, 0.0, 0) for base in bases), "")
    table = clock_offsets(trace)
    if isinstance(table, Unavailable):
        loose = list(range(len(bases)))
        plain = [SourceClock(base or 0, 0.0, 0) for base in bases]
    else:
        loose = np.flatnonzero(table["alignment"] == Alignment.IMPOSSIBLE).tolist()
        plain = [_clock(table, source, base or 0) for source, base in enumerate(bases)]
    lost = _lost(bases, loose)
    kept = [s for s in range(len(bases)) if s not in lost and first[s] is not None]
    begin = min((int(plain[s].forward(_one(first[s]))[0]) for s in kept), default=0)
    for source in lost:
        began = first[source]
        plain[source] = SourceClock(begin - (began or 0), 0.0, 0)
    return Clocks(tuple(plain), _sentence(trace, table, loose, lost))


def _one(time: int | None) -> Array:
    return np.array([time], np.int64)


def _clock(table: Table, source: int, base: int) -> SourceClock:
    offset, drift = int(table["offset_ns"][source]), float(table["drift"][source])
    if offset == NULL:
        return SourceClock(base, 0.0, 0)
    # The offset holds at a unix time; here it is wanted at a time of the source.
    origin = int(table["drift_origin_ns"][source]) - base if drift else 0
    return SourceClock(base + offset, drift, origin)


def _lost(bases: list[int | None], loose: list[int]) -> list[int]:
    """Sources that nothing ties to the others: no collective, and no wall clock in common."""
    tied = [source for source in range(len(bases)) if source not in loose]
    reference = tied[0] if tied else 0
    known = bases[reference] is not None
    # Without a base times are unix times as they stand, as old versions of Kineto write them.
    return [s for s in loose if s != reference and (bases[s] is not None) != known]


def _sentence(trace: Trace, table: Table | Unavailable, loose: list[int], lost: list[int]) -> str:
    labels = [source.label for source in trace.sources]
    said = []
    if isinstance(table, Unavailable):
        if len(lost) + 1 < len(labels):
            said.append(f"Times are each host's own wall clock: {table.because}.")
        else:
            said.append(f"Nothing ties the clocks together: {table.because}.")
    else:
        tied = [s for s in range(len(labels)) if s not in loose]
        worst = max((float(table["residual_p95_ns"][s]) for s in tied), default=float("nan"))
        said.append(
            "Clocks were aligned by collectives that end together"
            + ("" if np.isnan(worst) else f", to within {worst / 1e3:.1f} us in 95 of 100 cases")
            + "."
        )
        doubtful = [s for s in tied if table["alignment"][s] == Alignment.DOUBTFUL]
        if doubtful:
            said.append(f"Doubtful: {_named(labels, doubtful)}.")
        walls = [s for s in loose if s not in lost]
        if walls:
            said.append(f"By their own wall clock alone: {_named(labels, walls)}.")
    if lost:
        said.append(f"Moved to begin with the others: {_named(labels, lost)}.")
    return " ".join(said)


def _named(labels: list[str], sources: list[int]) -> str:
    shown = ", ".join(labels[source] for source in sources[:4])
    return shown if len(sources) <= 4 else f"{shown} and {len(sources) - 4} more"
