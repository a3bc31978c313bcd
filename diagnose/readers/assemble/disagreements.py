"""Facts on which the processes of one job have to agree."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from diagnose.readers.assemble.part import Part
from diagnose.trace import Note


def disagreements(parts: list[Part]) -> list[Note]:
    """World sizes and step numbers that differ between processes. Needs the parts' tables."""
    return [*_world_sizes(parts), *_steps(parts)]


def _world_sizes(parts: list[Part]) -> list[Note]:
    sizes = [(part, size) for part in parts if (size := part.source.world_size) is not None]
    if len({size for _, size in sizes}) < 2:
        return []
    sentence = (
        f"world sizes differ: {_by_value((part, str(size)) for part, size in sizes)}; these are "
        "traces of different jobs, and comparing their ranks means nothing"
    )
    return [Note("world-size-differs", "warning", sentence, len({s for _, s in sizes}))]


def _steps(parts: list[Part]) -> list[Note]:
    numbers = [
        (part, tuple(sorted(set(marks["number"].tolist()))))
        for part in parts
        if (marks := part.tables.get("steps")) and len(marks["number"])
    ]
    distinct = {found for _, found in numbers}
    if len(distinct) < 2:
        return []
    spans = _by_value((part, _span(found)) for part, found in numbers)
    common = set.intersection(*map(set, distinct))
    sentence = (
        f"recorded steps differ: {spans}; {len(common)} are common to all, and windows of "
        "different steps are not the same work"
    )
    return [Note("steps-differ", "warning", sentence, len(distinct))]


def _span(numbers: tuple[int, ...]) -> str:
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"step {first}"
    return f"steps {first} to {last}" + ("" if last - first < len(numbers) else " with gaps")


def _by_value(pairs: Iterable[tuple[Part, Hashable]], limit: int = 4) -> str:
    labels: dict[Hashable, list[str]] = {}
    for part, value in pairs:
        labels.setdefault(value, []).append(part.source.label)
    shown = [
        f"{value} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for value, names in list(labels.items())[:limit]
    ]
    return ", ".join(shown) + (", ..." if len(labels) > limit else "")
