"""Recordings of one job as one: what is kept, what is told, what is refused."""

from __future__ import annotations

import gzip
import json
import os
import shutil

import pytest

from diagnose import cli, manifest
from diagnose.attach.merge import merge
from diagnose.errors import InputError, InputNotFoundError, NotATraceError, OutputError, UsageError
from diagnose.manifest import Manifest, RankFiles, RecordingNote, StepTimes, Window
from tests.builder import TraceBuilder

T0 = 1_796_133_376_000_000_000
MS = 1_000_000


def write_trace(path, rank, world=4, mark=""):
    head = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": world}}
    text = json.dumps(head | {"mark": mark, "traceEvents": []}).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.name.endswith(".gz") else text)


def recording(folder, *ranks, world=4, host="node0", within_ms=20, **content):
    """A recording of these ranks: traces, telemetry, environment, three steps of ``within_ms``."""
    folder.mkdir()
    files = []
    for rank in ranks:
        stem = f"rank{rank:05d}"
        write_trace(folder / f"{stem}.trace.json.gz", rank, world)
        (folder / f"{stem}.telemetry.csv").write_text(f"unix_ns,power_avg_w\n{T0},{rank}\n")
        (folder / f"{stem}.env.json").write_text(json.dumps({"rank": rank}))
        files.append(
            RankFiles(
                rank,
                f"{stem}.trace.json.gz",
                f"{stem}.telemetry.csv",
                f"{stem}.env.json",
                host=host,
                pid=100 + rank,
                local_rank=rank % 2,
                gpu_uuid=f"GPU-{rank}",
                route="injected",
                step_times=StepTimes((16 * MS,) * 5, (within_ms * MS,) * 3, (17 * MS,) * 10),
            )
        )
    values = {
        "world_size": world,
        "started_unix_ns": T0,
        "window": Window(steps=3, clock="seq", start=1208),
        "missing_ranks": manifest.missing(ranks, world),
    }
    manifest.write(Manifest(tuple(files), **(values | content)), folder)
    return folder


@pytest.fixture
def hosts(tmp_path):
    """Two hosts with two ranks each, of one job of four."""
    elsewhere = RecordingNote("ranks-missing", "warning", "of 4 ranks 2, 3 were not recorded")
    power = RecordingNote("telemetry-missing", "info", "no NVML")
    return (
        recording(tmp_path / "host0", 0, 1, notes=(elsewhere, power)),
        recording(tmp_path / "host1", 2, 3, host="node1", within_ms=22, started_unix_ns=T0 + MS),
    )


def test_hosts_become_one_recording(tmp_path, hosts):
    merged = merge(tmp_path / "job", hosts)
    content = manifest.read(tmp_path / "job" / "recording.json")
    assert content == merged.manifest
    assert [files.rank for files in content.ranks] == [0, 1, 2, 3]
    third = content.ranks[2]
    assert (third.trace, third.host, third.pid) == ("rank00002.trace.json.gz", "node1", 102)
    assert (third.local_rank, third.gpu_uuid, third.route) == (0, "GPU-2", "injected")
    assert content.world_size == 4
    assert content.missing_ranks == ()
    assert content.started_unix_ns == T0
    assert content.window == Window(steps=3, clock="seq", start=1208)
    assert content.notes == (RecordingNote("telemetry-missing", "info", "node0: no NVML"),)
    assert merged.notes == ()
    for folder in hosts:
        for path in folder.iterdir():
            if path.name != "recording.json":
                assert (tmp_path / "job" / path.name).read_bytes() == path.read_bytes()
    assert len(list((tmp_path / "job").iterdir())) == 4 * 3 + 1
    assert merged.num_bytes == sum(path.stat().st_size for path in (tmp_path / "job").glob("rank*"))


def test_the_observer_effect_comes_from_all_steps(tmp_path, hosts):
    observer = merge(tmp_path / "job", hosts).manifest.observer
    assert observer is not None
    # Within: six of 20 ms and six of 22; their median lies between, as no host's does.
    assert (observer.before_ns, observer.within_ns, observer.after_ns) == (
        16 * MS,
        21 * MS,
        17 * MS,
    )
    assert (observer.num_before, observer.num_within, observer.num_after) == (20, 12, 20)


def test_files_are_linked_or_copied_on_request(tmp_path, hosts):
    linked = merge(tmp_path / "linked", hosts)
    copied = merge(tmp_path / "copied", hosts, link=False)
    assert (linked.num_linked, linked.num_copied) == (12, 0)
    assert (copied.num_linked, copied.num_copied) == (0, 12)
    name = "rank00000.trace.json.gz"
    assert (tmp_path / "linked" / name).samefile(hosts[0] / name)
    assert not (tmp_path / "copied" / name).samefile(hosts[0] / name)


