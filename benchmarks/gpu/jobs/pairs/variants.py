"""A pair that was built: its two variants of one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Action = Callable[[], None]


def nothing() -> None:
    """What most variants do to their process."""


@dataclass(frozen=True)
class Variant:
    """One step, and what the process has to be like while such steps run."""

    step: Action
    enter: Action = nothing
    leave: Action = nothing

    @contextmanager
    def entered(self) -> Iterator[Action]:
        """The step, to be called while the process is as this variant wants it."""
        self.enter()
        try:
            yield self.step
        finally:
            self.leave()


@dataclass(frozen=True)
class Variants:
    """Both variants of a pair, and the facts with which the same ones can be built again."""

    before: Variant
    after: Variant
    facts: dict[str, Any] = field(default_factory=dict)
    close: Action = nothing

    def of(self, side: str) -> Variant:
        return self.before if side == "before" else self.after
