"""Writes docs/rules/ from the docstrings of the rules. ``--check`` only compares.

python docs/generate_rules.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from diagnose import engine
from diagnose.cli._rule_rows import rule_row
from diagnose.reporters._rule_pages import page_markdown

TARGET = Path(__file__).resolve().parent / "rules"
_HEAD = """\
# Rules

Generated from `diagnose/rules/` by `python docs/generate_rules.py`; do not edit. How a finding
comes about: [findings](../findings.md).
"""


def pages() -> Mapping[str, str]:
    """File name -> content, of the list and of each rule's page."""
    rules = engine.rules().values()
    found = {f"{rule.id}.md": page_markdown(rule_row(rule), rule.page.sections) for rule in rules}
    lines = [_HEAD]
    for area in sorted({rule.area for rule in rules}):
        lines += [f"## {area.capitalize()}", "", "| rule | looks for | confidence |"]
        lines.append("| --- | --- | --- |")
        lines += [
            f"| [{rule.id}]({rule.id}.md) | {rule.title} | {rule.confidence} |"
            for rule in rules
            if rule.area == area
        ]
        lines.append("")
    return {**found, "README.md": "\n".join(lines).rstrip() + "\n"}


def stale() -> list[str]:
    """Files that differ, are missing, or belong to no rule."""
    wanted = pages()
    present = {path.name: path.read_text(encoding="utf-8") for path in TARGET.glob("*.md")}
    return sorted(name for name in {*wanted, *present} if wanted.get(name) != present.get(name))


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` return 1 if any is not current."""
    names = stale()
    if arguments == ["--check"]:
        if names:
            print(
                f"docs/rules: {', '.join(names)} not current: run python docs/generate_rules.py",
                file=sys.stderr,
            )
        return int(bool(names))
    if arguments:
        print("usage: python docs/generate_rules.py [--check]", file=sys.stderr)
        return 2
    TARGET.mkdir(exist_ok=True)
    wanted = pages()
    for name in names:
        if name in wanted:
            (TARGET / name).write_text(wanted[name], encoding="utf-8")
        else:
            (TARGET / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
