"""A collective was started and nothing ever waits for its end."""

from __future__ import annotations

from pathlib import Path

import pytest

import diagnose
from tests.builder import MAIN_THREAD, TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "work-never-waited"
COMPUTE, COMM = 7, 20
COMPUTE_HANDLE, COMM_HANDLE = "0", "55d0"
RECORDED = Path(__file__).parents[2] / "data" / "hazards"


def note(builder: TraceBuilder, at: float, text: str, *, thread: int = MAIN_THREAD) -> None:
    builder.operator(f"diagnose: {text}", at, 0.5, thread=thread)


def issue(builder: TraceBuilder, at: float, event: str, *, name: str = "allreduce") -> None:
    """An all-reduce of 50 us, as ProcessGroupNCCL issues it: launch, then its event."""
    record = builder.operator("record_param_comms", at, 10)
    kernel = "allreduce" if name == "barrier" else name
    builder.collective(kernel, at + 10, 50, launch=at + 2, parent=record)
    if name != kernel:
        builder.events[-1]["args"]["Collective name"] = name
    note(builder, at + 6, f"event {event} recorded on stream {COMM_HANDLE}")


def job(
    *, steps: int = 4, per_step: int = 1, waits: str = "", name: str = "allreduce"
) -> TraceBuilder:
    """Steps of 200 us: all-reduces from 10 us on, ``waits`` at 50 us, a kernel launched at 60 us.

    ``waits`` may name the step's first event as ``{event}``.
    """
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(steps):
        at = 200.0 * step
        builder.step(step, at, 200)
        for place in range(per_step):
            issue(builder, at + 10 + 15 * place, f"a{step}{place}", name=name)
        if waits:
            note(builder, at + 50, waits.format(event=f"a{step}0"))
        builder.kernel("adam", at + 70, 20, launch=at + 60)
    return builder


def test_fires_where_nothing_waits():
    finding = found(trace_of(job()), RULE)
    # The collective of the last of four steps may be waited for after the window.
    assert values(finding) == {"num_unwaited": 3, "num_collectives": 4}
    assert finding.where.streams == (COMM,)
    assert (finding.severity, finding.confidence) == ("warning", "high")
    assert finding.gain.basis == "none"


def test_fires_where_only_its_own_stream_waits():
    builder = job(waits=f"stream {COMM_HANDLE} waits for event {{event}}")
    assert values(found(trace_of(builder), RULE))["num_unwaited"] == 3


def test_fires_where_the_wait_is_for_an_older_event():
    builder = TraceBuilder(rank=0, world_size=2)
    for place in range(4):
        builder.step(place, 100.0 * place, 100)
        issue(builder, 100.0 * place + 10, f"b{place}")
        note(builder, 100.0 * place + 30, f"stream {COMPUTE_HANDLE} waits for event b0")
        builder.kernel("adam", 100.0 * place + 70, 20, launch=100.0 * place + 60)
    # b0 covers the collective of step 0 only: 1 and 2 are left, and 3 is the last step's.
    assert values(found(trace_of(builder), RULE))["num_unwaited"] == 2


@pytest.mark.parametrize("who", ["stream 0", "host"])
def test_silent_where_a_stream_or_the_host_waits(who):
    assert is_clean(trace_of(job(waits=f"{who} waits for event {{event}}")), RULE)


def test_silent_where_a_wait_of_the_next_step_covers_it():
    # Two a step, of which the first one's event is waited for: only the last one is left.
    builder = job(per_step=2, waits=f"stream {COMPUTE_HANDLE} waits for event {{event}}")
    assert is_clean(trace_of(builder), RULE)


def test_silent_where_a_later_event_of_the_stream_is_waited_for():
    builder = job(steps=3)
    note(builder, 600, f"event ff recorded on stream {COMM_HANDLE}")
    note(builder, 601, "stream 0 waits for event ff")
    assert is_clean(trace_of(builder), RULE)


