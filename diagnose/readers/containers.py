"""From a path to decompressed bytes: plain text, gzip and zip, local or any fsspec URL.

The content decides, never the name. A container that ends early or is damaged
delivers what could be decompressed; the stream then says so in ``damage``.
"""

from __future__ import annotations

import codecs
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from diagnose.errors import (
    DamagedInputError,
    EmptyInputError,
    InputError,
    InputNotFoundError,
    NotATraceError,
)
from diagnose.readers.foreign import describe_foreign

gzip_library: Any = zlib
with suppress(ImportError):  # three times as fast, but not built for every platform
    from isal import isal_zlib as gzip_library

Opener = Callable[[str], BinaryIO]

PLAIN_PIECE = 4 << 20
PACKED_PIECE = 64 << 10
INFLATED_PIECE = 512 << 10  # the most that one call may inflate, whatever the ratio
HEAD = 64 << 10
_SNIFFED = 512
_MOST_LAYERS = 3  # some tools pack what is packed already

GZIP = b"\x1f\x8b"
ZIP = b"PK\x03\x04"
EMPTY_ZIP = b"PK\x05\x06"

# With a byte order mark (which the decoder takes for itself), or the first letter without one.
_UTF16 = {
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    b"{\x00": "utf-16-le",
    b"[\x00": "utf-16-le",
    b"\x00{": "utf-16-be",
    b"\x00[": "utf-16-be",
}


@dataclass
class _Progress:
    """How far a file was read and how it broke off.

    Apart from the stream, so that the generators that read the file do not refer
    to the stream that holds them: without a cycle the file is closed at once.
    """

    bytes_read: int = 0
    packed_share: float = 1.0
    """Stored bytes to each of ``bytes_read``: others unpack the members of zip archives."""
    truncated_at_byte: int | None = None
    damage: str = ""

    @property
    def stored_bytes_read(self) -> int:
        return round(self.bytes_read * self.packed_share)

    def broken(self, how: str, unread: int = 0) -> None:
        """It breaks off ``unread`` bytes before where it was read to."""
        self.truncated_at_byte = round((self.bytes_read - unread) * self.packed_share)
        self.damage = how


class ByteStream:
    """Decompressed bytes of one file.

    ``stored_bytes_read`` and ``stored_bytes`` count bytes of the file as it is
    stored (compressed, within a zip archive in proportion; the second is None if
    unknown). Once ``read`` has
    returned b"": ``truncated_at_byte`` is the stored offset at which the
    container broke off (None: it is whole) and ``damage`` says how.
    """

    def __init__(
        self,
        pieces: Iterator[bytes],
        progress: _Progress,
        stored_bytes: int | None = None,
    ) -> None:
        self.stored_bytes = stored_bytes
        self._progress = progress
        self._pieces = pieces
        self._rest = b""

    @property
    def stored_bytes_read(self) -> int:
        return self._progress.stored_bytes_read

    @property
    def truncated_at_byte(self) -> int | None:
        return self._progress.truncated_at_byte

    @property
    def damage(self) -> str:
        return self._progress.damage

    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes; b"" at the end."""
        parts = [self._rest] if self._rest else []
        have = len(self._rest)
        self._rest = b""
        while have < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            parts.append(piece)
            have += len(piece)
        if have > size:
            cut = len(parts[-1]) - (have - size)
            self._rest = parts[-1][cut:]
            parts[-1] = parts[-1][:cut]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Give the file back now. An error that was raised while reading may keep the stream."""
        self._pieces = iter(())
        self._rest = b""

    def peek(self, size: int = HEAD) -> bytes:
        """The next bytes without taking them."""
        head = self.read(size)
        self._rest = head + self._rest
        return head


class _FailedStream(ByteStream):
    """A member that cannot be opened: says so when it is read, not before its neighbours are."""

    def __init__(self, error: InputError) -> None:
        super().__init__(iter(()), _Progress())
        self.error = error

    def read(self, _size: int, /) -> bytes:
        raise self.error


def _read_pieces(file: BinaryIO, head: bytes, progress: _Progress, size: int) -> Iterator[bytes]:
    """``head`` and the file behind it."""
    with file:
        progress.bytes_read = len(head)
        while True:
            try:
                piece = file.read(size)
            except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
                progress.broken(f"reading failed ({error})")
                piece = b""
            progress.bytes_read += len(piece)
            if head or piece:
                yield head + piece
            if not piece:
                return
            head = b""


