"""The contract of a figure: a module of ``diagnose/figures/`` that exports ``FIGURE``.

Being there is all it takes: ``Recording.plot``, pages and reports find it by its name and
take title, reading and drawing from one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from diagnose.analysis import Unavailable
from diagnose.plotting.palette import LIGHT, Palette
from diagnose.trace import Table, Trace
from diagnose.wording.labels import gpu_labels
from diagnose.wording.numbers import Scale, scale_for
from diagnose.wording.steps import step_label

if TYPE_CHECKING:
    from diagnose.lanes import Timeline
    from diagnose.plotting.style import Figure, LabelOf, Unit

Tables = Mapping[str, Table | Unavailable]
"""What an analysis gave, or why it gave nothing, by the keys of ``needs``."""
Need = tuple[str, Mapping[str, Any]]
"""An analysis and the options to run it with."""


@dataclass(frozen=True)
class FigureDefinition:
    """A figure as it is offered. ``reading`` says in a sentence how it is to be read.

    ``draw(tables, context, **options)`` measures nothing: it takes the tables of ``needs``
    and returns a plotly figure, or ``Unavailable`` where there is nothing to draw. Its
    keyword options are those of ``Recording.plot``.
    """

    name: str
    title: str
    reading: str
    draw: Callable[..., Figure | Unavailable]
    needs: Mapping[str, Need] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class FigureContext:
    """What a figure is drawn for, beside its tables."""

    trace: Trace
    palette: Palette = LIGHT
    given_scale: Scale | None = None
    """The unit of times that stand beside others; None: by the longest window of a GPU."""

    @cached_property
    def labels(self) -> LabelOf:
        """How each GPU is called."""
        return gpu_labels(self.trace)

    @cached_property
    def unit(self) -> Unit:
        """The unit that all times of the recording share."""
        if self.given_scale is not None:
            return unit_of(self.given_scale)
        longest = 0
        for gpu in self.trace.gpus:
            ops = self.trace.gpu_ops.take(self.trace.on(gpu))
            if len(ops):
                longest = max(longest, int(ops["end_ns"].max() - ops["start_ns"].min()))
        return unit_of(scale_for(longest))

    def step(self, row: int) -> str:
        """What a step is called."""
        return step_label(self.trace, row)

    @cached_property
    def timeline(self) -> Timeline:
        """The lanes of the trace on one axis."""
        from diagnose.lanes import Timeline

        return Timeline(self.trace)


def unit_of(scale: Scale) -> Unit:
    """The scale of a report as the unit of a figure."""
    from diagnose.plotting.style import Unit

    return Unit(scale.unit, scale.nanoseconds, scale.decimals)


def unit_for(longest_ns: int) -> Unit:
    """The unit of a figure whose longest time is this."""
    return unit_of(scale_for(longest_ns))
