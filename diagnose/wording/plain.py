"""Text from a trace is untrusted: nothing in it may move a cursor, a column or a reader's eye."""

from __future__ import annotations

import unicodedata

# Controls, formats (with the marks that turn the direction of text), surrogates,
# private and unassigned characters, line and paragraph separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_MOST_CHARACTERS_LOOKED_AT = 2000


def width_of(text: str) -> int:
    """Columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def plain(text: str, width: int | None = None, *, unicode: bool = True) -> str:
    """A text as one printable line of at most ``width`` columns.

    Unsafe characters (and without ``unicode`` everything but ASCII) appear as
    backslash escapes; what is cut off is marked.
    """
    if not (text.isascii() and text.isprintable()):
        text = "".join(
            _escaped(c) if not _safe(c, unicode) else c for c in text[:_MOST_CHARACTERS_LOOKED_AT]
        )
    if width is None or width_of(text) <= width:
        return text
    mark = "…" if unicode else "..."
    if width <= len(mark):
        return mark[:width]
    from rich.cells import set_cell_size

    return set_cell_size(text, width - len(mark)).rstrip() + mark


def shorten_path(path: str, width: int, *, unicode: bool = True) -> str:
    """A path cut at its beginning, since its end tells more."""
    text = plain(path, unicode=unicode)
    if width_of(text) <= width:
        return text
    mark = "…" if unicode else "..."
    while text and width_of(text) > width - len(mark):
        text = text[1:]
    return mark + text


def shorten_middle(path: str, width: int, *, unicode: bool = True) -> str:
    """A path cut in its middle, where both the folder and the file tell it from others."""
    text = plain(path, unicode=unicode)
    if width_of(text) <= width:
        return text
    mark = "…" if unicode else "..."
    first = plain(text, width // 2, unicode=unicode)
    rest = shorten_path(text, width - width_of(first) + len(mark), unicode=unicode)
    return first + rest.removeprefix(mark)


def _safe(character: str, unicode: bool) -> bool:
    if character.isascii():
        return character.isprintable()
    return unicode and unicodedata.category(character) not in _UNSAFE


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
