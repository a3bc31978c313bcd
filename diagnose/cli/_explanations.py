"""The text of ``diagnose explain``: a rule's page, folklore, or environment variables."""

from __future__ import annotations

_PLAIN_WIDTH = 100
_OTHER_NAMES = dict.fromkeys(
    ("check-sync", "hazard", "hazards", "race", "races", "wait_stream", "record_stream"),
    "missing-stream-sync",
)
"""What a person may look for a rule by."""


def explained(topic: str, width: int = _PLAIN_WIDTH) -> str:
    """What is known of a topic, in lines of at most ``width``. UsageError with near misses."""
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
    if topic == "variables":
        return _rule_pages.variables_text(_known.variables().values())
    variable = _known.variables().get(topic.upper())
    if variable is not None:
        return _rule_pages.variable_text(variable, width)
    if topic.lower() in _OTHER_NAMES:
        return explained(_OTHER_NAMES[topic.lower()], width)
    raise _unknown(topic, [*rules, "folklore", "variables", *_known.variables()])


def _unknown(topic: str, known: list[str]) -> Exception:
    import difflib

    from diagnose.errors import UsageError

    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(topic.lower(), list(by_lower), n=3)
    names = " or ".join(by_lower[one] for one in close)
    what, listing = "rule", "`diagnose rules` lists the rules"
    if topic.isupper():
        what, listing = "environment variable", "`diagnose explain variables` lists those known"
    hint = f"did you mean {names}? Else: {listing}" if close else listing
    return UsageError(f"nothing is known of the {what} {topic!r}", hint=hint)
