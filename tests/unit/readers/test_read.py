"""The door: from what a person gives to a trace."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose import readers
from diagnose.errors import (
    DamagedInputError,
    DecompressionBombError,
    EmptyInputError,
    InputError,
    InputNotFoundError,
    InputTooLargeError,
    InternalReadError,
    NotATraceError,
    UsageError,
)
from diagnose.readers import parallel
from diagnose.readers.kineto.reader import KinetoReader
from diagnose.schema import TABLES, Detail
from diagnose.trace import Trace
from tests.builder import TraceBuilder, build_trace, metadata


def small(rank: int | None = 0, name: str = "gemm") -> TraceBuilder:
    builder = TraceBuilder(rank=rank, world_size=2).step(1, 0, 100)
    parent = builder.operator("record_param_comms", 9, 20, **metadata("allreduce", 100))
    builder.kernel(name, 10, 20, launch=5).copy("HtoD", 35, 2, launch=6)
    builder.collective("allreduce", 40, 10, launch=11, parent=parent, elements=100)
    builder.sync("Stream Wait Event", 60, 1, stream=7)
    return builder


def codes(trace: Trace) -> list[str]:
    return [note.code for note in trace.notes if note.code != "few-steps"]


def assert_same(one: Trace, other: Trace) -> None:
    for schema in TABLES:
        first, second = getattr(one, schema.name), getattr(other, schema.name)
        for column in schema.columns:
            if column.text:
                assert first.texts(column.name) == second.texts(column.name)
            elif column.name != "op_id":
                np.testing.assert_array_equal(first[column.name], second[column.name])


def test_the_reader_gives_what_the_builder_describes(tmp_path: Path) -> None:
    trace = readers.read(small().write(tmp_path))
    assert_same(trace, build_trace(small()))
    assert trace.detail is Detail.ALL
    (source,) = trace.sources
    assert (source.rank, source.rank_origin, source.world_size) == (0, "metadata", 2)
    assert source.path == str(tmp_path / "rank00000.trace.json")


def test_a_folder_with_other_files(tmp_path: Path) -> None:
    small(0).write(tmp_path)
    small(1).write(tmp_path, "one.json.gz")
    (tmp_path / "settings.json").write_text('{"lr": 1}')
    (tmp_path / "README.md").write_text("text")
    trace = readers.read(tmp_path)
    assert [source.rank for source in trace.sources] == [0, 1]
    (note,) = [note for note in trace.notes if note.code == "not-a-trace"]
    assert (note.severity, note.count) == ("info", 1)
    assert "settings.json" in note.sentence


def test_a_folder_in_which_nothing_is_a_trace(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"lr": 1}')
    with pytest.raises(InputNotFoundError, match=r"none of them is a trace .*settings\.json"):
        readers.read(tmp_path)
    with pytest.raises(NotATraceError):
        readers.read(tmp_path / "settings.json")


def test_a_damaged_rank_does_not_stop_the_others(tmp_path: Path) -> None:
    small(0).write(tmp_path)
    (tmp_path / "rank00001.trace.json").write_bytes(b"")
    (tmp_path / "rank00002.trace.json").write_text('{"lr": 1}')
    trace = readers.read(tmp_path)
    assert [source.rank for source in trace.sources] == [0]
    errors = {note.code: note for note in trace.notes if note.severity == "error"}
    assert set(errors) == {"empty-file", "not-a-trace"}
    assert "rank00001" in errors["empty-file"].sentence
    assert "rank00002" in errors["not-a-trace"].sentence


def test_a_bomb_or_an_endless_event_among_the_ranks_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diagnose.readers.kineto.chunks.BOMB_BYTES", 4 << 20)
    small(0).write(tmp_path)
    bomb = gzip.compress(b'{"traceEvents": [' + b" " * (16 << 20))
    (tmp_path / "rank00001.trace.json.gz").write_bytes(bomb)
    with zipfile.ZipFile(tmp_path / "more.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rank00002.trace.json", b'{"a": "' + b"x" * (16 << 20))
        archive.writestr("rank00003.trace.json", small(3).text())
    trace = readers.read(tmp_path)
    assert [source.rank for source in trace.sources] == [0, 3]
    errors = [note for note in trace.notes if note.severity == "error"]
    assert [note.code for note in errors] == ["bomb", "bomb"]
    assert {name for name in ("rank00001", "rank00002") for e in errors if name in e.sentence} == {
        "rank00001",
        "rank00002",
    }
    with pytest.raises(DecompressionBombError, match="rank00001") as caught:
        readers.read(tmp_path / "rank00001.trace.json.gz")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (DecompressionBombError, str(caught.value))


def test_if_nothing_can_be_read_the_first_error_is_raised(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(b"")
    (tmp_path / "rank1.json").write_text("[1")
    with pytest.raises(EmptyInputError, match=r"rank0\.json"):
        readers.read(tmp_path)
    with pytest.raises(InputError, match=r"rank1\.json"):
        readers.read([tmp_path / "rank1.json", tmp_path / "rank0.json"])


@pytest.mark.parametrize(
    "content", [b"\x00" * 64, b"\x89PNG\r\n", b"plain text", b"SQLite format 3\x00", b"\xff" * 9]
)
def test_what_is_no_trace_is_refused_with_a_hint(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    with pytest.raises(NotATraceError) as caught:
        readers.read(path)
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_the_rank_of_the_user(tmp_path: Path) -> None:
    path = small(None).write(tmp_path, "host.json")
    assert codes(readers.read(path)) == ["rank-unknown"]
    (source,) = readers.read(path, rank=7).sources
    assert (source.rank, source.rank_origin) == (7, "user")
    small(1).write(tmp_path)
    with pytest.raises(UsageError, match="rank 7 was given for 2 files"):
        readers.read(tmp_path, rank=7)
    with pytest.raises(UsageError, match="rank -1"):
        readers.read(path, rank=-1)


def test_a_recording_gives_rank_environment_and_samples(tmp_path: Path) -> None:
    small(None).write(tmp_path, "a.json")
    small(None).write(tmp_path, "b.json")
    (tmp_path / "a.env.json").write_text('{"torch": "2.11"}')
    (tmp_path / "b.csv").write_text("unix_ns,power_avg_w\n20,2\n10,1\n")
    ranks = [
        {"rank": 1, "trace": "a.json", "env": "a.env.json"},
        {"rank": 0, "trace": "b.json", "telemetry": "b.csv"},
    ]
    content = {"format": 1, "world_size": 4, "ranks": ranks}
    (tmp_path / "recording.json").write_text(json.dumps(content))
    trace = readers.read(tmp_path)
    assert [(s.rank, s.rank_origin) for s in trace.sources] == [(0, "manifest"), (1, "manifest")]
    assert [dict(s.environment) for s in trace.sources] == [{}, {"torch": "2.11"}]
    assert trace.samples["source"].tolist() == [0, 0]
    assert trace.samples["unix_ns"].tolist() == [10, 20]
    assert trace.samples["power_avg_w"].tolist() == [1, 2]


def test_what_the_answer_key_of_a_recording_says_changes_nothing(
    tmp_path: Path, recordings: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(recordings / "host_sync", folder)
    path = folder / "recording.json"
    content = json.loads(path.read_text())
    for key in [key for key in content if key not in ("format", "ranks", "world_size")]:
        del content[key]
    path.chmod(0o644)
    path.write_text(json.dumps(content))
    one, other = readers.read(recordings / "host_sync"), readers.read(folder)
    assert_same(one, other)
    assert [note.code for note in one.notes] == [note.code for note in other.notes]


def test_a_recording_cut_off_before_its_manifest_was_written(
    tmp_path: Path, recordings: Path
) -> None:
    for name in ("rank00000.trace.json.gz", "rank00000.telemetry.csv"):
        shutil.copy(recordings / "healthy" / name, tmp_path)
    trace = readers.read(tmp_path)
    (source,) = trace.sources
    assert (source.rank, source.environment) == (0, {})
    lines = (tmp_path / "rank00000.telemetry.csv").read_text().splitlines()
    assert len(trace.samples) == len(lines) - 1 > 0
    first = lines[1].split(",")
    assert trace.samples["unix_ns"][0] == int(first[0])
    assert trace.samples["power_avg_w"][0] == float(first[1])


def test_a_zip_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("run/rank0.json", small(None).text())
        archive.writestr("run/rank1.json", small(None).text())
        archive.writestr("run/README.md", "text")
        archive.writestr("run/settings.json", "{}")
        archive.writestr("run/rank2.json", "")
    trace = readers.read(tmp_path / "all.zip")
    assert [(s.rank, s.rank_origin) for s in trace.sources] == [(0, "file name"), (1, "file name")]
    assert codes(trace) == ["empty-file", "not-a-trace"]
    assert len(set(trace.gpu_ops["op_id"].tolist())) == len(trace.gpu_ops) == 6


def test_ranks_read_side_by_side_make_the_same_trace(
    recordings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = readers.read(recordings / "healthy")
    monkeypatch.setattr(parallel, "MIN_TEXT_BYTES", 0)
    monkeypatch.setattr(parallel, "_num_cpus", lambda: 2)
    together = readers.read(recordings / "healthy")
    assert_same(alone, together)
    assert together.sources == alone.sources
    assert together.notes == alone.notes
    # Each process stays below its share; together they need more than the limit.
    kept = sum(getattr(alone, schema.name).num_bytes for schema in TABLES)
    with pytest.raises(InputTooLargeError):
        readers.read(recordings / "healthy", memory_limit_bytes=kept // 3)


@pytest.fixture
def memory() -> Iterator[str]:
    """A folder in fsspec's memory file system."""
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    system.makedirs("/job/run", exist_ok=True)
    yield "memory://job/run"
    system.rm("/job", recursive=True)


