"""Everybody waits for one rank."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "straggler-rank"
STEP, END = 1000, 1000


def ranks(*arrivals: float, steps: int = 3) -> list[TraceBuilder]:
    """Ranks that compute until they arrive at an all-reduce which all leave at the step's end."""
    builders = []
    for rank, arrival in enumerate(arrivals):
        builder = TraceBuilder(rank=rank, world_size=len(arrivals))
        for step in range(steps):
            begin = step * STEP
            builder.step(step, begin, STEP - 1)
            builder.kernel("gemm", begin, arrival, launch=begin + 1)
            builder.collective(
                "allreduce",
                begin + arrival,
                END - arrival,
                launch=begin + 2,
                group_size=len(arrivals),
                elements=1 << 20,
            )
        builders.append(builder)
    return builders


def test_fires_for_the_rank_that_is_always_last():
    finding = found(trace_of(*ranks(500, 510, 900)), RULE)
    assert finding.where.ranks == (2,)
    evidence = values(finding)
    # The next to last arrives at 510 us, it at 900.
    assert evidence["lost_per_step_ns"] == 390_000
    assert evidence["lost_pct"] == 39
    assert evidence["last_pct"] == 100
    assert finding.cost.per_step_ns == 390_000
    assert "Rank 2 holds the others up in 3 of 3 steps" in finding.sentence
    assert finding.key == "straggler-rank@rank 2"


def test_says_work_where_it_computes_longer_and_host_where_it_idles():
    by_work = found(trace_of(*ranks(500, 510, 900)), RULE)
    assert "More compute on rank 2" in by_work.advice[0].text
    assert "longer_idle_ns" not in values(by_work)
    late = ranks(500, 510, 500)
    # The third rank computes as long, and starts 400 us later in each step.
    for event in late[2].events:
        if event["cat"] == "kernel" and event["name"] == "gemm":
            event["ts"] += 400
        elif event["cat"] == "kernel":
            event["ts"] += 400
            event["dur"] -= 400
    by_host = found(trace_of(*late), RULE)
    assert by_host.where.ranks == (2,)
    assert values(by_host)["longer_idle_ns"] == 400_000
    assert "its host is late" in by_host.advice[0].text.lower()


def test_silent_where_all_arrive_together():
    assert is_clean(trace_of(*ranks(900, 905, 910)), RULE)


def test_silent_below_the_threshold_of_the_settings():
    assert is_clean(trace_of(*ranks(500, 510, 900)), RULE, min_lost_pct=45.0)
    assert found(trace_of(*ranks(860, 870, 900)), RULE, min_lost_pct=2.0).where.ranks == (2,)


def test_one_rank_is_not_judged_and_a_job_of_one_rank_not_meant():
    alone = TraceBuilder(rank=0, world_size=2).step(0, 0, 90).kernel("gemm", 0, 50, launch=0)
    alone.collective("allreduce", 50, 20, launch=1)
    _, checked = judged(trace_of(alone), RULE)
    assert [one.because for one in checked.not_checked] == ["one rank was given"]
    single = TraceBuilder(rank=0, world_size=1).step(0, 0, 90).kernel("gemm", 0, 50, launch=0)
    single.collective("allreduce", 50, 20, launch=1, group_size=1)
    _, checked = judged(trace_of(single), RULE)
    assert checked.not_applicable == (RULE,)
