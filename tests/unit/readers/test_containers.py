from __future__ import annotations

import codecs
import gzip
import io
import os
import sys
import threading
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

import pytest

from diagnose.errors import (
    DamagedInputError,
    EmptyInputError,
    InputError,
    InputNotFoundError,
    NotATraceError,
)
from diagnose.readers import containers
from diagnose.readers.containers import PACKED_PIECE, ByteStream, open_streams

# Long enough for many pieces, and hard to compress, so that its gzip form has many as well.
TEXT = b"".join(b'{"ph": "X", "id": %d},\n' % (i * 2654435761 % 2**32) for i in range(40_000))


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def everything(stream: ByteStream, size: int = 100_000) -> bytes:
    parts = []
    while part := stream.read(size):
        assert len(part) <= size
        parts.append(part)
    return b"".join(parts)


def one(path: str) -> tuple[bytes, ByteStream]:
    ((member, stream),) = open_streams(path)
    assert member == path
    return everything(stream), stream


def members(path: str) -> dict[str, bytes]:
    return {member: everything(stream) for member, stream in open_streams(path)}


@pytest.fixture(params=["isal", "zlib"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "zlib":
        monkeypatch.setattr(containers, "gzip_library", zlib)
    else:
        pytest.importorskip("isal")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    "packed",
    [
        TEXT,
        gzip.compress(TEXT),
        gzip.compress(TEXT) + b"\x00" * 512,
        gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:]),
        gzip.compress(TEXT[:1000]) + b"\x00" * 100_000 + gzip.compress(TEXT[1000:]),
        gzip.compress(b"") + gzip.compress(TEXT),
        b"".join(gzip.compress(TEXT[i : i + 9999]) for i in range(0, len(TEXT), 9999)),
    ],
    ids=["plain", "gzip", "padded", "members", "padding between", "empty member", "many members"],
)
@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a"])
def test_the_content_decides(tmp_path: Path, packed: bytes, name: str) -> None:
    content, stream = one(write(tmp_path / name, packed))
    assert content == TEXT
    assert stream.truncated_at_byte is None
    assert stream.damage == ""
    assert stream.stored_bytes_read == stream.stored_bytes == len(packed)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.999])
def test_a_cut_gzip_stream_delivers_its_part(tmp_path: Path, share: float) -> None:
    packed = gzip.compress(TEXT)
    cut = int(len(packed) * share)
    content, stream = one(write(tmp_path / "a.gz", packed[:cut]))
    expected = zlib.decompressobj(31).decompress(packed[:cut])
    # A library may hold back the last symbol, which stands for up to 258 bytes.
    assert expected.startswith(content)
    assert len(content) >= len(expected) - 258
    assert len(content) > 0.5 * share * len(TEXT)
    assert stream.truncated_at_byte == cut


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("lost", [1, 4, 8])
def test_without_its_end_mark_a_gzip_stream_is_cut(tmp_path: Path, lost: int) -> None:
    content, stream = one(write(tmp_path / "a.gz", gzip.compress(TEXT)[:-lost]))
    assert content == TEXT
    assert stream.truncated_at_byte is not None


@pytest.mark.usefixtures("library")
def test_a_wrong_checksum_costs_nothing_but_is_told(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(TEXT))
    packed[-6] ^= 1
    content, stream = one(write(tmp_path / "a.gz", bytes(packed)))
    assert content == TEXT
    assert "checksum" in stream.damage


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("members_before", [0, 2])
def test_damage_within_gzip_data_costs_only_what_follows(
    tmp_path: Path, members_before: int
) -> None:
    before = gzip.compress(TEXT) * members_before
    packed = bytearray(before + gzip.compress(TEXT))
    at = len(before) + (len(packed) - len(before)) // 2
    assert at > PACKED_PIECE
    packed[at : at + 8] = b"\xff" * 8
    content, stream = one(write(tmp_path / "a.gz", bytes(packed)))
    sound = TEXT * (members_before + 1)
    same = next(
        (i for i, (a, b) in enumerate(zip(content, sound, strict=False)) if a != b), len(content)
    )
    assert same > (members_before + 0.45) * len(TEXT)
    assert stream.damage


def test_other_bytes_after_gzip_data_are_told(tmp_path: Path) -> None:
    content, stream = one(write(tmp_path / "a.gz", gzip.compress(TEXT) + b"surplus"))
    assert content == TEXT
    assert "no gzip" in stream.damage


