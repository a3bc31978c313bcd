"""The manifest of a recording folder."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from diagnose import manifest
from diagnose.errors import DamagedInputError, EmptyInputError, InputError, NotATraceError
from diagnose.manifest import Manifest, RankFiles

FULL = Manifest(
    ranks=(
        RankFiles(0, "rank00000.trace.json.gz", "rank00000.telemetry.csv", "rank00000.env.json"),
        RankFiles(1, "sub/rank00001.trace.json.gz"),
    ),
    world_size=2,
    num_steps=3,
    started_unix_ns=1796133376454473729,
)


def parse(content: Any) -> Manifest:
    return manifest.parse(json.dumps(content).encode(), "x/recording.json")


def test_the_least_that_a_manifest_holds() -> None:
    found = parse({"format": 1, "ranks": [{"rank": 3, "trace": "a.json"}]})
    assert found == Manifest(ranks=(RankFiles(3, "a.json", None, None),))


def test_everything_and_unknown_keys() -> None:
    content = {
        "format": 1,
        "world_size": 2,
        "window": {"steps": 3, "warmup": 1},
        "started_unix_ns": 1796133376454473729,
        "colour": "blue",
        "ranks": [
            {"rank": 0, "trace": "t", "telemetry": None, "env": "e", "mood": []},
        ],
    }
    found = parse(content)
    assert found.ranks == (RankFiles(0, "t", None, "e"),)
    assert (found.world_size, found.num_steps) == (2, 3)
    assert found.started_unix_ns == 1796133376454473729


def test_what_is_written_reads_back_and_lies_there_whole(tmp_path: Path) -> None:
    path = manifest.write(FULL, tmp_path)
    assert path == tmp_path / "recording.json"
    assert manifest.read(path) == FULL
    assert [entry.name for entry in tmp_path.iterdir()] == ["recording.json"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o600 == 0o600


def test_writing_replaces_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "recording.json").write_text("old")
    manifest.write(FULL, tmp_path)
    assert manifest.read(tmp_path / "recording.json") == FULL


def test_what_would_not_read_back_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must lie in the folder"):
        manifest.write(Manifest((RankFiles(0, "../a.json"),)), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_disk_leaves_the_old_one_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest.write(FULL, tmp_path)

    def fails(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifest.os, "fsync", fails)
    with pytest.raises(OSError, match="No space"):
        manifest.write(Manifest((RankFiles(9, "z"),)), tmp_path)
    assert manifest.read(tmp_path / "recording.json") == FULL
    assert len(list(tmp_path.iterdir())) == 1


RANKS = [{"rank": 0, "trace": "a"}]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ([], "the whole"),
        ({"ranks": RANKS}, "format is None"),
        ({"format": 2, "ranks": RANKS}, "format is 2, this version reads format 1"),
        ({"format": True, "ranks": RANKS}, "format is True"),
        ({"format": "1", "ranks": RANKS}, "format is '1'"),
        ({"format": 1}, "ranks must be a list"),
        ({"format": 1, "ranks": {}}, "ranks must be a list"),
        ({"format": 1, "ranks": []}, "ranks must be a list"),
        ({"format": 1, "ranks": [3]}, r"ranks\[0\] must be an object"),
        ({"format": 1, "ranks": [*RANKS, {"trace": "a"}]}, r"ranks\[1\]\.rank must be"),
        ({"format": 1, "ranks": [{"rank": -1, "trace": "a"}]}, r"ranks\[0\]\.rank is -1"),
        ({"format": 1, "ranks": [{"rank": 1.0, "trace": "a"}]}, r"ranks\[0\]\.rank is 1\.0"),
        ({"format": 1, "ranks": [{"rank": True, "trace": "a"}]}, r"ranks\[0\]\.rank is True"),
        ({"format": 1, "ranks": [{"rank": 10**8, "trace": "a"}]}, r"ranks\[0\]\.rank must be"),
        ({"format": 1, "ranks": [{"rank": 0}]}, r"ranks\[0\]\.trace must name a file"),
        ({"format": 1, "ranks": [{"rank": 0, "trace": 7}]}, r"\.trace must be the name"),
        ({"format": 1, "ranks": [{"rank": 0, "trace": "/etc/passwd"}]}, "must lie in the folder"),
        ({"format": 1, "ranks": [{"rank": 0, "trace": "a/../../b"}]}, "must lie in the folder"),
        ({"format": 1, "ranks": [{"rank": 0, "trace": "..\\b"}]}, "must lie in the folder"),
        ({"format": 1, "ranks": [{"rank": 0, "trace": "s3://b/a"}]}, "must lie in the folder"),
        ({"format": 1, "ranks": [{"rank": 0, "trace": "a", "env": "/e"}]}, r"\.env must lie"),
        ({"format": 1, "ranks": RANKS, "world_size": "two"}, "world_size is 'two'"),
        ({"format": 1, "ranks": RANKS, "started_unix_ns": 1.5}, r"started_unix_ns is 1\.5"),
    ],
)
def test_what_is_wrong_is_named(content: Any, names: str) -> None:
    with pytest.raises(NotATraceError, match=names) as caught:
        parse(content)
    assert caught.value.message.startswith("x/recording.json: ")
    assert caught.value.hint


@pytest.mark.parametrize("data", [b'{"format": 1,', b"\xff\xfe\x00", b"[" * 100_000])
def test_damage_is_an_error_of_its_own(data: bytes) -> None:
    with pytest.raises(DamagedInputError, match=r"x/recording\.json: not readable as JSON"):
        manifest.parse(data, "x/recording.json")


def test_empty_and_missing(tmp_path: Path) -> None:
    with pytest.raises(EmptyInputError):
        manifest.parse(b" \n", "x")
    with pytest.raises(InputError, match="cannot be read"):
        manifest.read(tmp_path / "recording.json")


def test_a_byte_order_mark_is_no_damage() -> None:
    data = b"\xef\xbb\xbf" + json.dumps({"format": 1, "ranks": RANKS}).encode()
    assert manifest.parse(data, "x").ranks == (RankFiles(0, "a"),)
