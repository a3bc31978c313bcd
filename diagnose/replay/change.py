"""What a change is: a declared edit of a ``Model``, with what is assumed where it is not known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from diagnose.analysis import Unavailable
from diagnose.replay.model import Model


class Assume(IntEnum):
    """Which end of what is not known a change takes."""

    LEAST = 0
    """What makes the gain smallest."""
    LIKELY = 1
    MOST = 2
    """What makes the gain largest."""


@dataclass(frozen=True, kw_only=True)
class Change(ABC):
    """One change of a job. Subclasses are frozen dataclasses; their fields, with the unit
    in the name, are the parameters of ``--change "id:field=value,field=value"``.

    The docstring's first line says what changes, the rest how the edit is made and what
    it assumes; ``diagnose whatif --list`` prints both.
    """

    id: ClassVar[str]
    """As on the command line: ``no-host-sync``."""
    title: ClassVar[str]
    """As in a table: ``host synchronisations removed``."""
    is_bound: ClassVar[bool] = False
    """Nothing that can be done reaches it: shows what could be gained at most."""
    searched: ClassVar[bool] = True
    """Whether ``--search`` tries it, with its defaults."""

    effort: ClassVar[int] = 2
    """What it takes: 1 an option, 2 a change of code, 3 rework. Of changes that gain about the
    same, a search is to take the lesser effort."""

    @abstractmethod
    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        """The model after the change. Unavailable: why it means nothing for this recording
        (as ``no communication was recorded``); then nothing was changed."""

    @property
    def label(self) -> str:
        """The change as it is written on the command line."""
        from diagnose.replay.change_text import text_of

        return text_of(self)
