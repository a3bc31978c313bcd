"""Rules as a table and as pages; folklore and variables."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from diagnose.reporters._records import Record, encode
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.wording.plain import plain

_LITERAL = re.compile(r"^(?:[-*] |\d+\. |    |\|)")


def rules_sheet(rows: Sequence[Record]) -> Sheet:
    """The table of all rules."""
    return Sheet(
        f"{len(rows)} rules (`diagnose explain RULE` prints a rule's page)",
        (
            Heading("rule", left=True),
            Heading("area", left=True),
            Heading("confidence", left=True, spare=1),
            Heading("needs", left=True, spare=2),
            Heading("title", left=True),
        ),
        tuple(
            (row["rule"], row["area"], row["confidence"], ", ".join(row["needs"]), row["title"])
            for row in rows
        ),
    )


def rules_json(rows: Sequence[Record]) -> str:
    """All rules with their thresholds, for scripts."""
    return encode({"schema_version": 1, "rules": list(rows)})


def page_text(row: Record, sections: Mapping[str, str], width: int) -> str:
    """A rule's page for a terminal."""
    lines = [f"{row['rule']}: {row['title']}", *_facts(row), ""]
    for name, text in sections.items():
        lines += [name, *_paragraphs(text, width)]
        if name == "How it decides":
            for one in _thresholds(row):
                lines += textwrap.wrap(one, width, initial_indent="  ", subsequent_indent="    ")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def page_markdown(row: Record, sections: Mapping[str, str]) -> str:
    """A rule's page of the documentation."""
    lines = [f"# {row['rule']}", "", f"**{row['title']}.** " + "; ".join(_facts(row)) + ".", ""]
    for name, text in sections.items():
        lines += [f"## {name}", "", text, ""]
        if name == "How it decides" and row["thresholds"]:
            lines += [
                "| threshold | default | of what, and where it is from |",
                "| --- | --- | --- |",
            ]
            lines += [
                f"| `{one['name']}` | {one['default']:g} | {one['origin']} |"
                for one in row["thresholds"]
            ]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def folklore_text(rows: Sequence[Any], rules: Collection[str], width: int) -> str:
    """Each claim with its verdict and what is known; points to those of ``rules`` that exist."""
    lines = ["Advice that goes around, and what is known of it", ""]
    for one in rows:
        lines += textwrap.wrap(f'"{one.claim}"', width)
        there = [name for name in one.rules if name in rules]
        said = f"{one.verdict}: {one.answer}" + (f" (see {', '.join(there)})" if there else "")
        lines += textwrap.wrap(
            said, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
        )
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def variable_text(variable: Any, width: int) -> str:
    """What is known of an environment variable."""
    default = f", default {variable.default}" if variable.default else ""
    effect = " (no effect)" if variable.status in ("not found", "historical") else ""
    head = f"{variable.name}: {variable.status}{effect}{default}"
    return "\n".join([head, *textwrap.wrap(variable.answer, width)]) + "\n"


def variables_text(known: Iterable[Any]) -> str:
    """A line for each environment variable of which something is known, by name."""
    rows = sorted((one.name, one.status) for one in known)
    longest = max((len(name) for name, _ in rows), default=0)
    head = "Environment variables of which something is known (`diagnose explain VARIABLE`):"
    return "\n".join([head, *(f"  {name:<{longest}}  {said}" for name, said in rows)]) + "\n"


def _facts(row: Record) -> Iterator[str]:
    needs = ", ".join(row["needs"]) or "a trace"
    yield f"area {row['area']}, {row['confidence']} confidence, needs {needs}"
    if row["changes"]:
        yield f"gain replayed with {' and '.join(row['changes'])}"
    if row["explains"]:
        yield f"explains {', '.join(row['explains'])}"


def _thresholds(row: Record) -> Iterator[str]:
    for one in row["thresholds"]:
        yield f"{one['name']} = {one['default']:g}: {one['origin']}"


def _paragraphs(text: str, width: int) -> Iterator[str]:
    """Paragraphs wrapped anew; list items each begin a line."""
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        if block and (not line.strip() or _LITERAL.match(line)):
            hang = "  " + ("  " if _LITERAL.match(block[0]) else "")
            joined = " ".join(part.strip() for part in block)
            yield from textwrap.wrap(
                plain(joined), width, initial_indent="  ", subsequent_indent=hang
            )
            block = []
        if line.strip():
            block.append(line)
        elif not block and line == "":
            continue
