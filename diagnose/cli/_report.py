"""The report of what lies under some paths, as ``report`` and the recording verbs print it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from diagnose.reporters import Page, Reporter


@dataclass(frozen=True)
class Reading:
    """How much is read, and what helps to understand it."""

    only: Literal["gpu", "launches"] | None = None
    """Less than everything: without operators nothing is said of what overlap costs."""
    classify: Path | None = None
    rank: int | None = None
    nccl_tests: Path | None = None


def report_text(
    paths: Sequence[str], reporter: Reporter, page: Page, reading: Reading, *, debug: bool
) -> str:
    """Read, diagnose and render. Raises InputError if nothing can be read."""
    from diagnose import engine
    from diagnose.cli._reading import read

    requests: dict[str, Any] = dict(engine.REPORT)
    if reading.nccl_tests is not None:
        from diagnose.readers import nccl_tests as reference

        points = {"reference": reference.read(reading.nccl_tests)}
        requests["collectives"] = engine.Request("collective_sizes", points)
    trace = read(paths, reading.only, reading.classify, reading.rank)
    diagnosis = engine.diagnose(trace, requests, debug=debug)
    text = io.StringIO()
    reporter.render(diagnosis, text, page)
    return text.getvalue()