def _gunzip(
    pieces: Iterator[bytes], progress: _Progress, reopen: Callable[[], BinaryIO] | None
) -> Iterator[bytes]:
    """All members of a gzip file, one after the other; zero padding between and after is legal."""
    inflate: Any = None
    delivered = 0
    for piece in pieces:
        left = piece
        while left:
            if inflate is None:
                left = left.lstrip(b"\x00")
                if not left:
                    break
                if not left[:2].startswith(GZIP[: len(left[:2])]):
                    progress.broken("bytes that are no gzip follow the gzip data", len(left))
                    return
                inflate = gzip_library.decompressobj(31)
            try:
                text = inflate.decompress(left, INFLATED_PIECE)
            except (gzip_library.error, zlib.error) as error:
                if reopen is not None:
                    yield from _salvage(reopen(), delivered)
                progress.broken(_what_failed(error))
                return
            if text:
                delivered += len(text)
                yield text
            left = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
            if inflate.eof:
                inflate = None
    if inflate is not None:
        with suppress(gzip_library.error, zlib.error):
            text = inflate.flush()
            if text:
                yield text
        if not progress.damage:
            progress.broken("the gzip stream ends before its end mark")


def _what_failed(error: Exception) -> str:
    if "check" in str(error).lower():  # "incorrect data check", "Incorrect checksum found"
        return "the gzip data is damaged (its checksum is wrong, so some text may be altered)"
    return f"the gzip data is damaged ({error})"


def _salvage(file: BinaryIO, skip: int) -> Iterator[bytes]:
    """What a damaged gzip file still holds after its first ``skip`` bytes of text.

    A failing call of the decompressor returns nothing of what it had inflated,
    so the file is read again and, near the damage, fed byte by byte.
    """
    inflate = zlib.decompressobj(31)
    seen = 0
    with file:
        while piece := file.read(PACKED_PIECE):
            before = inflate.copy()
            try:
                texts = [inflate.decompress(piece)]
                follow = inflate.unused_data.lstrip(b"\x00")
                while inflate.eof and follow.startswith(GZIP):
                    inflate = zlib.decompressobj(31)
                    texts.append(inflate.decompress(follow))
                    follow = inflate.unused_data.lstrip(b"\x00")
            except zlib.error:
                yield from _byte_by_byte(before, piece, max(0, skip - seen))
                return
            for text in texts:
                if seen + len(text) > skip:
                    yield text[max(0, skip - seen) :]
                seen += len(text)


def _byte_by_byte(inflate: Any, piece: bytes, skip: int) -> Iterator[bytes]:
    for at in range(len(piece)):
        if inflate.eof:
            inflate = zlib.decompressobj(31)
        try:
            text = inflate.decompress(piece[at : at + 1])
        except zlib.error:
            return
        if text[skip:]:
            yield text[skip:]
        skip = max(0, skip - len(text))