def test_memory_stays_bounded_whatever_the_ratio(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gz", gzip.compress(b"\x00" * (64 << 20)))
    ((_, stream),) = open_streams(path)
    largest = 0
    while part := stream.read(4096):
        largest = max(largest, len(stream._rest))
        assert len(part) <= 4096
        if stream.stored_bytes_read == stream.stored_bytes and largest:
            break
    assert largest <= containers.INFLATED_PIECE


def make_zip(path: Path, files: dict[str, bytes]) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return str(path)


def test_each_file_of_a_zip_archive(tmp_path: Path) -> None:
    path = make_zip(
        tmp_path / "a.zip",
        {
            "run/": b"",
            "run/rank0.json": TEXT,
            "run/deep/er/rank1.json.gz": gzip.compress(TEXT[:5000]),
            "__MACOSX/run/._rank0.json": b"noise",
            "run/.DS_Store": b"noise",
        },
    )
    assert members(path) == {
        f"{path}/run/rank0.json": TEXT,
        f"{path}/run/deep/er/rank1.json.gz": TEXT[:5000],
    }


def test_a_bad_member_does_not_cost_its_neighbours(tmp_path: Path) -> None:
    files = {
        "a.json": TEXT,
        "empty.json": b"",
        "b.sqlite": b"SQLite format 3\x00" * 9,
        "c.json": b"{}",
    }
    path = make_zip(tmp_path / "a.zip", files)
    found: dict[str, object] = {}
    for member, stream in open_streams(path):
        try:
            found[member.rsplit("/", 1)[1]] = everything(stream)
        except InputError as error:
            found[member.rsplit("/", 1)[1]] = type(error)
    assert found == {
        "a.json": TEXT,
        "empty.json": EmptyInputError,
        "b.sqlite": NotATraceError,
        "c.json": b"{}",
    }


def test_a_damaged_member_says_so(tmp_path: Path) -> None:
    path = Path(make_zip(tmp_path / "a.zip", {"a.json": TEXT}))
    packed = bytearray(path.read_bytes())
    packed[len(packed) // 2] ^= 0xFF
    path.write_bytes(bytes(packed))
    for _, stream in open_streams(str(path)):
        content = everything(stream)
        assert stream.damage
        assert len(content) <= len(TEXT)


def test_a_cut_archive(tmp_path: Path) -> None:
    path = Path(make_zip(tmp_path / "a.zip", {"a.json": TEXT}))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DamagedInputError, match=r"a\.zip"):
        list(open_streams(str(path)))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("marked", [True, False])
def test_utf16_becomes_utf8(tmp_path: Path, encoding: str, marked: bool) -> None:
    text = '{"name": "\u00e9 \U0001f600"}' * 50_000
    bom = codecs.BOM_UTF16_LE if encoding.endswith("le") else codecs.BOM_UTF16_BE
    for written in (text, "[" + text):
        content, _ = one(
            write(tmp_path / "a.json", (bom if marked else b"") + written.encode(encoding))
        )
        assert content == written.encode()


def test_an_encrypted_member(tmp_path: Path) -> None:
    path = Path(make_zip(tmp_path / "a.zip", {"a.json": TEXT, "b.json": b"{}"}))
    packed = bytearray(path.read_bytes())
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        packed[packed.index(header) + flags] |= 1
    path.write_bytes(bytes(packed))
    streams = open_streams(str(path))
    with pytest.raises(InputError, match=r"a\.zip/a\.json: encrypted") as caught:
        next(streams)[1].read(10)
    assert caught.value.hint
    assert everything(next(streams)[1]) == b"{}"


def test_an_archive_within_an_archive_is_named(tmp_path: Path) -> None:
    inner = Path(make_zip(tmp_path / "inner.zip", {"a.json": TEXT})).read_bytes()
    path = make_zip(tmp_path / "a.zip", {"inner.zip": inner, "b.json": b"{}"})
    streams = open_streams(path)
    with pytest.raises(NotATraceError, match=r"inner\.zip: a zip archive within"):
        next(streams)[1].read(10)
    assert everything(next(streams)[1]) == b"{}"


@pytest.mark.parametrize("files", [{}, {"folder/": b""}, {"__MACOSX/._a.json": b"noise"}])
def test_an_archive_without_a_file(tmp_path: Path, files: dict[str, bytes]) -> None:
    with pytest.raises(EmptyInputError, match=r"a\.zip"):
        list(open_streams(make_zip(tmp_path / "a.zip", files)))


def test_what_a_zip_member_takes_up_is_what_is_stored(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "a.zip", {"a.json": b" " * 10_000_000})
    with zipfile.ZipFile(path) as archive:
        stored = archive.infolist()[0].compress_size
    assert stored < 20_000
    for _, stream in open_streams(path):
        assert len(everything(stream)) == 10_000_000
        assert stream.stored_bytes_read == stream.stored_bytes == stored


def test_a_file_is_closed_when_its_stream_is_dropped(tmp_path: Path) -> None:
    opened: list[BinaryIO] = []

    def opener(path: str) -> BinaryIO:
        opened.append(open(path, "rb"))  # noqa: SIM115 - the stream has to close it
        return opened[-1]

    path = write(tmp_path / "a.gz", gzip.compress(TEXT))
    for _, stream in open_streams(path, opener):
        stream.read(10)
        del stream
    assert opened
    assert all(file.closed for file in opened)
    opened.clear()
    for _, kept in open_streams(path, opener):
        kept.read(10)
        kept.close()
        assert all(file.closed for file in opened)
        assert kept.read(10) == b""


@pytest.mark.parametrize(
    ("head", "word"),
    [
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"BZh91AY", "bzip2"),
        (b"\xfd7zXZ\x00", "xz"),
        (b"SQLite format 3\x00", "SQLite"),
        (b"\x80\x05\x95", "pickle"),
        (b"<!DOCTYPE html>", "web page"),
        (b"a" * 257 + b"ustar", "tar"),
    ],
)
def test_other_formats_are_named(tmp_path: Path, head: bytes, word: str) -> None:
    with pytest.raises(NotATraceError, match=word) as caught:
        list(open_streams(write(tmp_path / "a.json", head + b"\x00" * 600)))
    assert "a.json" in str(caught.value)
    assert caught.value.hint


