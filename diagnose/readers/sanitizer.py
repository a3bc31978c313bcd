"""What PyTorch's CUDA sanitizer prints: two uses of one tensor, on two streams, without an order.

The text is what ``TORCH_CUDA_SANITIZER=1`` leaves on stderr, in a log or not, behind a launcher's
prefix or not. What the agent writes instead of it: ``sanitizer_lines``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

_RACE = re.compile(
    r"CSAN detected a possible data race on tensor with data pointer (\d{1,20})(?!\d)"
)
_LAUNCHER = re.compile(r"^(?:\[[\w .-]{1,40}\]:\s?)+")
_USE = re.compile(r"(Previous a|A)ccess by stream (\d{1,20}) during kernel:")
_KIND = re.compile(
    r"(reading from|writing to)(?: argument\(s\) (?P<names>.+?)(?:, and to the output)?$)?"
)
_FRAME = re.compile(r'\s*File "(.*)", line (\d{1,9}), in (.*)')
_FOREIGN = re.compile(
    r"(?:^|[/\\])(?:site|dist)-packages[/\\]torch[/\\]|[/\\]diagnose[/\\]agent[/\\]"
)


class Frame(NamedTuple):
    """A line of Python, its path as recorded."""

    file: str
    line: int
    function: str

    @property
    def name(self) -> str:
        """The file without its folders."""
        return re.split(r"[/\\]", self.file)[-1] or "?"

    @property
    def place(self) -> str:
        """As ``train.py:41``."""
        return f"{self.name}:{self.line}"


@dataclass(frozen=True)
class Use:
    """One of the two: ``operator`` is its schema, ``stream`` a handle, 0 the default stream."""

    operator: str
    stream: int
    writes: bool
    arguments: tuple[str, ...] = ()
    output: bool = False
    stack: tuple[Frame, ...] = ()
    """Innermost last."""

    @property
    def name(self) -> str:
        """As ``aten::mm``, without overload and arguments."""
        return self.operator.partition("(")[0].partition(".")[0].strip()

    @property
    def own(self) -> Frame | None:
        """The innermost frame that is not torch's; None where there is none."""
        return innermost(self.stack)

    @property
    def own_stack(self) -> tuple[Frame, ...]:
        """The frames that are not torch's, innermost first."""
        return tuple(frame for frame in reversed(self.stack) if not _is_foreign(frame.file))


@dataclass(frozen=True)
class Race:
    """``second`` was launched after ``first`` and does not wait for it."""

    data_ptr: int
    second: Use
    first: Use
    allocated: tuple[Frame, ...] = ()
    """Where the tensor was made; empty: not known."""
    pid: int | None = None
    rank: int | None = None
    device: int | None = None
    steps: tuple[int, ...] = ()
    """Optimizer steps, counted from 1; empty: not known."""
    count: int = 1


def innermost(stack: Sequence[Frame]) -> Frame | None:
    """The innermost frame that is neither torch's nor the agent's; None where there is none."""
    return next((frame for frame in reversed(stack) if not _is_foreign(frame.file)), None)


def _is_foreign(file: str) -> bool:
    return file.startswith("<frozen") or _FOREIGN.search(file) is not None


def parse(text: str) -> tuple[Race, ...]:
    """The races in what the sanitizer printed; one that is cut off is left out."""
    lines = [_LAUNCHER.sub("", line) for line in text.splitlines()]
    starts = [at for at, line in enumerate(lines) if _RACE.search(line)]
    blocks = (lines[a:b] for a, b in pairwise([*starts, len(lines)]))
    return tuple(race for block in blocks if (race := _race(block)) is not None)


def _race(lines: Sequence[str]) -> Race | None:
    pointer = _RACE.search(lines[0])
    uses: dict[bool, Use] = {}
    allocated: tuple[Frame, ...] = ()
    for at, line in enumerate(lines):
        if (said := _USE.match(line)) and at + 2 < len(lines):
            kind = _KIND.match(lines[at + 2])
            if kind is None:
                return None
            uses[said[1] == "A"] = Use(
                operator=lines[at + 1].strip(),
                stream=int(said[2]),
                writes=kind[1] == "writing to",
                arguments=tuple((kind["names"] or "").split(", ")) if kind["names"] else (),
                output=lines[at + 2].endswith("the output"),
                stack=tuple(_frames(lines[at + 4 :])),
            )
        elif line.startswith("Tensor was allocated with stack trace"):
            allocated = tuple(_frames(lines[at + 1 :]))
    if pointer is None or len(uses) < 2:
        return None
    return Race(int(pointer[1]), uses[True], uses[False], allocated)


def _frames(lines: Sequence[str]) -> Iterator[Frame]:
    """Those of the stack that begins here: it ends at the first line that is not indented."""
    for line in lines:
        if not line.startswith(" "):
            return
        if found := _FRAME.fullmatch(line):
            yield Frame(found[1], int(found[2]), found[3])