def _transcode(pieces: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    for piece in pieces:
        yield decoder.decode(piece).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def _stream(
    file: BinaryIO,
    head: bytes,
    reopen: Callable[[], BinaryIO] | None,
    stored_bytes: int | None,
    packed_share: float = 1.0,
) -> ByteStream:
    """A stream over one file or zip member; looks through gzip and UTF-16.

    ``head`` was read from ``file`` already; ``reopen`` (None: it cannot be read
    twice, as a pipe) opens it anew.
    """
    progress = _Progress(packed_share=packed_share)
    size = PACKED_PIECE if head.startswith(GZIP) else PLAIN_PIECE
    pieces = _read_pieces(file, head, progress, size)
    start = next(pieces, b"")  # also starts the generators, so that dropping them closes the file
    for layer in range(_MOST_LAYERS):
        pieces = _chain(start, pieces)
        if not start.startswith(GZIP):
            break
        pieces = _gunzip(pieces, progress, None if layer else reopen)
        start = next(pieces, b"")
    for begin, encoding in _UTF16.items():
        if start.startswith(begin):
            pieces = _transcode(pieces, encoding)
    return ByteStream(pieces, progress, stored_bytes)


def _chain(head: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from pieces


def open_binary(path: str) -> BinaryIO:
    """A path or fsspec URL, opened for reading bytes. Raises InputError."""
    try:
        if "://" in path:
            import fsspec

            file: BinaryIO = fsspec.open(path, "rb").open()
            return file
        return open(path, "rb", buffering=0)
    except FileNotFoundError:
        raise InputNotFoundError(f"{path}: no such file", hint="Check the path.") from None
    except IsADirectoryError:
        raise InputNotFoundError(f"{path}: is a folder, not a file") from None
    except PermissionError:
        raise InputError(
            f"{path}: not allowed to read it", hint="Check the file's permissions."
        ) from None
    except (OSError, ValueError, ImportError) as error:
        raise InputError(
            f"{path}: cannot be opened ({error})", hint="Check the address and its credentials."
        ) from None


def open_streams(path: str, opener: Opener = open_binary) -> Iterator[tuple[str, ByteStream]]:
    """Each text file that ``path`` holds: (its path, its bytes).

    One pair for a plain or gzip file, one for each file in a zip archive (its
    path is then ``archive.zip/member``): read each before taking the next.
    ``opener`` opens a path; it is called again if damaged gzip data has to be read
    twice.

    Raises EmptyInputError for a file without a byte, NotATraceError for known
    other formats, DamagedInputError for a zip archive without its directory.
    What is wrong with one member of an archive is raised when that is read.
    """
    with ExitStack() as kept:
        file = kept.enter_context(opener(path))
        seekable = file.seekable()
        head = _head(file)
        if not head:
            raise EmptyInputError(
                f"{path}: empty, not one byte", hint="Record again; the job may have been killed."
            )
        if head.startswith((ZIP, EMPTY_ZIP)):
            if not seekable:
                raise NotATraceError(
                    f"{path}: a zip archive from a pipe, which is read from its end",
                    hint="Save it as a file and give that.",
                )
            yield from _zip_members(path, file)
            return
        foreign = describe_foreign(head)
        if foreign:
            raise NotATraceError(f"{path}: {foreign[0]}, not a trace", hint=foreign[1])
        stored = file.seek(0, 2) if seekable else None
        if seekable:
            file.seek(len(head))
        stream = _stream(file, head, (lambda: opener(path)) if seekable else None, stored)
        kept.pop_all()  # closed by the stream from here on
    yield path, stream


def _head(file: BinaryIO) -> bytes:
    """The first bytes; a pipe hands out few at a time."""
    head = b""
    while len(head) < _SNIFFED and (piece := file.read(_SNIFFED - len(head))):
        head += piece
    return head


def _is_noise(name: str) -> bool:
    return "__MACOSX" in name or Path(name).name.startswith(".") or name.endswith("/")


def _zip_members(path: str, file: BinaryIO) -> Iterator[tuple[str, ByteStream]]:
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, OSError) as error:
        raise DamagedInputError(
            f"{path}: a zip archive that is cut off or damaged ({error})",
            hint="Copy it again, or unpack it with `zip -FF` and give the files.",
        ) from None
    with archive:
        infos = [info for info in archive.infolist() if not _is_noise(info.filename)]
        if not infos:
            raise EmptyInputError(
                f"{path}: a zip archive without a file", hint="Pack it again, or give the files."
            )
        for info in infos:
            member = f"{path}/{info.filename}"
            yield member, _member(archive, info, member)


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, member: str) -> ByteStream:
    if not info.file_size:
        return _FailedStream(EmptyInputError(f"{member}: empty, not one byte"))

    def open_member() -> BinaryIO:
        return archive.open(info)  # type: ignore[return-value]

    try:
        share = info.compress_size / info.file_size
        file = open_member()
        stream = _stream(file, file.read(len(ZIP)), open_member, info.compress_size, share)
    except RuntimeError:
        return _FailedStream(
            InputError(f"{member}: encrypted", hint="Unpack the archive and give the files.")
        )
    except (zipfile.BadZipFile, NotImplementedError, OSError) as error:
        return _FailedStream(
            DamagedInputError(f"{member}: cannot be unpacked ({error})", hint="Copy it again.")
        )
    foreign = describe_foreign(stream.peek(512))
    if foreign:
        return _FailedStream(
            NotATraceError(f"{member}: {foreign[0]}, not a trace", hint=foreign[1])
        )
    return stream
