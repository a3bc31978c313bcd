"""What is known of collectives, and from where."""

from __future__ import annotations

from typing import Any

from diagnose.schema import NULL, Detail
from diagnose.trace import Trace
from tests.builder import TraceBuilder, build_trace, metadata

GENERIC = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def rows(trace: Trace) -> list[dict[str, Any]]:
    table = trace.collectives
    texts = {column.name for column in table.schema.columns if column.text}
    columns = {
        name: table.texts(name)
        if name in texts
        else [None if value == NULL else value for value in table[name].tolist()]
        for name in table.columns
    }
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def test_metadata_of_the_kernel_itself() -> None:
    builder = TraceBuilder(rank=0).kernel("gemm", 0, 5)
    builder.collective("_allgather_base", 10, 5, elements=512, out_elements=4096, group="7")
    (row,) = rows(build_trace(builder))
    assert row == {
        "gpu_op_row": 1,
        "name": "_allgather_base",
        "collective": "all_gather",
        "in_elements": 512,
        "out_elements": 4096,
        "dtype": "BFloat16",
        "bytes": 8192,
        "group": "7",
        "group_size": 2,
        "group_ranks": "[0, 1]",
        "sequence": None,
        "peer": None,
        "in_addresses": None,
        "out_addresses": None,
        "origin": "kernel",
    }


def test_metadata_of_the_operator_by_external_id() -> None:
    builder = TraceBuilder(rank=0)
    args = metadata("_reduce_scatter_base", 33554432, 4194304, group_size=8)
    parent = builder.operator("record_param_comms", 0, 10, **args, Seq=12)
    builder.kernel(GENERIC, 20, 10, stream=1, parent=parent)
    for detail in Detail:
        (row,) = rows(build_trace(builder, detail=detail))
        assert row["origin"] == "record_param_comms"
        assert (row["collective"], row["bytes"]) == ("reduce_scatter", 67108864)
        assert (row["group_size"], row["sequence"]) == (8, 12)


def test_metadata_of_the_operator_around_the_launch() -> None:
    builder = TraceBuilder(rank=0)
    builder.operator("record_param_comms", 0, 10, thread=3, **metadata("allreduce", 100))
    builder.operator("record_param_comms", 0, 10, thread=4, **metadata("broadcast", 200))
    builder.kernel(GENERIC, 20, 10, launch=5, thread=4)
    builder.kernel(GENERIC, 40, 10, launch=10, thread=4)
    first, second = rows(build_trace(builder))
    assert (first["collective"], first["bytes"]) == ("broadcast", 400)
    assert first["origin"] == "record_param_comms"
    assert (second["collective"], second["bytes"], second["origin"]) == (None, None, "name")


def test_without_metadata_the_name_tells_the_kind_and_nothing_else() -> None:
    (row,) = rows(build_trace(TraceBuilder(rank=0).kernel(ALL_REDUCE, 0, 10)))
    assert row["collective"] == "all_reduce"
    assert row["origin"] == "name"
    unknown = ("name", "bytes", "group", "group_size", "in_elements", "dtype", "peer")
    assert {row[name] for name in unknown} == {None}


def test_one_description_for_several_kernels_is_counted_for_none_of_them() -> None:
    builder = TraceBuilder(rank=0)
    parent = builder.operator("record_param_comms", 0, 10, **metadata("allreduce", 100))
    alone = builder.operator("record_param_comms", 20, 10, **metadata("allreduce", 300))
    builder.collective("allreduce", 40, 10, elements=100, launch=2, parent=parent)
    builder.collective("allreduce", 60, 10, elements=100, launch=3, parent=parent)
    builder.collective("allreduce", 80, 10, elements=300, launch=22, parent=alone)
    trace = build_trace(builder)
    assert [row["bytes"] for row in rows(trace)] == [None, None, 600]
    assert [row["in_elements"] for row in rows(trace)] == [100, 100, 300]
    (note,) = [note for note in trace.notes if note.code == "message-size-unknown"]
    assert (note.count, note.severity) == (2, "info")


def test_kernels_with_one_external_id_share_a_description_even_without_the_operator() -> None:
    builder = TraceBuilder(rank=0)
    builder.collective("allreduce", 40, 10, parent=9).collective("allreduce", 60, 10, parent=9)
    builder.collective("allreduce", 80, 10, parent=10)
    assert [row["bytes"] for row in rows(build_trace(builder))] == [None, None, 2048]


def test_kernels_without_ids_are_described_each_for_itself() -> None:
    builder = TraceBuilder(rank=0)
    builder.collective("allreduce", 40, 10).collective("allreduce", 60, 10)
    assert [row["bytes"] for row in rows(build_trace(builder))] == [2048, 2048]


def test_one_description_for_two_gpus_is_the_message_of_each() -> None:
    builder = TraceBuilder(rank=0)
    parent = builder.operator("record_param_comms", 0, 10, **metadata("allreduce", 100))
    for device in (0, 1):
        builder.collective("allreduce", 40, 10, elements=100, parent=parent, device=device)
    assert [row["bytes"] for row in rows(build_trace(builder))] == [200, 200]


def test_sizes_that_are_not_known() -> None:
    builder = TraceBuilder(rank=0)
    builder.collective("allreduce", 0, 10, dtype="Quaternion")
    builder.collective("allreduce", 20, 10, elements=0)
    assert [row["bytes"] for row in rows(build_trace(builder))] == [None, 0]


def test_the_peer_of_a_send_and_of_a_receive() -> None:
    builder = TraceBuilder(rank=2)
    ranks = {"Src Rank": 2, "Dst Rank": 5}
    builder.gpu("kernel", GENERIC, 0, 5, **metadata("send"), **ranks)
    ranks = {"Src Rank": 6, "Dst Rank": 2}
    builder.gpu("kernel", GENERIC, 10, 5, **metadata("recv"), **ranks)
    builder.gpu("kernel", GENERIC, 20, 5, **metadata("coalesced"), **ranks)
    builder.gpu("kernel", GENERIC, 30, 5, **metadata("allreduce"))
    assert [row["peer"] for row in rows(build_trace(builder))] == [5, 6, 6, None]


def test_only_communication_has_a_row() -> None:
    builder = TraceBuilder(rank=0).kernel("gemm", 0, 5).copy("HtoD", 10, 5)
    builder.collective("allreduce", 20, 5).copy("PtoP", 30, 5, stream=9)
    trace = build_trace(builder)
    assert trace.collectives["gpu_op_row"].tolist() == [2, 3]
    assert [row["collective"] for row in rows(trace)] == ["all_reduce", None]
