"""The report of what lies under some paths, as ``report`` and the recording verbs print it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from diagnose.findings import Diagnosis
    from diagnose.reporters import Page, Reporter
    from diagnose.rules._judge import Judging


@dataclass(frozen=True)
class Reading:
    """How much is read, and what helps to understand it."""

    only: Literal["gpu", "launches", "shapes"] | None = None
    """Less than the report needs: without input shapes nothing is said of what overlap costs,
    and rules that need operators are listed as not checked."""
    classify: Path | None = None
    rank: int | None = None
    nccl_tests: Path | None = None


class Report(NamedTuple):
    """A rendered report and what it was made of."""

    text: str
    diagnosis: Diagnosis


def report_of(
    paths: Sequence[str],
    reporter: Reporter,
    page: Page,
    reading: Reading,
    judging: Judging,
    *,
    debug: bool,
) -> Report:
    """Read, diagnose, judge and render. Raises InputError if nothing can be read."""
    from diagnose import engine
    from diagnose.cli._reading import read

    requests: dict[str, Any] = dict(engine.REPORT)
    requests |= {name: engine.Request(*asked) for name, asked in reporter.further.items()}
    if reading.nccl_tests is not None:
        from diagnose.readers import nccl_tests as reference

        points = reference.read(reading.nccl_tests)
        requests["collectives"] = engine.Request("collective_sizes", {"reference": points})
        judging = replace(judging, reference=points)
    trace = read(paths, reading.only, reading.classify, reading.rank)
    diagnosis = engine.diagnose(trace, requests, debug=debug, judging=judging)
    text = io.StringIO()
    reporter.render(diagnosis, text, page)
    return Report(text.getvalue(), diagnosis)


def report_text(
    paths: Sequence[str], reporter: Reporter, page: Page, reading: Reading, *, debug: bool
) -> str:
    """The report with the settings of the nearest file. Raises InputError as ``report_of``."""
    from diagnose.cli._rules import judging_of

    return report_of(paths, reporter, page, reading, judging_of(), debug=debug).text
