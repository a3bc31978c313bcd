"""``diagnose explain``: the page of a rule, folklore, or an environment variable."""

from __future__ import annotations

from typing import Annotated

import typer

from diagnose.cli._options import Output


def explain(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="RULE|folklore|VARIABLE",
            help="A rule's id, an environment variable, or folklore.",
            show_default=False,
        ),
    ],
    output: Output = None,
) -> None:
    """Explain a rule, a variable, or folk advice.

    \b
    Examples:
      diagnose explain straggler-rank
      diagnose explain NCCL_ALGO
      diagnose explain folklore
    """
    from diagnose.cli._output import deliver, page_for

    deliver(_explained(topic, page_for(output).width), output)


def _explained(topic: str, width: int) -> str:
    from diagnose import engine
    from diagnose.cli._rule_rows import rule_row
    from diagnose.reporters import _rule_pages
    from diagnose.rules import _known

    rules = engine.rules()
    if topic in rules:
        rule = rules[topic]
        return _rule_pages.page_text(rule_row(rule), rule.page.sections, width)
    if topic == "folklore":
        return _rule_pages.folklore_text(_known.folklore(), rules, width)
    variable = _known.variables().get(topic.upper())
    if variable is not None:
        return _rule_pages.variable_text(variable, width)
    raise _unknown(topic, [*rules, "folklore", *_known.variables()])


def _unknown(topic: str, known: list[str]) -> Exception:
    import difflib

    from diagnose.errors import UsageError

    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(topic.lower(), list(by_lower), n=3)
    names = " or ".join(by_lower[one] for one in close)
    what = "environment variable" if topic.isupper() else "rule"
    hint = f"did you mean {names}?" if close else "see `diagnose rules` for the rules"
    return UsageError(f"nothing is known of the {what} {topic!r}", hint=hint)


COMMAND = explain
