"""Options about rules: which run, with which thresholds, and what makes a report fail."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from diagnose.findings import Diagnosis
    from diagnose.rules._judge import Judging


class FailOn(str, Enum):
    """The least severity that makes the exit status 1."""

    hint = "hint"
    info = "info"
    warning = "warning"
    critical = "critical"


Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="RULE,...",
        help="Run only these rules (as linters do; --only says how much is read).",
        show_default=False,
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="RULE,...", help="Leave out rules.", show_default=False),
]
FailOnOption = Annotated[
    FailOn | None,
    typer.Option(
        "--fail-on",
        help="Exit with status 1 if a finding is at least this grave.",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="TOML",
        help="Thresholds and selected rules: a diagnose.toml, or a pyproject.toml with "
        "[tool.diagnose] (default: the nearest such file).",
        show_default=False,
    ),
]
Baseline = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="Leave out findings that this file accepts.",
        show_default=False,
    ),
]
WriteBaseline = Annotated[
    Path | None,
    typer.Option(
        "--write-baseline",
        metavar="FILE",
        help="Accept what is found now: write it to a baseline.",
        show_default=False,
    ),
]


def judging_of(
    select: list[str] | None = None,
    ignore: list[str] | None = None,
    config: Path | None = None,
    baseline: Path | None = None,
) -> Judging:
    """What the options ask for. UsageError for a rule or file that does not exist."""
    from diagnose import engine
    from diagnose.rules._baseline import accepted_keys
    from diagnose.rules._judge import Judging
    from diagnose.rules._settings import known_rules, settings_from

    rules = engine.rules()
    return Judging(
        settings=settings_from(config, rules),
        select=known_rules(_split(select), rules, "--select"),
        ignore=known_rules(_split(ignore), rules, "--ignore"),
        accepted=frozenset() if baseline is None else accepted_keys(baseline),
    )


def fails(diagnosis: Diagnosis, least: FailOn | None) -> bool:
    """Whether a finding, or one that it explains, is at least that grave."""
    from diagnose.findings import SEVERITIES

    if least is None:
        return False
    grave = SEVERITIES[SEVERITIES.index(least.value) :]
    return any(one.severity in grave for found in diagnosis.findings for one in found.everything())


def write_baseline(diagnosis: Diagnosis, path: Path) -> None:
    """Write what was found as a baseline. UsageError if that cannot be done."""
    from diagnose.cli._output import deliver
    from diagnose.rules._baseline import baseline_text

    accepted = diagnosis.checked.accepted if diagnosis.checked else ()
    deliver(baseline_text(diagnosis.findings, accepted), path, "--write-baseline")


def _split(names: Iterable[str] | None) -> list[str]:
    return [name for one in names or () for name in one.split(",")]
