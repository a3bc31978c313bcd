"""Several processes as one trace, and several ranks in one file."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.names import Classifier
from diagnose.readers.assemble import Origin, assemble_file, join
from diagnose.readers.raw import RawFile
from diagnose.schema import NULL, TABLES, Activity, Detail
from diagnose.trace import Trace
from tests.builder import COLLECTIVE_KERNELS, TraceBuilder, build_trace, metadata


def codes(trace: Trace) -> list[str]:
    return [note.code for note in trace.notes]


def two_ranks() -> list[TraceBuilder]:
    builders = []
    for rank in (0, 1):
        builder = TraceBuilder(rank=rank, world_size=2, pid=4000 + rank).step(3 + rank, 0, 100)
        parent = builder.operator("record_param_comms", 9, 20, **metadata("allreduce", 100 + rank))
        builder.kernel(f"gemm {rank}", 10, 20, launch=5)
        builder.collective("allreduce", 40, 10, launch=11, parent=parent, elements=100 + rank)
        builder.sync("Stream Wait Event", 60, 1, stream=7)
        builders.append(builder)
    return builders


def test_sources_are_sorted_by_rank_and_rows_follow() -> None:
    first, second = two_ranks()
    trace = build_trace(second, first)
    assert [source.rank for source in trace.sources] == [0, 1]
    assert [source.path for source in trace.sources] == ["file1.json", "file0.json"]
    assert [source.world_size for source in trace.sources] == [2, 2]
    assert trace.gpu_ops["source"].tolist() == [0, 0, 1, 1]
    names = trace.gpu_ops.texts("name")
    assert (names[0], names[2]) == ("gemm 0", "gemm 1")
    assert names[1] == names[3]
    assert trace.steps.texts("name") == ["ProfilerStep#3", "ProfilerStep#4"]
    assert trace.steps.texts("thread") == ["4000/4242", "4001/4242"]


def test_row_references_are_those_of_the_joined_tables() -> None:
    trace = build_trace(*two_ranks())
    ops = trace.gpu_ops
    launched = trace.launches.take(ops["launch_row"])
    assert (launched["correlation"] == ops["correlation"]).all()
    assert (launched["source"] == ops["source"]).all()
    assert (trace.steps["source"][ops["step_row"]] == ops["source"]).all()
    described = trace.collectives
    assert (ops["source"][described["gpu_op_row"]]).tolist() == [0, 1]
    assert described["bytes"].tolist() == [200, 202]


def test_the_order_of_files_changes_nothing_but_ids() -> None:
    forward, backward = build_trace(*two_ranks()), build_trace(*reversed(two_ranks()))
    for schema in TABLES:
        one, other = getattr(forward, schema.name), getattr(backward, schema.name)
        for column in schema.columns:
            if column.text:
                assert one.texts(column.name) == other.texts(column.name)
            else:
                np.testing.assert_array_equal(one[column.name], other[column.name])


def test_strings_are_stored_once() -> None:
    trace = build_trace(*two_ranks())
    assert len(set(trace.strings)) == len(trace.strings)
    assert trace.gpu_ops["name"][1] == trace.gpu_ops["name"][3]


def test_threads_are_sorted_by_their_joined_codes() -> None:
    first = TraceBuilder(rank=0, pid=1)
    first.operator("a", 0, 1, thread=8)
    first.operator("b", 0, 1, thread=9)
    second = TraceBuilder(rank=1, pid=1)
    second.operator("c", 0, 1, thread=9)
    second.operator("d", 5, 1, thread=8)
    second.operator("e", 3, 1, thread=8)
    trace = build_trace(first, second)
    assert trace.host_ops.texts("name") == ["a", "b", "e", "d", "c"]


def test_the_same_rank_twice_is_kept_and_said() -> None:
    builders = [TraceBuilder(rank=5).kernel(name, 0, 10) for name in ("a", "b")]
    trace = build_trace(*builders)
    assert [source.rank for source in trace.sources] == [5, 5]
    assert trace.gpu_ops.texts("name") == ["a", "b"]
    (note,) = [note for note in trace.notes if note.code == "duplicate-rank"]
    assert note.count == 2
    assert "file0.json, file1.json" in note.sentence


def test_unknown_ranks_stand_side_by_side_at_the_end() -> None:
    builders = [TraceBuilder(rank=rank).kernel("k", 0, 10) for rank in (None, 1, None)]
    trace = build_trace(*builders)
    assert [source.rank for source in trace.sources] == [1, None, None]
    assert codes(trace).count("rank-unknown") == 2
    assert "duplicate-rank" not in codes(trace)
    assert [note.source for note in trace.notes if note.code == "rank-unknown"] == [1, 2]


def test_a_process_without_events() -> None:
    trace = build_trace(TraceBuilder(rank=34))
    assert [len(getattr(trace, schema.name)) for schema in TABLES] == [0] * len(TABLES)
    assert codes(trace) == ["no-gpu-events"]
    assert trace.gpus == ()


def test_processes_that_disagree_on_the_job() -> None:
    builders = [TraceBuilder(rank=r, world_size=w).kernel("k", 0, 1) for r, w in ((0, 2), (1, 4))]
    (note,) = [n for n in build_trace(*builders).notes if n.code == "world-size-differs"]
    assert (note.count, note.severity) == (2, "warning")
    assert "2 (rank 0), 4 (rank 1)" in note.sentence


def test_processes_with_different_steps() -> None:
    builders = []
    for rank, numbers in enumerate([(3, 4, 5), (4, 5, 6), (4, 5, 6)]):
        builder = TraceBuilder(rank=rank)
        for at, number in enumerate(numbers):
            builder.step(number, 100 * at, 100)
        builders.append(builder)
    (note,) = [n for n in build_trace(*builders).notes if n.code == "steps-differ"]
    assert (note.count, note.severity) == (2, "warning")
    assert "steps 3 to 5 (rank 0), steps 4 to 6 (rank 1, rank 2); 2 are common" in note.sentence
    assert "steps-differ" not in codes(build_trace(*builders[1:]))


# ---- several ranks in one file ----


def merged_file() -> RawFile:
    builder = TraceBuilder(rank=0, world_size=2)
    builder.process("rank 0", "python3 | rank 0").process(9001, "rank 1: python3")
    builder.process("rank 0 gpu", "stream").process("gpu of rank 1", "GPU 0")
    for pid, gpu, shift in (("rank 0", "rank 0 gpu", 0), (9001, "gpu of rank 1", 2)):
        builder.pid = pid
        builder.step(7, shift, 100)
        call = builder.call("cudaLaunchKernel", 10 + shift, correlation=55)
        builder.kernel("gemm", 30 + shift, 10, correlation=call, pid=gpu)
        args = metadata("allreduce", 100 + shift)
        builder.gpu(
            "kernel",
            COLLECTIVE_KERNELS["allreduce"],
            50 + shift,
            10,
            correlation=60,
            pid=gpu,
            **args,
        )
    builder.call("cudaStreamSynchronize", 90, correlation=77)
    builder.sync("Stream Sync", 90, 5, correlation=77).sync("Stream Sync", 95, 5, correlation=99)
    return builder.raw("merged.json")


def assembled(raw: RawFile, origin: Origin | None = None) -> Trace:
    return join(assemble_file(raw, origin or Origin(), Classifier.load(), Detail.ALL))


def test_ranks_merged_into_one_file_are_told_apart_by_their_processes() -> None:
    trace = assembled(merged_file())
    assert [(s.rank, s.rank_origin) for s in trace.sources] == [
        (0, "process name"),
        (1, "process name"),
    ]
    assert [(gpu.rank, gpu.device) for gpu in trace.gpus] == [(0, 0), (1, 0)]
    assert trace.gpu_ops["source"].tolist() == [0, 0, 1, 1]
    # Correlation ids repeat between the ranks: each operation finds the launch of its own rank.
    launched = trace.gpu_ops["launch_row"]
    starts = trace.launches["start_ns"][launched[launched >= 0]] - 5_000_000_000
    assert starts.tolist() == [10_000, 12_000]
    assert trace.collectives["in_elements"].tolist() == [100, 102]
    assert trace.steps["source"].tolist() == [0, 1]
    for table in (trace.gpu_ops, trace.host_ops, trace.launches):
        assert len(set(table["op_id"].tolist())) == len(table)


def test_synchronisations_of_a_merged_file_follow_their_call_or_are_said_to_be_lost() -> None:
    trace = assembled(merged_file())
    assert trace.syncs["source"].tolist() == [1]
    (note,) = [note for note in trace.notes if note.code == "synchronisation-unassigned"]
    assert note.count == 1


def test_what_belongs_to_no_labelled_rank_is_kept_under_an_unknown_one() -> None:
    raw = merged_file()
    other = TraceBuilder().process("rank 0", "rank 0").process("rank 1", "rank 1")
    for pid in ("rank 0", "rank 1", "helper"):
        other.kernel(f"of {pid}", 0, 10, pid=pid)
    raw = other.raw("merged.json")
    trace = assembled(raw)
    assert [source.rank for source in trace.sources] == [0, 1, None]
    assert trace.gpu_ops.texts("name") == ["of rank 0", "of rank 1", "of helper"]


def test_one_labelled_rank_is_the_rank_of_a_file_that_says_no_other() -> None:
    builder = TraceBuilder().process(4242, "trainer rank 6").kernel("k", 0, 10, launch=0)
    (source,) = assembled(builder.raw()).sources
    assert (source.rank, source.rank_origin) == (6, "process name")
    builder.top["distributedInfo"] = {"rank": 2}
    (source,) = assembled(builder.raw()).sources
    assert (source.rank, source.rank_origin) == (2, "metadata")


@pytest.mark.parametrize("name", ["python3 | GPU 0", "python3", "frank 3"])
def test_ordinary_process_names_tell_no_rank(name: str) -> None:
    builder = TraceBuilder().process(4242, name).kernel("k", 0, 10, launch=0)
    assert assembled(builder.raw()).sources[0].rank is None


def test_what_is_known_from_outside_reaches_the_source() -> None:
    origin = Origin(manifest_rank=3, world_size=8, environment={"torch": "2.11"})
    builder = TraceBuilder().kernel("k", 0, 10)
    builder.top["host_name"] = "node-a"
    (source,) = assembled(builder.raw("x/trace.json"), origin).sources
    assert (source.rank, source.rank_origin, source.world_size) == (3, "manifest", 8)
    assert source.environment == {"torch": "2.11"}
    assert (source.host, source.base_ns) == ("node-a", 1_759_276_800_000_000_000)
    assert source.path == "x/trace.json"


# ---- whatever a file leaves out ----


@given(st.data())
def test_absent_values_never_break_a_table(data: st.DataObject) -> None:
    raw = merged_file() if data.draw(st.booleans()) else two_ranks()[0].raw()
    for group in ("gpu", "host", "calls", "syncs", "collectives"):
        columns = getattr(raw, group)
        for name in sorted(columns):
            if name in ("order", "start_ns", "end_ns", "kind", "on_gpu"):
                continue
            absent = -1 if columns[name].dtype == np.int32 else NULL
            odd = data.draw(st.sampled_from([None, None, absent, 0, 2**31 - 1, -7]))
            if odd is not None and not (columns[name].dtype == np.int32 and odd != absent):
                rows = data.draw(st.integers(0, 3))
                columns[name][rows::2] = odd
    trace = assembled(raw)  # checks every table against its schema
    assert len(trace.gpu_ops) in (2, 4)
    references = {"launch_row": trace.launches, "step_row": trace.steps}
    for name, table in references.items():
        rows = trace.gpu_ops[name]
        assert ((rows >= -1) & (rows < len(table))).all()
        tied = trace.gpu_ops["source"][rows >= 0]
        assert (table["source"][rows[rows >= 0]] == tied).all()
    communication = np.flatnonzero(trace.gpu_ops["activity"] == Activity.COMMUNICATION)
    assert trace.collectives["gpu_op_row"].tolist() == communication.tolist()
    sizes = trace.collectives["bytes"]
    assert ((sizes == NULL) | (sizes >= 0)).all()
