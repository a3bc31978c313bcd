"""From a path to decompressed bytes: plain text, gzip and zip, local or any fsspec URL.

The content decides, never the name. A container that ends early or is damaged
delivers what could be decompressed; the stream then says so in ``damage``.
"""

from __future__ import annotations

import codecs
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from diagnose.errors import (
    DamagedInputError,
    EmptyInputError,
    InputError,
    InputNotFoundError,
    NotATraceError,
)

gzip_library: Any = zlib
with suppress(ImportError):  # three times as fast, but not built for every platform
    from isal import isal_zlib as gzip_library

Opener = Callable[[str], BinaryIO]

PLAIN_PIECE = 4 << 20
PACKED_PIECE = 64 << 10
INFLATED_PIECE = 1 << 20  # the most that one call may inflate, whatever the ratio
HEAD = 64 << 10

GZIP = b"\x1f\x8b"
ZIP = b"PK\x03\x04"
EMPTY_ZIP = b"PK\x05\x06"

_UNPACK = "Unpack it first and give the JSON file, or compress it with gzip."
_NOT_TRACES = {
    b"\x28\xb5\x2f\xfd": ("zstd-compressed data", _UNPACK),
    b"BZh": ("bzip2-compressed data", _UNPACK),
    b"\xfd7zXZ\x00": ("xz-compressed data", _UNPACK),
    b"\x04\x22\x4d\x18": ("lz4-compressed data", _UNPACK),
    b"7z\xbc\xaf\x27\x1c": ("a 7-Zip archive", _UNPACK),
    b"SQLite format 3\x00": (
        "an SQLite database (Nsight Systems exports such files)",
        "Give a trace written by torch.profiler.",
    ),
    b"NVR\x00": (
        "an Nsight Compute report",
        "Give a trace written by torch.profiler.",
    ),
    b"\x7fELF": ("a program", "Give a trace written by torch.profiler."),
    b"PAR1": ("a Parquet file", "Give a trace written by torch.profiler."),
    b"\x89HDF": ("an HDF5 file", "Give a trace written by torch.profiler."),
    b"%PDF": ("a PDF document", "Give a trace written by torch.profiler."),
    b"\x89PNG": ("a picture", "Give a trace written by torch.profiler."),
}


def describe_foreign(head: bytes) -> tuple[str, str] | None:
    """What a file that begins with ``head`` is, and the hint, if it is a known other format."""
    for magic, described in _NOT_TRACES.items():
        if head.startswith(magic):
            return described
    if head[257:262] == b"ustar":
        return "a tar archive", "Unpack it and give the folder."
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return (
            "a Python pickle (memory snapshots are such files)",
            "Give the JSON file that export_chrome_trace wrote.",
        )
    if b"QuadDAnalysis" in head[:4096] or b"NvtxExtPayload" in head[:4096]:
        return (
            "an Nsight Systems report",
            "Give a trace written by torch.profiler.",
        )
    if head.lstrip()[:1] == b"<":
        return "a web page or XML", "Check the download: it may be a login or error page."
    return None


class ByteStream:
    """Decompressed bytes of one file.

    ``stored_bytes_read`` and ``stored_bytes`` count bytes of the file as it is
    stored (compressed; the second is None if unknown). Once ``read`` has
    returned b"": ``truncated_at_byte`` is the stored offset at which the
    container broke off (None: it is whole) and ``damage`` says how.
    """

    def __init__(self, stored_bytes: int | None = None) -> None:
        self.stored_bytes_read = 0
        self.stored_bytes = stored_bytes
        self.truncated_at_byte: int | None = None
        self.damage = ""
        self._pieces: Iterator[bytes] = iter(())
        self._rest = b""

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

    def peek(self, size: int = HEAD) -> bytes:
        """The next bytes without taking them."""
        head = self.read(size)
        self._rest = head + self._rest
        return head

    def broken(self, how: str) -> None:
        self.truncated_at_byte = self.stored_bytes_read
        self.damage = how


class _FailedStream(ByteStream):
    """A member that cannot be opened: says so when it is read, not before its neighbours are."""

    def __init__(self, error: InputError) -> None:
        super().__init__()
        self.error = error

    def read(self, _size: int, /) -> bytes:
        raise self.error


def _read_pieces(file: BinaryIO, stream: ByteStream, size: int) -> Iterator[bytes]:
    with file:
        while True:
            try:
                piece = file.read(size)
            except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
                stream.broken(f"reading failed ({error})")
                return
            if not piece:
                return
            stream.stored_bytes_read += len(piece)
            yield piece


def _gunzip(
    pieces: Iterator[bytes], stream: ByteStream, reopen: Callable[[], BinaryIO]
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
                    stream.broken("bytes that are no gzip follow the compressed data")
                    return
                inflate = gzip_library.decompressobj(31)
            try:
                text = inflate.decompress(left, INFLATED_PIECE)
            except (gzip_library.error, zlib.error) as error:
                yield from _salvage(reopen(), delivered)
                stream.broken(f"the gzip data is damaged ({error})")
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
        if not stream.damage:
            stream.broken("the gzip stream ends before its end mark")


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


def _stream(open_again: Callable[[], BinaryIO], stored_bytes: int | None) -> ByteStream:
    """A stream over one file or zip member; looks through gzip and UTF-16."""
    file = open_again()
    stream = ByteStream(stored_bytes)
    head = file.read(4)
    packed = head.startswith(GZIP)
    if file.seekable():
        file.seek(0)
        pieces = _read_pieces(file, stream, PACKED_PIECE if packed else PLAIN_PIECE)
    else:
        stream.stored_bytes_read = len(head)
        pieces = _chain(head, _read_pieces(file, stream, PACKED_PIECE if packed else PLAIN_PIECE))
    if packed:
        pieces = _gunzip(pieces, stream, open_again)
    stream._pieces = pieces
    if stream.peek(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        rest, stream._rest = stream._rest, b""
        stream._pieces = _transcode(_chain(rest, pieces), "utf-16")
    return stream


def _chain(head: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
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
    with opener(path) as file:
        head = file.read(512)
        if not head:
            raise EmptyInputError(
                f"{path}: empty, not one byte", hint="Record again; the job may have been killed."
            )
        if head.startswith((ZIP, EMPTY_ZIP)):
            yield from _zip_members(path, file)
            return
        stored = _size(file)
    foreign = describe_foreign(head)
    if foreign:
        raise NotATraceError(f"{path}: {foreign[0]}, not a trace", hint=foreign[1])
    yield path, _stream(lambda: opener(path), stored)


def _size(file: BinaryIO) -> int | None:
    if not file.seekable():
        return None
    return file.seek(0, 2)


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
        for info in archive.infolist():
            if not _is_noise(info.filename):
                member = f"{path}/{info.filename}"
                yield member, _member(archive, info, member)


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, member: str) -> ByteStream:
    if not info.file_size:
        return _FailedStream(EmptyInputError(f"{member}: empty, not one byte"))

    def open_member() -> BinaryIO:
        return archive.open(info)  # type: ignore[return-value]

    try:
        stream = _stream(open_member, info.file_size)
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