def test_fires_as_a_hint_where_only_the_host_synchronises_after_further_kernels():
    builder = job()
    for step in range(4):
        correlation = builder.call("cudaDeviceSynchronize", 200.0 * step + 100, 80)
        builder.sync("Context Sync", 200.0 * step + 100, 80, correlation=correlation)
    finding = found(trace_of(builder), RULE)
    # All four: the host says when it takes the results.
    assert values(finding)["num_unwaited"] == 4
    assert (finding.severity, finding.confidence) == ("hint", "low")


def test_silent_where_the_host_synchronises_before_further_kernels():
    builder = job()
    for step in range(4):
        correlation = builder.call("cudaDeviceSynchronize", 200.0 * step + 40, 10)
        builder.sync("Context Sync", 200.0 * step + 40, 10, correlation=correlation)
    assert is_clean(trace_of(builder), RULE)


def test_silent_where_the_job_asks_whether_work_is_done():
    builder = job()
    for step in range(4):
        builder.call("cudaEventQuery", 200.0 * step + 45)
    assert is_clean(trace_of(builder), RULE)


def test_fires_where_a_watchdog_asks():
    builder = job()
    for step in range(4):
        builder.call("cudaEventQuery", 200.0 * step + 45, thread=99)
    assert values(found(trace_of(builder), RULE))["num_unwaited"] == 3


@pytest.mark.parametrize("name", ["send", "barrier"])
def test_silent_for_what_leaves_no_result(name):
    assert is_clean(trace_of(job(name=name)), RULE)


def test_silent_at_the_end_of_a_window_without_steps():
    builder = job(steps=4)
    builder.events = [one for one in builder.events if not one["name"].startswith("ProfilerStep")]
    assert is_clean(trace_of(builder), RULE)
    assert values(found(trace_of(builder), RULE, min_num_later=1))["num_unwaited"] == 3


def test_silent_on_the_stream_of_the_kernels():
    builder = job()
    for event in builder.events:
        if event.get("args", {}).get("stream") == COMM:
            event["args"]["stream"] = COMPUTE
    assert is_clean(trace_of(builder), RULE)


def test_is_not_judged_without_notes():
    builder = job()
    builder.events = [one for one in builder.events if not one["name"].startswith("diagnose: ")]
    _, checked = judged(trace_of(builder), RULE)
    (one,) = checked.not_checked
    assert "--check-sync" in one.remedy


@pytest.mark.parametrize(
    "text",
    [
        "event zz recorded on stream 0",
        "event " + "f" * 40 + " recorded on stream 0",
        "stream 0 waits for event",
        "host waits for event a00; and more",
    ],
)
def test_notes_that_are_none_are_passed_over(text):
    builder = job()
    note(builder, 55, text)
    assert values(found(trace_of(builder), RULE))["num_unwaited"] == 3


@pytest.mark.parametrize(
    ("recording", "number"),
    [
        # Three steps, each with an all-gather whose work is thrown away.
        ("update_beside_all_gather.racy", 3),
        ("update_beside_all_gather.repaired", 0),
        # It waits, but too late: another matter.
        ("reduction_read_before_wait.racy", 0),
        ("reduction_read_before_wait.repaired", 0),
        ("training_with_prefetch.racy", 0),
        ("training_with_prefetch.repaired", 0),
    ],
)
def test_real_recordings(recording, number):
    trace = diagnose.load(RECORDED / recording).trace
    if number:
        assert values(found(trace, RULE))["num_unwaited"] == number
    else:
        assert is_clean(trace, RULE)


def test_ranks_of_which_no_event_was_noted_are_named():
    waiting = job(waits=f"stream {COMPUTE_HANDLE} waits for event {{event}}")
    silent = TraceBuilder(rank=1, world_size=2)
    for step in range(4):
        silent.step(step, 200.0 * step, 200)
        silent.collective("allreduce", 200.0 * step + 20, 50, launch=200.0 * step + 12)
    findings, checked = judged(trace_of(waiting, silent), RULE)
    assert (findings, checked.clean) == ((), (RULE,))
    assert [one.sentence for one in checked.seen] == [
        "all work is waited for, as far as was recorded: not seen is rank 1."
    ]
    assert judged(trace_of(waiting), RULE)[1].seen == ()