def test_urls(memory: str) -> None:
    import fsspec

    ranks = []
    for rank in (0, 1):
        name = f"rank0000{rank}.trace.json"
        ranks.append({"rank": rank, "trace": name, "env": f"rank0000{rank}.env.json"})
        with fsspec.open(f"{memory}/{name}", "wb") as file:
            file.write(small(None).text().encode())
        with fsspec.open(f"{memory}/rank0000{rank}.env.json", "wb") as file:
            file.write(b'{"torch": "2.11"}')
    for given in (memory, f"{memory}/", f"{memory}/*.trace.json", "memory://job"):
        trace = readers.read(given)
        assert [source.rank for source in trace.sources] == [0, 1]
        assert [source.environment for source in trace.sources] == [{"torch": "2.11"}] * 2
    assert len(readers.read(f"{memory}/rank00001.trace.json").gpu_ops) == 3
    with fsspec.open(f"{memory}/recording.json", "wb") as file:
        file.write(json.dumps({"format": 1, "ranks": ranks}).encode())
    assert [s.rank_origin for s in readers.read(memory).sources] == ["manifest", "manifest"]
    with pytest.raises(InputNotFoundError, match="none"):
        readers.read(f"{memory}/none.json")


def test_an_address_that_no_driver_knows() -> None:
    with pytest.raises(InputError, match="nowhere://x") as caught:
        readers.read("nowhere://x/trace.json")
    assert caught.value.hint


