"""What ``diagnose.load`` returns: a trace with every analysis as a method.

The methods come from discovery (``diagnose.engine``): an analysis that exists
is a method, with its own docstring and options, and returns a DataFrame.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from diagnose import engine
from diagnose.analysis import Analyzer, Unavailable
from diagnose.errors import UnavailableError, UsageError
from diagnose.schema import Detail
from diagnose.trace import Note, Source, Table, Trace

if TYPE_CHECKING:
    import pandas as pd

    from diagnose.findings import Diagnosis
    from diagnose.plotting.style import Figure

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_DETAIL = {
    None: Detail.ALL,
    "shapes": Detail.SHAPES,
    "launches": Detail.LAUNCHES,
    "gpu": Detail.GPU,
}


def load(
    paths: Paths,
    *,
    only: Literal["gpu", "launches", "shapes"] | None = None,
    classify: str | os.PathLike[str] | None = None,
    rank: int | None = None,
    memory_limit: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Recording:
    """Read traces: files, folders, globs, recording folders, fsspec URLs, or a list of them.

    ``only="gpu"`` keeps GPU operations and step marks, ``only="launches"`` also
    calls into the GPU runtime, synchronisations and annotations, ``only="shapes"``
    also the operators that launched GPU work; the less is kept, the faster and
    smaller. ``classify`` names a TOML file that extends the
    classification. ``rank`` says whose a file is that does not say so itself.
    ``memory_limit`` is in bytes (default: 80 % of what is free). ``progress`` is
    called with the number of stored bytes read since the last call.

    Raises InputError if nothing could be read; damage that leaves something
    readable is a note on the recording instead. ::

        recording = diagnose.load("traces/")
        recording.overlap(by="step")
    """
    if only not in _DETAIL:
        raise UsageError(
            f"only={only!r} is not known",
            hint="use only='gpu', 'launches', 'shapes' or leave it out",
        )
    from diagnose import readers

    trace = readers.read(
        paths,
        detail=_DETAIL[only],
        classify=None if classify is None else os.fspath(classify),
        memory_limit_bytes=memory_limit,
        progress=progress,
        rank=rank,
    )
    return Recording(trace)


class Recording:
    """A trace with every analysis as a method that returns a pandas DataFrame.

    ``dir(recording)`` lists the analyses; ``plot()`` draws; ``recording.trace`` is the data they
    work on. A method raises UnavailableError, with a hint how to record what is
    missing, where the trace does not hold what the analysis needs.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @property
    def sources(self) -> tuple[Source, ...]:
        """The processes that were recorded; ``source`` columns index into it."""
        return self.trace.sources

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was repaired, dropped or doubted."""
        return self.trace.notes

    def plot(self, name: str = "timeline", *, dark: bool = False, **options: Any) -> Figure:
        """A figure of this recording, as the report and the dashboard draw it: plotly's.

        - ``arrival_skew``: how late each GPU came to each collective
        - ``overlap``: how much communication was hidden, by step and GPU
        - ``power``: what the GPUs draw while they compute, communicate or idle
        - ``ranks``: whose lateness costs others, and who waits
        - ``slowdown``: how much slower compute is beside each kind of collective
        - ``staircase``: from today's step to the bound, change by change
        - ``stalls``: why GPUs stood still
        - ``step_time``: where a step's time goes, by GPU
        - ``timeline``: lanes of operations over time, sensors below

        ``dark`` draws it for a dark page. The timeline has options: ``start_ns`` and
        ``end_ns`` (nanoseconds since the first event) or ``step`` (a step's number or name:
        its time on the GPUs), ``lanes`` (keys as ``"g0.0"``, or ``"all"``; default: GPUs and,
        of up to four, their streams) and ``pixels`` (the width that details are made for).

        Raises UsageError for a name or option that is not there, UnavailableError with a
        hint how to record what is missing where there is nothing to draw. ::

            recording.plot("step_time")
            recording.plot(step=8)
        """
        drawn = engine.plot(self.trace, name, dark=dark, **options)
        if isinstance(drawn, Unavailable):
            raise UnavailableError(f"plot({name!r}): {drawn.because}", hint=drawn.remedy)
        return drawn

    def diagnosis(self) -> Diagnosis:
        """What ``diagnose report`` says: the report's tables, and the ``findings`` of the rules.

        With the thresholds of the nearest ``diagnose.toml`` or pyproject.toml, as there.
        """
        from diagnose.rules._judge import Judging
        from diagnose.rules._settings import settings_from

        judging = Judging(settings=settings_from(None, engine.rules()))
        return engine.diagnose(self.trace, judging=judging)

    def __getattr__(self, name: str) -> Callable[..., pd.DataFrame]:
        known = engine.analyzers() if not name.startswith("_") else {}
        if name not in known:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return _method(known[name], self.trace)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *engine.analyzers()})

    def __repr__(self) -> str:
        sources, gpus = len(self.trace.sources), len(self.trace.gpus)
        ops = len(self.trace.gpu_ops)
        return f"<Recording: {sources} sources, {gpus} GPUs, {ops} GPU operations>"


def _method(analyzer: Analyzer, trace: Trace) -> Callable[..., pd.DataFrame]:
    def method(*values: Any, **options: Any) -> pd.DataFrame:
        result = engine.run(analyzer, trace, *values, **options)
        if isinstance(result, Unavailable):
            raise UnavailableError(f"{analyzer.name}: {result.because}", hint=result.remedy)
        return frame(result, trace)

    method.__name__ = method.__qualname__ = analyzer.name
    method.__doc__ = analyzer.run.__doc__
    method.__signature__ = engine.options_of(analyzer)  # type: ignore[attr-defined]
    return method


def frame(table: Table, trace: Trace) -> pd.DataFrame:
    """A table as a DataFrame; beside ``step_row`` a column ``step`` with the step's name."""
    result = table.frame()
    if "step_row" in result.columns and "step" not in result.columns:
        names = trace.steps.texts("name")
        labels = [names[row] if row >= 0 else None for row in table["step_row"].tolist()]
        result.insert(list(result.columns).index("step_row") + 1, "step", labels)
    return result
