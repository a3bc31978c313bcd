"""Compression: whole or not at all, and the plain file goes."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

from diagnose.collect import _compress
from diagnose.errors import OutputError

TEXT = b'{"traceEvents": []}' * 100_000


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def traces(folder: Path, number: int) -> list[Path]:
    paths = [folder / f"rank{rank:05d}.trace.json" for rank in range(number)]
    for rank, path in enumerate(paths):
        path.write_bytes(TEXT + str(rank).encode())
    return paths


@pytest.mark.parametrize("with_isal", [True, False])
def test_every_trace_becomes_gzip_and_the_plain_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_isal: bool
) -> None:
    if not with_isal:
        monkeypatch.setitem(sys.modules, "isal", None)
    said: list[int] = []
    packed = _compress.compress_all(traces(tmp_path, 5), said.append)
    assert [path.name for path in packed] == [f"rank{r:05d}.trace.json.gz" for r in range(5)]
    assert names(tmp_path) == [path.name for path in packed]
    for rank, path in enumerate(packed):
        assert gzip.decompress(path.read_bytes()) == TEXT + str(rank).encode()
    assert said == [1, 2, 3, 4, 5]


def test_nothing_to_do(tmp_path: Path) -> None:
    assert _compress.compress_all([], lambda _: None) == []


def test_a_full_disk_keeps_the_plain_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = traces(tmp_path, 2)
    real = _compress._writer

    def full(path: Path) -> object:
        if "00001" in path.name:
            raise OSError(28, "No space left on device")
        return real(path)

    monkeypatch.setattr(_compress, "_writer", full)
    with pytest.raises(OutputError, match="No space left"):
        _compress.compress_all(plain, lambda _: None)
    assert names(tmp_path) == ["rank00000.trace.json.gz", "rank00001.trace.json"]


def test_stopping_leaves_every_trace_whole_in_one_form(tmp_path: Path) -> None:
    def stop(done: int) -> None:
        raise KeyboardInterrupt

    plain = traces(tmp_path, 6)
    with pytest.raises(KeyboardInterrupt):
        _compress.compress_all(plain, stop)
    found = names(tmp_path)
    assert [name.removesuffix(".gz") for name in found] == [path.name for path in plain]
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        assert text.startswith(TEXT)
