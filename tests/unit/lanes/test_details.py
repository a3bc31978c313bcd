"""What one operation hangs together with, on a trace of which all is known."""

from __future__ import annotations

import pytest

from diagnose import engine
from diagnose.lanes import Op, OpTable
from diagnose.lanes.details import Details, Peer, details_of
from diagnose.trace import Trace
from tests.builder import TraceBuilder, build_trace

GPU, HOST, CALL = OpTable.GPU_OPS, OpTable.HOST_OPS, OpTable.LAUNCHES


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Main thread: forward 0-100 around aten::mm 10-50; another thread works all the time.

    ``gemm_a`` was launched in aten::mm, ``gemm_b`` in forward alone, ``foreign`` by the
    other thread at the same time, ``early`` before the window.
    """
    builder = TraceBuilder(rank=0)
    builder.operator("forward", 0, 100)
    builder.operator("aten::mm", 10, 40)
    builder.operator("backward", 0, 100, thread=7)
    builder.kernel("early", 5, 5)
    builder.kernel("gemm_a", 110, 20, launch=20)
    builder.kernel("gemm_b", 140, 20, launch=60)
    builder.kernel("foreign", 170, 20, launch=30, thread=7)
    return build_trace(builder)


def of(trace: Trace, table: OpTable, name: str) -> Details:
    """Details of the first operation of a name."""
    return details_of(trace, Op(table, named(trace, table).index(name)))


def named(trace: Trace, kind: OpTable) -> list[str]:
    table = {GPU: trace.gpu_ops, HOST: trace.host_ops, CALL: trace.launches}[kind]
    return [trace.strings[code] for code in table["name"].tolist()]


def names(trace: Trace, ops: tuple[Op, ...]) -> list[str]:
    return [named(trace, op.table)[op.row] for op in ops]


def test_a_kernel_knows_its_launch_and_who_called_it(trace):
    found = of(trace, GPU, "gemm_a")
    assert found.name == "gemm_a"
    assert found.launch is not None
    assert found.launch.table == CALL
    # 20 us after the builder's zero.
    assert trace.launches["start_ns"][found.launch.row] == 5_000_020_000
    assert names(trace, found.stack) == ["forward", "aten::mm"]
    assert (found.launched, found.num_launched, found.peers) == ((), 0, ())
    assert found.facts[0] == ("duration", 20_000, "ns")


def test_a_kernel_launched_before_the_window_has_neither(trace):
    found = of(trace, GPU, "early")
    assert found.launch is None
    assert found.stack == ()


def test_a_call_launched_one_kernel(trace):
    launch = of(trace, GPU, "gemm_b").launch
    assert launch is not None
    found = details_of(trace, launch)
    assert names(trace, found.launched) == ["gemm_b"]
    assert found.num_launched == 1
    assert names(trace, found.stack) == ["forward"]


@pytest.mark.parametrize(
    ("name", "launched", "stack"),
    [
        ("forward", ["gemm_a", "gemm_b"], []),
        ("aten::mm", ["gemm_a"], ["forward"]),
        ("backward", ["foreign"], []),
    ],
)
def test_an_operator_launched_what_its_thread_did_within_it(trace, name, launched, stack):
    found = of(trace, HOST, name)
    assert names(trace, found.launched) == launched
    assert found.num_launched == len(launched)
    assert names(trace, found.stack) == stack
    assert found.launch is None


def test_many_launched_are_counted_and_the_first_fifty_named():
    builder = TraceBuilder(rank=0)
    builder.operator("loop", 0, 1000)
    for at in range(60):
        builder.kernel(f"k{at}", 2000 + 10 * at, 5, launch=10 * at)
    trace = build_trace(builder)
    found = of(trace, HOST, "loop")
    assert found.num_launched == 60
    assert names(trace, found.launched) == [f"k{at}" for at in range(50)]


def test_a_collective_knows_its_peers():
    """Rank 0 arrives 30 us before rank 1 and waits for it; both end at 100 us."""
    builders = [TraceBuilder(rank=rank, world_size=2) for rank in (0, 1)]
    builders[0].collective("allreduce", 50, 50, launch=10)
    builders[1].collective("allreduce", 80, 20, launch=20)
    trace = build_trace(*builders)
    waits = engine.diagnose(trace, {"rank_waits": engine.Request("rank_waits", {})}).tables[
        "rank_waits"
    ]
    found = details_of(trace, Op(GPU, 1), waits)
    assert [(peer.op, peer.source, peer.duration_ns) for peer in found.peers] == [
        (Op(GPU, 0), 0, 50_000),
        (Op(GPU, 1), 1, 20_000),
    ]
    assert [peer.wait_ns for peer in found.peers] == [30_000, 0]
    assert all(isinstance(peer, Peer) for peer in found.peers)
    facts = {fact.label: fact.value for fact in found.facts}
    assert facts["group size"] == 2
    assert details_of(trace, Op(GPU, 1)).peers == ()
