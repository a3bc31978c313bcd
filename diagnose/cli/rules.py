"""``diagnose rules``: every rule."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from diagnose.cli._options import Output


class Format(str, Enum):
    """How the rules are listed."""

    text = "text"
    json = "json"


def rules(
    format: Annotated[Format, typer.Option(help="How the rules are listed.")] = Format.text,
    output: Output = None,
) -> None:
    """List the rules that a report checks.

    \b
    Thresholds and the choice of rules come from a diagnose.toml (or [tool.diagnose]
    in a pyproject.toml):
      ignore = ["power-capped"]
      [rules.straggler-rank]
      min_lost_pct = 10.0

    \b
    Examples:
      diagnose rules
      diagnose rules --format json -o rules.json
    """
    import io

    from diagnose import engine
    from diagnose.cli._output import deliver, page_for
    from diagnose.cli._rule_rows import rule_row
    from diagnose.reporters._rule_pages import rules_json, rules_sheet
    from diagnose.reporters.text import console_for, draw

    rows = [rule_row(rule) for rule in engine.rules().values()]
    if format is Format.json:
        deliver(rules_json(rows), output)
        return
    text, page = io.StringIO(), page_for(output)
    draw(console_for(text, page), rules_sheet(rows), page)
    deliver(text.getvalue(), output)


COMMAND = rules
