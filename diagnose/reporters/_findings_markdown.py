"""Findings as Markdown: a heading each, advice as a numbered list, code in spans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from diagnose.reporters._findings import Line

Escape = Callable[[str], str]


def markdown(lines: Iterable[Line], escaped: Escape) -> Iterator[str]:
    """The lines of the section. What comes from a trace is escaped."""
    place = 0
    for line in lines:
        text = escaped(line.text)
        if line.role == "head":
            place = 0
            yield from ("", f"#### {line.label}. {text} ({line.severity})", "")
        elif line.role in ("sentence", "gain"):
            yield f"{text}  "
        elif line.role == "step":
            if not place:
                yield ""
            place += 1
            yield f"{place}. {text}"
        elif line.role == "code":
            yield f"   {code(line.text)}"
        elif line.role == "caveat":
            if line.label:
                yield ""
            yield f"- Unless: {text}"
        elif line.role == "folded":
            yield f"- Explains {text}"
        elif line.role == "more":
            # Indented: it belongs to the step above.
            yield from ("", f"   {text}")
        else:
            label = f"**{line.label}**: " if line.label else ""
            yield f"{label}{text}  "


def code(text: str) -> str:
    """A code span that holds whatever the text holds."""
    ticks = "`"
    while ticks in text:
        ticks += "`"
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"
