"""How a row says which GPU it is about."""

from __future__ import annotations

from collections import Counter

from diagnose.reporters._sheet import Heading
from diagnose.trace import Trace
from diagnose.wording.plain import shorten_middle
from diagnose.wording.steps import step_label

_FILE_WIDTH = 24
INCOMPLETE = (
    "!: events of this file were lost: times of work are lower bounds, idle an upper bound; do not "
    "use its steps (see the notes)."
)


def telling_apart(paths: list[str]) -> list[str]:
    """Each path without the folders that all share: its name at least, more where names repeat."""
    split = [path.split("/") for path in paths]
    names = Counter(parts[-1] for parts in split)
    shared = 0
    while all(len(parts) > shared + 1 and parts[shared] == split[0][shared] for parts in split):
        shared += 1
    return ["/".join(parts[shared:]) if names[parts[-1]] > 1 else parts[-1] for parts in split]


class Places:
    """Rank and device of a row; the file too where ranks alone do not tell rows apart."""

    def __init__(self, trace: Trace, *, unicode: bool) -> None:
        ranks = [source.rank for source in trace.sources]
        seen = Counter(ranks)
        self._ambiguous = None in seen or any(count > 1 for count in seen.values())
        self._trace = trace
        self._unicode = unicode
        files = telling_apart([source.path for source in trace.sources])
        self._files = [
            file if source.process is None else f"{file} {source.process}"
            for file, source in zip(files, trace.sources, strict=True)
        ]
        all_there = all(source.complete for source in trace.sources)
        self.footnotes: tuple[str, ...] = () if all_there else (INCOMPLETE,)
        self.headings: tuple[Heading, ...] = (Heading("rank"), Heading("GPU"))
        if self._ambiguous:
            self.headings += (Heading("file", left=True),)

    def cells(self, source: int, device: int) -> tuple[str, ...]:
        rank = self._trace.sources[source].rank
        mark = "" if self._trace.sources[source].complete else "!"
        cells: tuple[str, ...] = (("-" if rank is None else str(rank)) + mark, str(device))
        if self._ambiguous:
            cells += (shorten_middle(self._files[source], _FILE_WIDTH, unicode=self._unicode),)
        return cells

    def blank(self, label: str) -> tuple[str, ...]:
        """The cells of a row that is about many GPUs."""
        return (label, *([""] * (len(self.headings) - 1)))

    def step(self, row: int) -> str:
        """A step's number, or its name where it has none; ``none`` for work of no step."""
        return step_label(self._trace, row, unicode=self._unicode)