def test_files_are_copied_where_links_cannot_be(tmp_path, hosts, monkeypatch):
    def refuse(source, target):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    assert merge(tmp_path / "job", hosts).num_copied == 12


def test_ranks_in_none_of_them_are_said_to_be_missing(tmp_path, hosts):
    merged = merge(tmp_path / "job", [hosts[1]])
    assert merged.manifest.missing_ranks == (0, 1)
    [note] = merged.notes
    assert note.code == "ranks-missing"
    assert note.sentence.startswith("ranks 0, 1 of 4 are in none of the recordings")
    assert note in merged.manifest.notes


def test_the_same_rank_with_the_same_bytes_is_kept_once(tmp_path, hosts):
    copy = tmp_path / "copy"
    shutil.copytree(hosts[0], copy)
    (hosts[0] / "rank00000.telemetry.csv").unlink()
    merged = merge(tmp_path / "job", [*hosts, copy])
    assert [files.rank for files in merged.manifest.ranks] == [0, 1, 2, 3]
    # The copy has the file that the original lost.
    assert merged.manifest.ranks[0].telemetry == "rank00000.telemetry.csv"
    assert {note.code for note in merged.notes} == {"rank-twice"}


def test_the_same_rank_with_other_bytes_is_refused(tmp_path, hosts):
    other = recording(tmp_path / "again", 1)
    write_trace(other / "rank00001.trace.json.gz", 1, mark="another window")
    with pytest.raises(
        UsageError, match=r"rank 1 is in .*host0.* and in .*again.*, and these differ"
    ):
        merge(tmp_path / "job", [*hosts, other])
    assert not (tmp_path / "job").exists()


def test_a_folder_given_twice_is_read_once(tmp_path, hosts):
    merged = merge(tmp_path / "job", [hosts[0], hosts[1], hosts[0] / "recording.json"])
    assert len(merged.parts) == 2
    assert merged.notes == ()


def test_jobs_of_different_sizes_are_refused(tmp_path, hosts):
    other = recording(tmp_path / "other", 7, world=8)
    with pytest.raises(UsageError, match=r"host0 is of a job of 4 ranks, .*other of one of 8"):
        merge(tmp_path / "job", [hosts[0], other])


def test_a_rank_beyond_the_job_is_refused(tmp_path):
    other = recording(tmp_path / "other", 9, world=None)
    with pytest.raises(UsageError, match="other: rank 9 of a job of 4 ranks"):
        merge(tmp_path / "job", [recording(tmp_path / "a", 0), other])


def test_windows_at_different_steps(tmp_path):
    one = recording(tmp_path / "a", 0, world=2)
    other = recording(tmp_path / "b", 1, world=2, window=Window(steps=3, clock="seq", start=1300))
    merged = merge(tmp_path / "job", [one, other])
    [note] = merged.notes
    assert note.code == "windows-apart"
    assert "begin at seq 1208 and seq 1300" in note.sentence
    assert merged.manifest.window == Window(steps=3, clock="seq", start=None)


def test_windows_at_different_times(tmp_path):
    clock = Window(steps=3, clock="unix", start=T0)
    later = T0 + 2060 * MS  # the first window takes 3 * 20 ms
    one = recording(tmp_path / "a", 0, world=2, window=clock)
    other = recording(tmp_path / "b", 1, world=2, window=clock, started_unix_ns=later)
    [note] = merge(tmp_path / "job", [one, other]).notes
    assert note.code == "windows-apart"
    assert "have 2.0 s between them" in note.sentence
    touching = recording(tmp_path / "c", 1, world=2, window=clock, started_unix_ns=T0 + 60 * MS)
    assert merge(tmp_path / "job2", [one, touching]).notes == ()


def test_the_same_step_at_another_time(tmp_path):
    one = recording(tmp_path / "a", 0, world=2)
    other = recording(tmp_path / "b", 1, world=2, started_unix_ns=T0 + 3_600_060 * MS)
    [note] = merge(tmp_path / "job", [one, other]).notes
    assert note.code == "clocks-differ"
    assert "3600.0 s lie between them" in note.sentence


