"""How changes of the replay are written, as on the command line."""

from __future__ import annotations

import dataclasses
from typing import Any


def split(text: str | None) -> list[str]:
    """The lines of a text column."""
    return text.splitlines() if text else []


def in_full(change: str) -> str:
    """A change as a table holds it, with the amounts that it was tried with: they are left out
    there where they are the defaults, and a reader has to know them to do the same."""
    from diagnose.replay.change_text import known

    name, _, rest = change.partition(":")
    kind = known().get(name)
    if kind is None:
        return change
    given = [part for part in rest.split(",") if part]
    fields = {part.partition("=")[0] for part in given}
    given += [
        f"{field.name}={default_of(field)}"
        for field in dataclasses.fields(kind)
        if field.init
        and field.name not in fields
        and isinstance(field.default, (int, float))
        and not isinstance(field.default, bool)
    ]
    return f"{name}:{','.join(given)}" if given else name


def default_of(field: dataclasses.Field[Any]) -> str | None:
    """As on the command line; None: it is not set unless it is given."""
    value = field.default
    if value is dataclasses.MISSING or value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
