"""A GEMM overtakes the tensor-parallel collective launched before it."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values
from tests.unit.rules.waiting_streams import wait

RULE = "tp-order-not-enforced"
HOPPER = {"name": "NVIDIA H100", "compute_capability": "9.0"}
TENSOR = {"3": "TENSOR_MODEL_PARALLEL_GROUP"}


def job(
    groups: dict[str, str] | None = TENSOR,
    *,
    late: float = 180,
    num_late: int = 5,
    after: bool = False,
    waits: bool = True,
    input_late: bool = False,
) -> TraceBuilder:
    """Five layers: a kernel until 100, a GEMM of 200 us, and an all-reduce ``late`` behind it."""
    builder = TraceBuilder(rank=0, world_size=8)
    if groups is not None:
        builder.top["distributedInfo"]["pg_config"] = [
            {"pg_name": name, "pg_desc": text, "pg_size": 8} for name, text in groups.items()
        ]
    for layer in range(5):
        at = layer * 1000
        builder.kernel("norm", at, 100, launch=at - 50)
        builder.kernel("nvjet_sm90_tst_128x256", at + 100, 200, launch=at - 40)
        if waits:
            wait(builder, at - 46, stream=20, of=7)
        if input_late:
            builder.kernel("input", at, 275, stream=9, launch=at - 49)
            wait(builder, at - 47, stream=20, of=9)
        builder.collective(
            "allreduce",
            at + 100 + (late if layer < num_late else 0),
            100,
            group="3",
            group_size=8,
            launch=at - (36 if after else 44),
        )
    return builder


def test_fires_where_gemms_go_first():
    finding = found(trace_of(job(), gpu=HOPPER), RULE)
    evidence = values(finding)
    assert evidence["num_pairs"] == 5
    assert evidence["overtaken_pct"] == 100
    assert evidence["delay_ns"] == 5 * 180_000
    # From 0 to the end of the last all-reduce at 4380.
    assert evidence["step_pct"] == pytest.approx(100 * 900 / 4380)
    assert finding.confidence == "medium"
    assert finding.advice[0].code == "CUDA_DEVICE_MAX_CONNECTIONS=1"
    assert finding.gain.high_ns == 900_000


def test_fires_without_counting_gemms_that_wait_for_the_collective():
    builder = job()
    for number in range(20):
        at = 5000 + 200 * number
        builder.collective("allreduce", at, 50, group="3", group_size=8, launch=at - 20)
        wait(builder, at - 16, stream=7, of=20)
        builder.kernel("nvjet_sm90_tst_128x256", at + 50, 100, launch=at - 10)
    evidence = values(found(trace_of(builder, gpu=HOPPER), RULE))
    assert (evidence["num_pairs"], evidence["overtaken_pct"]) == (5, 100)


def test_fires_for_a_device_mesh():
    assert found(trace_of(job({"3": "mesh_tp", "0": "default_pg"}), gpu=HOPPER), RULE)


def test_fires_as_a_hint_where_the_environment_is_not_known():
    assert found(trace_of(job()), RULE).severity == "hint"


def test_silent_with_one_queue():
    env = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert is_clean(trace_of(job(), env=env, gpu=HOPPER), RULE)


def test_silent_on_blackwell():
    blackwell = {"name": "NVIDIA B200", "compute_capability": "10.0"}
    assert is_clean(trace_of(job(), gpu=blackwell), RULE)


@pytest.mark.parametrize(
    "other", ["mesh_dp_shard", "EXPERT_MODEL_PARALLEL_GROUP", "mesh_ep", "fsdp"]
)
def test_silent_beside_fsdp_or_expert_parallelism(other):
    assert is_clean(trace_of(job(TENSOR | {"5": other}), gpu=HOPPER), RULE)


def test_silent_beside_marks_of_fsdp():
    builder = job()
    builder.operator("FSDP::all_gather (layers.0)", 0, 5, category="user_annotation")
    assert is_clean(trace_of(builder, gpu=HOPPER), RULE)


def test_silent_for_short_delays():
    # 90 us are less than half of the GEMM.
    assert is_clean(trace_of(job(late=90), gpu=HOPPER), RULE)


def test_silent_where_its_input_came_after_the_gemm_began():
    assert is_clean(trace_of(job(input_late=True), gpu=HOPPER), RULE)


def test_silent_where_few_are_overtaken():
    # One of five: 20 %. The others begin together with the GEMM.
    assert is_clean(trace_of(job(num_late=1), gpu=HOPPER), RULE)


def test_silent_where_the_gemm_was_launched_first():
    assert is_clean(trace_of(job(after=True), gpu=HOPPER), RULE)


def test_silent_where_no_wait_was_recorded():
    assert is_clean(trace_of(job(waits=False), gpu=HOPPER), RULE)


def test_silent_without_tensor_parallelism():
    _, checked = judged(trace_of(job({"3": "default_pg"}), gpu=HOPPER), RULE)
    assert checked.not_applicable == (RULE,)


def test_is_not_judged_where_groups_are_not_described():
    _, checked = judged(trace_of(job(None), gpu=HOPPER), RULE)
    assert [one.because for one in checked.not_checked] == [
        "which groups are tensor-parallel is not known"
    ]
