"""Where a verb's result goes: the terminal as it is, or a file that is whole or not there."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.reporters import Page

_PIPED_WIDTH = 100
_NARROWEST, _WIDEST = 60, 160


def page_for(output: Path | None) -> Page:
    """The page that the result is drawn on.

    A file gets 100 columns of UTF-8. The terminal gets its own width, colour
    unless it asks for none, and ASCII where its encoding has no more.
    """
    if output is not None:
        return Page(_PIPED_WIDTH)
    terminal = sys.stdout is not None and sys.stdout.isatty()
    width = _terminal_width() if terminal else _asked_width() or _PIPED_WIDTH
    wanted = bool(os.environ.get("FORCE_COLOR")) or terminal
    refused = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return Page(
        width=min(max(width, _NARROWEST), _WIDEST),
        color=wanted and not refused,
        unicode=_speaks_unicode(getattr(sys.stdout, "encoding", None)),
    )


def _asked_width() -> int | None:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and len(columns) < 5 else None


def _terminal_width() -> int:
    with contextlib.suppress(OSError, ValueError):
        return _asked_width() or os.get_terminal_size(sys.stdout.fileno()).columns or _PIPED_WIDTH
    return _PIPED_WIDTH


def _speaks_unicode(encoding: str | None) -> bool:
    try:
        "█▓░·…".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def deliver(text: str, output: Path | None, option: str = "--output") -> None:
    """Print the text, or write it to a file in one step. UsageError if that cannot be done."""
    if output is None:
        _print(text)
        return
    try:
        _write(text, output)
    except OSError as problem:
        raise UsageError(
            f"cannot write {output}: {problem.strerror or problem}",
            hint=f"give {option} a file in a folder that exists and that you may write to",
        ) from None


def refuse_overwriting(output: Path | None, paths: Sequence[str]) -> None:
    """UsageError if the output is one of the inputs: a result must not cost a recording."""
    for path in map(Path, paths):
        with contextlib.suppress(OSError):
            if output is not None and output.is_file() and output.samefile(path):
                raise UsageError(
                    f"the output {output} is one of the inputs and would replace it",
                    hint="give --output another name",
                )


def _print(text: str) -> None:
    if sys.stdout is None:
        raise UsageError(
            "cannot write to standard output: it is closed",
            hint="redirect it to a file, or use --output",
        )
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough (`| head`). Python would complain at exit.
        _discard_standard_output()
    except OSError as problem:
        _discard_standard_output()
        raise UsageError(
            f"cannot write to standard output: {problem.strerror or problem}",
            hint="free some space, or use --output with a file elsewhere",
        ) from None


def _discard_standard_output() -> None:
    """What Python still holds back goes nowhere, so that its exit does not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write(text: str, output: Path) -> None:
    target = output.resolve()
    if target.exists() and not target.is_file():
        # A device or a pipe cannot be replaced; a folder refuses to be opened.
        target.write_text(text, encoding="utf-8")
        return
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
