"""A window over a stream of JSON text, and where its events may be cut apart."""

from __future__ import annotations

import re
from collections.abc import Callable

from diagnose.errors import DecompressionBombError
from diagnose.readers.raw import Stream

CHUNK_BYTES = 2 << 20
LARGEST_EVENT = 16 << 20

# Real traces compress 12:1 to 30:1, tiled ones 100:1; deflate ends at 1032:1. Text without an
# event, hundreds of megabytes long, that unpacks from next to nothing is no trace.
BOMB_RATIO = 200
BOMB_BYTES = 256 << 20

# The key tells an event from an object within an event's arguments, in nearly every case; where
# it does not, the brackets around the cut do not balance and decoding fails.
_EVENT = rb'\{\s*"(?:ph|name|cat|ts|dur|pid|tid|args|id|s|bp|tts|cname)"\s*:'
EVENT_START = re.compile(_EVENT)
BOUNDARY = re.compile(rb"\}\s*,\s*(?=" + _EVENT + rb")")


class Window:
    """The part of the text that is in memory.

    ``data[at:]`` is not read yet; ``base`` is the offset in the whole
    (decompressed) text of ``data[0]``.
    """

    def __init__(
        self,
        stream: Stream,
        path: str,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.data = b""
        self.at = 0
        self.base = 0
        self.ended = False
        self.path = path
        self.chunk_bytes = chunk_bytes
        self._stream = stream
        self._progress = progress
        self._reported = 0
        self._event_seen_at = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of text read so far."""
        return self.base + len(self.data)

    @property
    def offset(self) -> int:
        """Offset in the text of the next byte to be read."""
        return self.base + self.at

    @property
    def stored_share(self) -> float | None:
        """Which part of the file, as it is stored, was read; None if unknown."""
        size = getattr(self._stream, "stored_bytes", None)
        read: int = getattr(self._stream, "stored_bytes_read", 0)
        return min(1.0, read / size) if size and read else None

    @property
    def damage(self) -> str:
        """How the container broke off; "" while it did not."""
        how: str = getattr(self._stream, "damage", "")
        byte = getattr(self._stream, "truncated_at_byte", None)
        return f"{how}, at byte {byte} of the file" if how else ""

    def more(self) -> bool:
        """Append the next chunk, dropping what was read. False at the end of the text."""
        if self.ended:
            return False
        text = self._stream.read(self.chunk_bytes)
        self.base += self.at
        self.data = self.data[self.at :] + text if self.at < len(self.data) else text
        self.at = 0
        self.ended = not text
        self._guard()
        if self._progress:
            done = getattr(self._stream, "stored_bytes_read", self.num_bytes)
            self._progress(done - self._reported)
            self._reported = done
        return bool(text)

    def event_seen(self) -> None:
        self._event_seen_at = self.num_bytes

    def _guard(self) -> None:
        if self.num_bytes - self._event_seen_at <= BOMB_BYTES:
            return
        stored = getattr(self._stream, "stored_bytes_read", 0)
        if stored and self.num_bytes > BOMB_RATIO * stored:
            raise DecompressionBombError(
                f"{self.path}: {stored} bytes unpack to more than {self.num_bytes >> 20} MiB, and"
                f" the last {BOMB_BYTES >> 20} MiB hold no event",
                hint="This looks like a decompression bomb, not a trace; it was not read further.",
            )


def last_boundary(text: bytes) -> tuple[int, int] | None:
    """(end of the last event known to be complete, start of the next one) in ``text``."""
    for span in (1 << 14, 1 << 18, len(text)):
        found = list(BOUNDARY.finditer(text, max(0, len(text) - span)))
        if found:
            return found[-1].start() + 1, found[-1].end()
        if span >= len(text):
            break
    return None