def test_bare_folders_of_traces(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    write_trace(first / "node_1.pt.trace.json", 0, world=2)
    (first / "node_1.telemetry.csv").write_text("unix_ns\n")
    (first / "notes.json").write_text('{"lr": 0.1}')
    (first / "rank7.env.json").write_text("{}")
    (second / "worker_rank1.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}'))
    merged = merge(tmp_path / "job", [first, second])
    assert merged.manifest.ranks == (
        RankFiles(0, "rank00000.trace.json", telemetry="rank00000.telemetry.csv"),
        RankFiles(1, "rank00001.trace.json.gz"),
    )
    assert merged.manifest.world_size == 2
    assert [part.bare for part in merged.parts] == [True, True]


def test_the_trace_is_believed_before_its_name(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    write_trace(folder / "rank0.json", 3)
    assert merge(tmp_path / "job", [folder]).manifest.ranks[0].rank == 3


def test_a_trace_of_nobody_is_refused(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "trace.json").write_text('{"traceEvents": []}')
    with pytest.raises(NotATraceError, match=r"trace\.json: nothing says which rank wrote it"):
        merge(tmp_path / "job", [folder])


def test_damaged_heads_say_nothing(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "rank1.json.gz").write_bytes(b"\x1f\x8b\x08rubbish")
    (folder / "rank2.json").write_text('{"distributedInfo": {"rank": 5, "traceEvents')
    (folder / "rank3.json").write_text('{"distributedInfo": {"rank": "x"}, "traceEvents": [')
    # Not readable at all: no trace; cut or odd: by its name.
    assert [f.rank for f in merge(tmp_path / "job", [folder]).manifest.ranks] == [2, 3]


def test_files_that_a_manifest_only_names(tmp_path, hosts):
    (hosts[0] / "rank00000.trace.json.gz").unlink()
    (hosts[0] / "rank00001.env.json").unlink()
    merged = merge(tmp_path / "job", hosts)
    assert [files.rank for files in merged.manifest.ranks] == [1, 2, 3]
    assert merged.manifest.ranks[0].env is None
    assert merged.manifest.missing_ranks == (0,)
    lost = [note.sentence for note in merged.manifest.notes if note.code == "file-missing"]
    assert len(lost) == 2
    assert "rank 0: trace named by" in lost[0]
    assert "rank 1: env named by" in lost[1]


def test_a_recording_without_any_of_its_traces(tmp_path, hosts):
    for path in hosts[0].glob("*.trace.json.gz"):
        path.unlink()
    with pytest.raises(InputNotFoundError, match="none of the traces"):
        merge(tmp_path / "job", hosts)


@pytest.mark.parametrize("kind", ["nothing", "file", "empty", "no-trace"])
def test_what_is_no_recording(tmp_path, hosts, kind):
    path = tmp_path / "given"
    if kind == "file":
        path.write_text("")
    elif kind != "nothing":
        path.mkdir()
    if kind == "no-trace":
        (path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="given"):
        merge(tmp_path / "job", [hosts[0], path])
    assert not (tmp_path / "job").exists()


def test_the_output_is_new_or_empty(tmp_path, hosts):
    (tmp_path / "empty").mkdir()
    merge(tmp_path / "empty", hosts)
    merge(tmp_path / "made" / "on" / "the" / "way", hosts)
    for taken in (tmp_path / "empty", hosts[0], hosts[0] / "recording.json"):
        before = sorted(path.name for path in taken.parent.rglob("*"))
        with pytest.raises(OutputError, match="not empty"):
            merge(taken, hosts)
        assert sorted(path.name for path in taken.parent.rglob("*")) == before


def test_a_failure_leaves_nothing(tmp_path, hosts, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OutputError, match="No space left"):
        merge(tmp_path / "job", hosts, link=False)
    assert sorted(tmp_path.iterdir()) == before


def test_an_interruption_leaves_nothing(tmp_path, hosts, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(manifest, "write", interrupt)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        merge(tmp_path / "job", hosts)
    assert sorted(tmp_path.iterdir()) == before


def test_on_the_command_line(tmp_path, hosts, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.execute(["merge", "job", "host0", "host1"]) == 0
    size = sum(path.stat().st_size for path in (tmp_path / "job").glob("rank*")) / 1e6
    assert capsys.readouterr().out == (
        "job: ranks 0-3 of 4, from 2 recordings\n"
        "  host0: ranks 0, 1, node0, 3 steps, from seq 1208, 2026-12-01 13:56:16 UTC\n"
        "  host1: ranks 2, 3, node1, 3 steps, from seq 1208, 2026-12-01 13:56:16 UTC\n"
        f"  12 files, {size:.1f} MB (12 linked)\n"
        "next: diagnose report job\n"
    )
    assert cli.execute(["merge", "job", "host0"]) == 2
    assert capsys.readouterr().err.startswith("error: job: not empty")


def test_the_result_is_read_as_one_job(tmp_path):
    import diagnose

    for rank in (0, 1):
        builder = TraceBuilder(rank=rank, world_size=2)
        builder.step(1, 0, 100)
        builder.kernel("gemm", 5, 30, launch=1)
        folder = tmp_path / f"host{rank}"
        folder.mkdir()
        builder.write(folder)
    merge(tmp_path / "job", [tmp_path / "host0", tmp_path / "host1"])
    trace = diagnose.load(str(tmp_path / "job")).trace
    assert [source.rank for source in trace.sources] == [0, 1]
