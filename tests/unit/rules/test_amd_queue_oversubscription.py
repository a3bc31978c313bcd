"""More queues or processes on an AMD GPU than it can run at once."""

from __future__ import annotations

from diagnose.trace import Trace
from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "amd-queue-oversubscription"


def job(processes: int, streams: int, *, uuid: str | None = "GPU-1", **env: str) -> Trace:
    """Processes on one GPU, each with a kernel on so many streams."""
    builders = []
    for rank in range(processes):
        builder = TraceBuilder(rank=rank, world_size=processes)
        for stream in range(streams):
            builder.kernel("gemm", 10 * stream, 10, stream=stream, launch=10 * stream)
        builders.append(builder)
    gpu = {"name": "AMD Instinct MI300X"} | ({} if uuid is None else {"uuid": uuid})
    return trace_of(*builders, env=env, gpu=gpu)


def test_fires_for_many_processes():
    evidence = values(found(job(12, 1), RULE))
    assert (evidence["num_processes"], evidence["num_queues"]) == (12, 12)


def test_fires_for_many_queues():
    # Four processes of ten streams: 4 queues each by default, and 8 where they may.
    evidence = values(found(job(4, 10, GPU_MAX_HW_QUEUES="8"), RULE))
    assert (evidence["num_processes"], evidence["num_queues"]) == (4, 32)


def test_silent_where_streams_share_queues():
    assert is_clean(job(4, 10), RULE)


def test_silent_for_eleven_processes():
    assert is_clean(job(11, 2), RULE)


def test_is_not_judged_where_no_process_names_its_gpu():
    _, checked = judged(job(12, 1, uuid=None), RULE)
    assert [one.because for one in checked.not_checked] == ["no process names its GPU"]