def test_nothing_there_and_nothing_in_it(tmp_path: Path) -> None:
    with pytest.raises(EmptyInputError, match=r"a\.json"):
        list(open_streams(write(tmp_path / "a.json", b"")))
    with pytest.raises(InputNotFoundError, match="b"):
        list(open_streams(str(tmp_path / "b.json")))
    with pytest.raises(InputNotFoundError, match="folder"):
        list(open_streams(str(tmp_path)))
    with pytest.raises(InputError, match="nonsense"):
        list(open_streams("nonsense://a/b.json"))


def test_a_url(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://run/a.json", "wb") as file:
        file.write(gzip.compress(TEXT))
    content, _ = one("memory://run/a.json")
    assert content == TEXT
    path = make_zip(tmp_path / "a.zip", {"a.json": TEXT})
    assert members(f"file://{path}") == {f"file://{path}/a.json": TEXT}


class Pipe(io.RawIOBase):
    """Bytes that can be read once, as from a pipe, and then fail."""

    def __init__(self, content: bytes, fails: bool) -> None:
        self._content, self._fails = io.BytesIO(content), fails

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        part = self._content.read(size)
        if not part and self._fails:
            raise OSError("Stale file handle")
        return part


@pytest.mark.parametrize("packed", [TEXT, gzip.compress(TEXT)])
@pytest.mark.parametrize("fails", [False, True])
def test_what_cannot_seek_and_what_fails(packed: bytes, fails: bool) -> None:
    def opener(path: str) -> BinaryIO:
        return Pipe(packed, fails)  # type: ignore[return-value]

    ((_, stream),) = open_streams("pipe", opener)
    assert everything(stream) == TEXT
    assert ("Stale" in stream.damage) is fails


def test_peeking_takes_nothing(tmp_path: Path) -> None:
    ((_, stream),) = open_streams(write(tmp_path / "a.gz", gzip.compress(TEXT)))
    assert stream.peek(10) == TEXT[:10]
    assert stream.peek(100_000) == TEXT[:100_000]
    assert everything(stream) == TEXT


def test_fsspec_is_loaded_for_urls_only(tmp_path: Path) -> None:
    import subprocess

    path = write(tmp_path / "a.json", b"{}")
    code = (
        "import sys; from diagnose.readers.containers import open_streams;"
        f" [s.read(9) for _, s in open_streams({path!r})]; print('fsspec' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_what_was_packed_twice_is_unpacked_twice(tmp_path: Path) -> None:
    packed = gzip.compress(gzip.compress(TEXT))
    content, stream = one(write(tmp_path / "a.gz", packed))
    assert content == TEXT
    assert not stream.damage
    zipped = make_zip(tmp_path / "a.zip", {"a.json.gz": gzip.compress(TEXT)})
    assert members(zipped) == {f"{zipped}/a.json.gz": TEXT}


def test_the_byte_at_which_other_bytes_follow(tmp_path: Path) -> None:
    packed = gzip.compress(TEXT)
    _, stream = one(write(tmp_path / "a.gz", packed + b"surplus"))
    assert stream.truncated_at_byte == len(packed)


@pytest.mark.parametrize("packed", [TEXT, gzip.compress(TEXT)])
def test_a_named_pipe_is_read_once(tmp_path: Path, packed: bytes) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(packed,))
    writer.start()
    content, stream = one(str(path))
    writer.join()
    assert content == TEXT
    assert stream.stored_bytes is None
    assert stream.stored_bytes_read == len(packed)


def test_a_zip_archive_from_a_pipe_is_refused(tmp_path: Path) -> None:
    archive = Path(make_zip(tmp_path / "a.zip", {"a.json": TEXT})).read_bytes()
    with pytest.raises(NotATraceError, match="pipe"):
        list(open_streams("pipe", lambda _: Pipe(archive, False)))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"{'traceEvents': []}", "json.dump"),
        (b"[{'ph': 'X'}]", "json.dump"),
    ],
)
def test_what_to_do_with_other_content(tmp_path: Path, content: bytes, word: str) -> None:
    with pytest.raises(NotATraceError) as caught:
        list(open_streams(write(tmp_path / "a.json", content)))
    assert word in caught.value.hint
