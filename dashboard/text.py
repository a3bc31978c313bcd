"""Text that comes from a trace, as a page shows it.

Dash puts a string into the page as text, never as markup. What is left to do is to
take out what is invisible or turns writing around, and to keep lengths bearable.
"""

from __future__ import annotations

from diagnose.wording.plain import plain

LONGEST = 300
"""Characters of a name that are shown at once."""


def whole(value: str) -> str:
    """All of it, printable."""
    return plain(value)


def shown(value: str, most: int = LONGEST) -> str:
    """Printable, and cut where it is long; pages keep the whole one in reach."""
    return plain(value, most)
