"""Writes the tables of docs/classification.md from diagnose/names.toml. ``--check`` only compares.

python docs/generate_classification.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from diagnose import name_patterns
from diagnose.name_patterns import Pattern

TARGET = Path(__file__).resolve().parent / "classification.md"
SOURCE = Path(name_patterns.__file__).with_name("names.toml")
MARK = "<!-- generated from diagnose/names.toml by docs/generate_classification.py -->"
END = "<!-- end of the generated part -->"


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`" if text else ""


def _shortened(text: str, limit: int = 90) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _gpu_rows(entries: tuple[Pattern, ...]) -> Iterator[str]:
    yield "| pattern | class | collective | since | example, reason |"
    yield "|---|---|---|---|---|"
    for entry in entries:
        assert entry.activity is not None
        named = "from the name" if "(?P<collective>" in entry.pattern else entry.collective or ""
        sure = "" if entry.certain else " (uncertain)"
        example = _code(_shortened(entry.example)) + (f"; {entry.why}" if entry.why else "")
        cells = (
            _code(entry.pattern),
            entry.activity.name.lower() + sure,
            named.replace("_", "\\_"),
            entry.since,
            example,
        )
        yield "| " + " | ".join(cells) + " |"


def tables() -> str:
    """The generated part, without its marks."""
    known = name_patterns.read(SOURCE)
    lines = ["### Kernels", "", *_gpu_rows(known.kernels)]
    lines += ["", "### Copies and fills", "", *_gpu_rows(known.copies + known.fills)]
    lines += ["", "### Operators on the host", ""]
    lines += ["| pattern | its copies are communication | since |", "|---|---|---|"]
    lines += [
        f"| {_code(e.pattern)} | {'yes' if e.communicates else 'no'} | {e.since} |"
        for e in known.host_ops
    ]
    lines += ["", "### Calls into the runtime and the driver", ""]
    lines += ["| pattern | purpose | example |", "|---|---|---|"]
    for e in known.calls:
        assert e.call is not None
        lines.append(f"| {_code(e.pattern)} | {e.call.name.lower()} | {_code(e.example)} |")
    lines += ["", "### Families of compute kernels", ""]
    lines += ["| pattern | family | since |", "|---|---|---|"]
    lines += [f"| {_code(e.pattern)} | {e.family} | {e.since} |" for e in known.families]
    lines += ["", "### Collectives in one spelling", ""]
    lines += ["| collective | also written as |", "|---|---|"]
    lines += [
        f"| `{one}` | {', '.join(f'`{word}`' for word in written)} |"
        for one, written in known.collectives.items()
    ]
    return "\n".join(lines)


def page(current: str) -> str:
    """The page with its generated part renewed."""
    before, _, rest = current.partition(MARK)
    _, _, after = rest.partition(END)
    return f"{before}{MARK}\n\n{tables()}\n\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` return 1 if it is not current."""
    current = TARGET.read_text(encoding="utf-8")
    renewed = page(current)
    if "--check" in arguments:
        if current != renewed:
            sys.stderr.write("docs/classification.md: run python docs/generate_classification.py\n")
        return int(current != renewed)
    TARGET.write_text(renewed, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
