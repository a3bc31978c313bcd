"""The manifest of a recording folder."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from diagnose import manifest
from diagnose.errors import DamagedInputError, EmptyInputError, InputError, NotATraceError
from diagnose.manifest import (
    Manifest,
    Observer,
    RankFiles,
    RecordingNote,
    StepTimes,
    Window,
)

FULL = Manifest(
    ranks=(
        RankFiles(0, "rank00000.trace.json.gz", "rank00000.telemetry.csv", "rank00000.env.json"),
        RankFiles(
            1,
            "sub/rank00001.trace.json.gz",
            execution_trace="rank00001.execution_trace.json",
            host="node1",
            pid=4711,
            local_rank=1,
            gpu_uuid="GPU-5e7c0a3e",
            route="injected",
            step_times=StepTimes((10, 11), (12,), (13, 14, 15)),
        ),
    ),
    world_size=4,
    started_unix_ns=1796133376454473729,
    tool_version="0.4.0",
    window=Window(steps=3, seconds=0.5, clock="seq", start=1208),
    observer=Observer(16_500_000, 17_200_000, None, 12, 6, 3),
    missing_ranks=(2, 3),
    notes=(RecordingNote("telemetry-missing", "info", "no driver"),),
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


def test_the_text_is_the_documented_format() -> None:
    content = json.loads(manifest.to_json(FULL))
    assert list(content) == [
        "format",
        "tool_version",
        "world_size",
        "started_unix_ns",
        "window",
        "observer",
        "missing_ranks",
        "notes",
        "ranks",
    ]
    assert content["window"] == {"steps": 3, "seconds": 0.5, "clock": "seq", "start": 1208}
    assert content["observer"] == {
        "before_ns": 16500000,
        "within_ns": 17200000,
        "num_before": 12,
        "num_within": 6,
        "num_after": 3,
    }
    assert content["ranks"][0] == {
        "rank": 0,
        "trace": "rank00000.trace.json.gz",
        "telemetry": "rank00000.telemetry.csv",
        "env": "rank00000.env.json",
    }
    assert content["ranks"][1]["step_times_ns"] == {
        "before": [10, 11],
        "within": [12],
        "after": [13, 14, 15],
    }


def test_a_list_of_numbers_stands_on_one_line() -> None:
    lines = manifest.to_json(FULL).splitlines()
    assert '    "after": [13, 14, 15]' in lines
    sentence = "kept [ 1,\n 2\n ] as it is"
    noted = Manifest(FULL.ranks, notes=(RecordingNote("x", "info", sentence),))
    assert manifest.parse(manifest.to_json(noted).encode(), "x").notes[0].sentence == sentence


def test_ranks_that_a_job_of_this_size_also_has() -> None:
    assert manifest.missing([0, 2], 4) == (1, 3)
    assert manifest.missing([0, 2], None) == ()
    assert manifest.missing([7], 1) == (0,)


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
        ({"format": 1, "ranks": RANKS, "tool_version": 3}, "tool_version is 3"),
        ({"format": 1, "ranks": RANKS, "tool_version": "x" * 5000}, "tool_version is 'xxx"),
        ({"format": 1, "ranks": RANKS, "window": {"steps": "3"}}, "steps is '3'"),
        ({"format": 1, "ranks": RANKS, "window": {"seconds": -1}}, "window.seconds is -1"),
        ({"format": 1, "ranks": RANKS, "window": {"seconds": True}}, "window.seconds is True"),
        ({"format": 1, "ranks": RANKS, "window": {"start": -3}}, r"window\.start is -3"),
        ({"format": 1, "ranks": RANKS, "observer": []}, "observer must be an object"),
        ({"format": 1, "ranks": RANKS, "observer": {"after_ns": 0.5}}, r"observer\.after_ns is 0"),
        ({"format": 1, "ranks": RANKS, "missing_ranks": [1, "2"]}, "missing_ranks must be a list"),
        ({"format": 1, "ranks": RANKS, "notes": {}}, "notes must be a list"),
        ({"format": 1, "ranks": RANKS, "notes": ["x"]}, r"notes\[0\] must be an object"),
        (
            {"format": 1, "ranks": RANKS, "notes": [{"code": "a", "sentence": "b"}]},
            r"notes\[0\] must have a code",
        ),
        ({"format": 1, "ranks": [{**RANKS[0], "pid": "7"}]}, r"ranks\[0\]\.pid is '7'"),
        ({"format": 1, "ranks": [{**RANKS[0], "host": ""}]}, r"ranks\[0\]\.host is ''"),
        ({"format": 1, "ranks": [{**RANKS[0], "step_times_ns": 1}]}, r"step_times_ns must be an"),
        (
            {"format": 1, "ranks": [{**RANKS[0], "step_times_ns": {"after": [-1]}}]},
            r"step_times_ns\.after must be a list",
        ),
        (
            {"format": 1, "ranks": [{**RANKS[0], "execution_trace": "/e"}]},
            r"execution_trace must lie",
        ),
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
