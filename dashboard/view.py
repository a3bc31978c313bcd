"""The contract of a page: one file in ``views/``, found by being there, exports ``VIEW``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from dashboard.address import Address
from dashboard.library import Library
from dashboard.shown import Shown
from diagnose import engine
from diagnose.plotting.palette import Palette

Component = Any
"""A Dash component; its classes are generated and not typed."""


def aria(**given: str) -> dict[str, Any]:
    """What assistive technology is told of a component: ``aria(label="Pages")``."""
    return {f"aria-{name}": value for name, value in given.items()}


class Visit(NamedTuple):
    """What a page is drawn for."""

    shown: Shown
    address: Address
    palette: Palette
    library: Library


@dataclass(frozen=True)
class View:
    """A page. ``key`` is its path, ``place`` its order in the navigation.

    ``draw`` returns components and measures nothing: numbers come from ``Shown``. ``reads``
    names what of the address it draws anew for; the rest is the business of callbacks.
    """

    key: str
    title: str
    place: int
    draw: Callable[[Visit], Component]
    reads: Callable[[Address], tuple[object, ...]] = lambda _: ()
    needs: Callable[[Address], tuple[str, ...]] = lambda _: ()
    """Keys of recordings that have to be loaded beside the one shown."""


@cache
def views() -> dict[str, View]:
    """Every page by its path, in the order of the navigation."""
    found = engine.discover("dashboard.views", "VIEW").values()
    return {view.key: view for view in sorted(found, key=lambda view: (view.place, view.key))}
