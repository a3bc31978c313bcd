"""``diagnose critical-path``: what each step really waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from diagnose.cli._options import Classify, Output, Paths
from diagnose.cli._tables import FormatOption

if TYPE_CHECKING:
    from diagnose.trace import Trace


def critical_path(
    context: typer.Context,
    paths: Paths,
    rank: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Show this rank alone.", show_default=False),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Show this step alone.", show_default=False),
    ] = None,
    format: FormatOption = None,
    output: Output = None,
    classify: Classify = None,
) -> None:
    """Say what each step really waited for.

    Walks back from the end of a step over launches, streams, waits and, where
    ranks are matched, through collectives to the rank that came last.

    \b
    Examples:
      diagnose critical-path traces/
      diagnose critical-path traces/ --rank 3 --step 12 --format json
    """
    from diagnose import engine
    from diagnose.cli._output import deliver, page_for, refuse_overwriting
    from diagnose.cli._reading import read
    from diagnose.cli._tables import chosen, required
    from diagnose.errors import UnavailableError
    from diagnose.findings import Diagnosis
    from diagnose.reporters._path import selected, write

    refuse_overwriting(output, paths)
    form = chosen(format, output)
    requests = {
        "path": engine.Request("critical_path"),
        "slack": engine.Request("slack"),
        "cost": engine.Request("communication_cost"),
    }
    trace = read(paths, "launches", classify)
    sources, steps = _sources(trace, rank), _steps(trace, step)
    diagnosis = engine.diagnose(trace, requests, debug=bool(context.obj))
    required(diagnosis, *requests)
    tables = {name: selected(t, sources, steps) for name, t in diagnosis.tables.items()}
    if not len(tables["path"]):
        raise UnavailableError(
            f"step {step} has no step time" if step is not None else "no step has a step time",
            hint="the first step of a recording has none; choose a later one",
        )
    shown = Diagnosis(trace, tables, diagnosis.unavailable)
    deliver(write(shown, form, page_for(output)), output)


def _sources(trace: Trace, rank: int | None) -> list[int] | None:
    from diagnose.errors import UsageError
    from diagnose.wording.numbers import ranges

    if rank is None:
        return None
    found = [number for number, source in enumerate(trace.sources) if source.rank == rank]
    if not found:
        known = ranges([s.rank for s in trace.sources if s.rank is not None]) or "no known rank"
        raise UsageError(f"there is no rank {rank} in the trace", hint=f"it holds {known}")
    return found


def _steps(trace: Trace, number: int | None) -> list[int] | None:
    from diagnose.errors import UsageError
    from diagnose.wording.numbers import ranges

    if number is None:
        return None
    numbers = trace.steps["number"].tolist()
    found = [row for row, one in enumerate(numbers) if one == number]
    if not found:
        known = ranges([one for one in numbers if one >= 0]) or "no numbered step"
        raise UsageError(f"there is no step {number} in the trace", hint=f"it holds {known}")
    return found


COMMAND = critical_path
