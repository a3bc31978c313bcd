"""Compute, communication or memory, by name and by the operator that launched it."""

from __future__ import annotations

import pytest

from diagnose.schema import Activity, Detail
from diagnose.trace import Trace
from tests.builder import TraceBuilder, build_trace, metadata

COMPUTE, COMMUNICATION, MEMORY = Activity.COMPUTE, Activity.COMMUNICATION, Activity.MEMORY
FUSED = "symm_mem::fused_all_gather_matmul"


def classes(trace: Trace) -> list[tuple[Activity, bool]]:
    ops = trace.gpu_ops
    found = zip(ops["activity"].tolist(), ops["certain"].tolist(), strict=True)
    return [(Activity(activity), certain) for activity, certain in found]


@pytest.mark.parametrize("detail", list(Detail))
def test_copies_between_gpus_are_communication_and_gemms_beside_them_are_not(
    detail: Detail,
) -> None:
    builder = TraceBuilder(rank=0)
    parent = builder.operator(FUSED, 0, 30)
    builder.copy("PtoP", 50, 10, stream=40, launch=2, parent=parent)
    builder.kernel("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", 61, 50, launch=4, parent=parent)
    own = builder.operator("aten::copy_", 40, 5)
    builder.copy("DtoD", 120, 10, launch=41, parent=own)
    trace = build_trace(builder, detail=detail)
    assert classes(trace) == [(COMMUNICATION, True), (COMPUTE, True), (MEMORY, True)]


def test_a_copy_whose_ends_differ_is_communication_whatever_its_name() -> None:
    builder = TraceBuilder(rank=0)
    builder.copy("DtoD", 0, 10, fromDevice=1, toDevice=0)
    builder.copy("DtoD", 20, 10, fromDevice=0, toDevice=0)
    builder.copy("DtoD", 40, 10)
    trace = build_trace(builder)
    assert classes(trace) == [(COMMUNICATION, True), (MEMORY, True), (MEMORY, True)]


def test_a_collective_of_copies_alone_is_communication_but_not_certainly() -> None:
    builder = TraceBuilder(rank=0)
    args = metadata("_allgather_base", 1024, 2048)
    parent = builder.operator("record_param_comms", 0, 10, **args)
    builder.copy("DtoD", 20, 10, launch=2, parent=parent)
    trace = build_trace(builder)
    assert classes(trace) == [(COMMUNICATION, False)]
    assert trace.collectives["bytes"].tolist() == [4096]


def test_copies_beside_a_collective_kernel_are_memory() -> None:
    builder = TraceBuilder(rank=0)
    parent = builder.operator("record_param_comms", 0, 10, **metadata("_allgather_base"))
    builder.copy("DtoD", 20, 10, launch=2, parent=parent)
    builder.collective("_allgather_base", 40, 10, launch=4, parent=parent)
    assert classes(build_trace(builder)) == [(MEMORY, True), (COMMUNICATION, True)]


def test_a_collective_of_one_rank_moves_nothing_to_another_gpu() -> None:
    builder = TraceBuilder(rank=0)
    args = metadata("_allgather_base", group_size=1)
    parent = builder.operator("record_param_comms", 0, 10, **args)
    builder.copy("DtoD", 20, 10, launch=2, parent=parent)
    assert classes(build_trace(builder)) == [(MEMORY, True)]


def test_staging_copies_of_the_host_stay_memory() -> None:
    builder = TraceBuilder(rank=0)
    parent = builder.operator("record_param_comms", 0, 10, **metadata("allreduce"))
    builder.copy("DtoH", 20, 10, launch=2, parent=parent)
    builder.copy("HtoD", 40, 10, launch=4, parent=parent)
    assert classes(build_trace(builder)) == [(MEMORY, True), (MEMORY, True)]


def test_without_ids_the_operator_around_the_launch_decides() -> None:
    builder = TraceBuilder(rank=0)
    builder.operator("symm_mem::_low_contention_all_gather", 0, 10, thread=5)
    builder.copy("DtoD", 20, 10, launch=2, thread=5)
    builder.copy("DtoD", 40, 10, launch=2, thread=6)
    builder.copy("DtoD", 60, 10, launch=10, thread=5)
    expected = [(COMMUNICATION, False), (MEMORY, True), (MEMORY, True)]
    assert classes(build_trace(builder)) == expected


def test_a_copy_by_an_operator_within_a_collective_is_doubted() -> None:
    builder = TraceBuilder(rank=0)
    builder.operator("symm_mem::_low_contention_all_gather", 0, 20)
    inner = builder.operator("aten::copy_", 1, 5)
    builder.copy("DtoD", 30, 10, launch=2, parent=inner)
    assert classes(build_trace(builder)) == [(MEMORY, False)]


def test_packing_within_record_param_comms_is_memory_for_certain() -> None:
    builder = TraceBuilder(rank=0)
    builder.operator("record_param_comms", 0, 20, **metadata("allgather"))
    inner = builder.operator("aten::copy_", 1, 5)
    builder.copy("DtoD", 30, 10, launch=2, parent=inner)
    assert classes(build_trace(builder)) == [(MEMORY, True)]


def test_an_unknown_kernel_alone_in_a_collective_is_taken_for_it() -> None:
    builder = TraceBuilder(rank=0)
    parent = builder.operator("symm_mem::brand_new_all_reduce", 0, 10)
    builder.kernel("brand_new_kernel", 20, 10, launch=2, parent=parent)
    builder.kernel("brand_new_kernel", 40, 10, launch=12)
    assert classes(build_trace(builder)) == [(COMMUNICATION, False), (COMPUTE, True)]


def test_an_element_wise_kernel_in_record_param_comms_stays_compute() -> None:
    builder = TraceBuilder(rank=0)
    parent = builder.operator("record_param_comms", 0, 10, **metadata("allreduce"))
    builder.kernel("void at::native::vectorized_elementwise_kernel<4>()", 20, 9, parent=parent)
    assert classes(build_trace(builder)) == [(COMPUTE, True)]


def test_a_kernel_without_a_name_is_not_certain() -> None:
    raw = TraceBuilder(rank=0).kernel("x", 0, 10).raw()
    raw.gpu["name"][:] = -1
    from diagnose.names import Classifier
    from diagnose.readers.assemble import Origin, assemble_file, join

    trace = join(assemble_file(raw, Origin(), Classifier.load(), Detail.ALL))
    assert classes(trace) == [(COMPUTE, False)]
    assert trace.gpu_ops.texts("name") == [None]