def test_detail(tmp_path: Path) -> None:
    path = small().write(tmp_path)
    gpu, launches, shapes, everything = (readers.read(path, detail=detail) for detail in Detail)
    assert len(gpu.launches) == len(gpu.syncs) == 0
    assert len(launches.launches) == 3
    assert len(launches.syncs) == 1
    assert gpu.collectives["bytes"].tolist() == [200]
    assert len(shapes.launches) == 3
    for trace in (gpu, launches, shapes):
        for name in ("start_ns", "end_ns", "activity", "certain", "device", "stream"):
            np.testing.assert_array_equal(trace.gpu_ops[name], everything.gpu_ops[name])
    assert len(gpu.steps) == len(everything.steps) == 1


def test_the_memory_limit_names_what_to_do(tmp_path: Path) -> None:
    small(0).write(tmp_path)
    small(1).write(tmp_path)
    kept = sum(getattr(readers.read(tmp_path), schema.name).num_bytes for schema in TABLES)
    with pytest.raises(InputTooLargeError, match="MiB") as caught:
        readers.read(tmp_path, memory_limit_bytes=kept // 4)
    assert "--only gpu" in caught.value.hint
    assert len(readers.read(tmp_path, memory_limit_bytes=64 << 20).sources) == 2


def test_a_classification_of_the_user(tmp_path: Path) -> None:
    path = small(name="my_gemm").write(tmp_path)
    patterns = tmp_path / "my.toml"
    patterns.write_text(
        '[[kernel]]\npattern = "my_gemm"\nclass = "communication"\nsince = "1"\n'
        'example = "my_gemm"\n'
    )
    assert len(readers.read(path).communication) == 1
    assert len(readers.read(path, classify=patterns).communication) == 2
    patterns.write_text("[[kernel]]\nclass = 3")
    with pytest.raises(UsageError, match=r"my\.toml"):
        readers.read(path, classify=patterns)


def test_progress_adds_up_to_the_stored_bytes(recordings: Path) -> None:
    seen: list[int] = []
    readers.read(recordings / "healthy", progress=seen.append)
    stored = sum(path.stat().st_size for path in (recordings / "healthy").glob("*.trace.json.gz"))
    assert sum(seen) == stored
    assert min(seen) >= 0


def test_a_defect_of_ours_in_one_file_does_not_take_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(0).write(tmp_path, "rank0.json")
    bad = small(1).write(tmp_path, "rank1.json")
    read = KinetoReader.read

    def failing(self: KinetoReader, stream: Any, path: str, options: Any) -> Any:
        if path.endswith("rank1.json"):
            raise ValueError("nobody expected this")
        return read(self, stream, path, options)

    monkeypatch.setattr(KinetoReader, "read", failing)
    trace = readers.read(tmp_path)
    assert [source.rank for source in trace.sources] == [0]
    (note,) = [note for note in trace.notes if note.code == "internal"]
    assert note.severity == "error"
    assert "ValueError: nobody expected this" in note.sentence
    assert "report" in note.sentence
    with pytest.raises(InternalReadError) as caught:
        readers.read(bad)
    assert caught.value.exit_status == 3
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_pipe_in_a_folder_is_left_out_and_does_not_hang(tmp_path: Path) -> None:
    small(1).write(tmp_path, "rank1.json")
    os.mkfifo(tmp_path / "rank0.json")
    for given in (tmp_path, f"{tmp_path}/*.json"):
        trace = readers.read(given)
        assert [source.rank for source in trace.sources] == [1]
        assert [note.code for note in trace.notes if "rank0.json" in note.sentence] == [
            "not-a-file"
        ]


def test_a_pipe_that_is_named_is_read(tmp_path: Path) -> None:
    content = Path(small(1).write(tmp_path, "rank1.json")).read_bytes()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    trace = readers.read(pipe)
    writer.join()
    assert [source.rank for source in trace.sources] == [1]


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (gzip.compress(b""), EmptyInputError, "no byte"),
        (gzip.compress(b"")[:5], DamagedInputError, "before any of its text"),
        (b"  \n ", EmptyInputError, "nothing but blanks"),
        (gzip.compress(b"a" * 257 + b"ustar" + b"\0" * 250), NotATraceError, "tar archive"),
    ],
)
def test_nothing_inside_is_told_as_what_it_is(
    tmp_path: Path, content: bytes, error: type[InputError], words: str
) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    with pytest.raises(error, match=words) as caught:
        readers.read(path)
    assert caught.value.hint
