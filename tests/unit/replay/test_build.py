"""Models of small traces: every number worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from diagnose.analysis import Unavailable
from diagnose.analyzers.critical_path import critical_path
from diagnose.analyzers.critical_path.search import PathClass
from diagnose.readers import read
from diagnose.replay._lags import CALL_NS, PAUSE_NS
from diagnose.replay._window import NO_LAUNCHES, NO_STEPS
from diagnose.replay.build import CLOCKS, NO_STEP_BEFORE, build
from diagnose.replay.execute import Times, execute
from diagnose.replay.model import Kind, Model
from diagnose.replay.steady import steady
from diagnose.schema import NULL
from diagnose.trace import Table, Trace
from tests.builder import TraceBuilder, build_trace
from tests.unit.replay.replay_traces import (
    KERNELS,
    QUEUE,
    backward_thread,
    full_queue,
    late_rank,
    launch_bound,
    synchronous,
    two_streams,
)

Tie = tuple[str, str, float, int]


def model_of(*builders: TraceBuilder, max_steps: int = 5) -> Model:
    return built(build_trace(*builders), max_steps)


def built(trace: Trace, max_steps: int = 5) -> Model:
    model = build(trace, max_steps)
    assert not isinstance(model, Unavailable)
    return model


def executed(model: Model) -> Times:
    times = execute(model)
    assert not isinstance(times, Unavailable)
    return times


def step_us(model: Model) -> float:
    found = steady(model)
    assert not isinstance(found, Unavailable)
    return found.slowest_ns / 1000


def names(model: Model) -> list[str]:
    """What each node is, with its step; a call is ``call of`` the operation that it launches."""
    trace = model.trace
    ops = [
        f"{trace.strings[code].split('_')[0]} {step}"
        for code, step in zip(
            trace.gpu_ops["name"][model.operations.row].tolist(),
            model.operations.step.tolist(),
            strict=True,
        )
    ]
    calls = [
        f"{trace.strings[code]} {step}"
        for code, step in zip(
            trace.launches["name"][model.calls.row].tolist(),
            model.calls.step.tolist(),
            strict=True,
        )
    ]
    for op, call in enumerate(model.launch_call().tolist()):
        if call >= 0:
            calls[call] = f"call of {ops[op]}"
    return ops + calls


def ties(model: Model, *kinds: Kind) -> set[Tie]:
    """(from, to, lag in us, passes) of all dependencies of some kinds."""
    name, found = names(model), model.dependencies
    rows = zip(*(column.tolist() for column in found), strict=True)
    return {
        (name[of], name[to], lag / 1000, passes)
        for of, to, lag, kind, passes in rows
        if kind in kinds
    }


def us(values: Iterable[int]) -> list[float]:
    return [value / 1000 for value in values]


class TestLaunchBound:
    def test_operations_and_calls(self) -> None:
        model = model_of(launch_bound())
        assert model.num_steps == 2
        assert names(model) == [
            "first 0", "second 0", "first 1", "second 1",
            "call of first 0", "call of second 0", "call of first 1", "call of second 1",
        ]  # fmt: skip
        assert us(model.operations.duration_ns) == [20, 10, 20, 10]
        # Launches bind: what the stream would take is not seen, only that it is no longer.
        assert model.operations.pause_ns.tolist() == [PAUSE_NS] * 4
        # From the return of the second call to the next first, from the first to the second.
        assert us(model.calls.work_ns) == [58, 38, 58, 38]
        assert us(model.calls.call_ns) == [2, 2, 2, 2]
        assert not model.calls.waits.any()

    def test_dependencies(self) -> None:
        assert ties(model_of(launch_bound()), *Kind) == {
            ("call of first 0", "first 0", 6, 0),
            ("call of second 0", "second 0", 7, 0),
            ("call of first 1", "first 1", 6, 0),
            ("call of second 1", "second 1", 7, 0),
        }

    def test_times_are_the_recorded_ones(self) -> None:
        model = model_of(launch_bound())
        assert us(model.measured_step_ns) == [100]
        assert us(executed(model).begin_ns) == [49, 90, 149, 190]
        assert step_us(model) == 100

    def test_longer_kernels_hide_behind_the_host_until_they_do_not(self) -> None:
        model = model_of(launch_bound())
        longer = model.operations.duration_ns.copy()
        longer[::2] = 60_000
        assert step_us(model.with_operations(duration_ns=longer)) == 100
        longer[::2] = 120_000
        # 120 + 10 and two usual pauses.
        assert step_us(model.with_operations(duration_ns=longer)) == 134

    def test_events_that_the_profiler_recorded(self) -> None:
        builder = launch_bound()
        builder.operator("aten::mm", 148, 5)
        builder.operator("aten::add", 230, 1)
        builder.operator("aten::elsewhere", 230, 1, thread=99)
        # First: its step mark and itself; second: itself, in one step with an operator.
        assert model_of(builder).calls.num_events.tolist() == [2, 2, 2, 2]

    def test_the_last_steps_are_taken(self) -> None:
        model = model_of(launch_bound(9), max_steps=3)
        assert model.num_steps == 3
        assert model.trace.gpu_ops["step_row"][model.operations.row].tolist() == [6, 6, 7, 7, 8, 8]
        assert us(executed(model).begin_ns) == [49, 90, 149, 190, 249, 290]

    def test_rows_are_those_of_the_whole_trace(self) -> None:
        builder = launch_bound(9)
        for step in range(9):
            builder.call("cudaDeviceGetAttribute", 100 * step + 30)
        model = model_of(builder, max_steps=2)
        assert names(model)[:4] == ["first 0", "second 0", "first 1", "second 1"]
        starts = model.trace.launches["start_ns"][model.calls.row] - 5_000_000_000
        assert us(starts) == [710, 750, 810, 850]
        # The other call is part of the work before the second launch.
        assert us(model.calls.work_ns) == [58, 38, 58, 38]

    def test_steps_must_follow_each_other(self) -> None:
        builder = launch_bound(3)
        for event in builder.events:
            if event["name"] == "ProfilerStep#0":
                event["name"] = "ProfilerStep#7"
        # Only the third follows one with a smaller number by one.
        assert model_of(builder).num_steps == 1


class TestTwoStreams:
    def test_dependencies(self) -> None:
        model = model_of(two_streams())
        assert ties(model, Kind.EVENT_WAIT) == {
            ("backward 0", "ncclDevKernel 0", 3, 0),
            ("ncclDevKernel 0", "optimizer 0", 3, 0),
            ("backward 1", "ncclDevKernel 1", 3, 0),
            ("ncclDevKernel 1", "optimizer 1", 3, 0),
        }
        pause = dict(zip(names(model), us(model.operations.pause_ns), strict=False))
        # Four measured after the optimizer; where events bind, the usual one at most.
        assert pause["backward 1"] == pause["backward 0"] == 4
        assert pause["optimizer 0"] == PAUSE_NS / 1000

    def test_steps(self) -> None:
        model = model_of(two_streams())
        assert us(model.measured_step_ns) == [200]
        assert step_us(model) == 200
        free = np.where(model.operations.bytes != NULL, 0, model.operations.duration_ns)
        # 100 + 3 + 0 + 3 + 40 + 4.
        assert step_us(model.with_operations(duration_ns=free)) == 150

    def test_bytes_of_messages_and_none_of_kernels(self) -> None:
        model = model_of(two_streams())
        size = dict(zip(names(model), model.operations.bytes.tolist(), strict=False))
        assert size["ncclDevKernel 0"] == 2048
        assert size["backward 0"] == NULL

    def test_unmatched_communication_is_said_to_be_whole(self) -> None:
        (remark,) = model_of(two_streams()).remarks
        assert "2 of 2 of the communication kernels" in remark


class TestLateRank:
    def test_waiting_is_not_transfer(self) -> None:
        model = model_of(*late_rank())
        communicates = model.operations.match >= 0
        assert us(model.operations.duration_ns[communicates]) == [50] * 4
        assert sorted(np.unique(model.operations.match[communicates], return_counts=True)[1]) == [
            2,
            2,
        ]
        assert us(model.measured_step_ns) == [233, 233]
        assert step_us(model) == 233
        assert model.remarks == ()

    def test_without_the_late_rank(self) -> None:
        model = model_of(*late_rank())
        duration = np.minimum(model.operations.duration_ns, 100_000)
        # 100 + 1 + 50 + 2.
        assert step_us(model.with_operations(duration_ns=duration)) == 153

    def test_the_others_wait_for_one_that_gets_later(self) -> None:
        model = model_of(*late_rank())
        duration = model.operations.duration_ns.copy()
        duration[duration == 180_000] += 100_000
        found = steady(model.with_operations(duration_ns=duration))
        assert not isinstance(found, Unavailable)
        assert us(found.step_ns) == [333, 333]

    def test_clocks_that_do_not_agree_are_mentioned(self) -> None:
        builders = late_rank()
        for rank, builder in enumerate(builders):
            builder.top["host_name"] = f"node-{rank}"
        # Three collectives are too few to align the clocks of two hosts.
        assert model_of(*builders).remarks == (CLOCKS,)

    def test_what_repeats_does_not_depend_on_clocks(self) -> None:
        builders = late_rank()
        builders[1].top["host_name"] = "node-b"
        builders[1].top["baseTimeNanoseconds"] += 3_000_000
        assert step_us(model_of(*builders)) == 233


class TestHostWaits:
    def test_a_wait_is_not_work(self) -> None:
        model = model_of(synchronous())
        assert ties(model, Kind.HOST_WAIT) == {
            ("forward 0", "cudaDeviceSynchronize 0", 6, 0),
            ("forward 1", "cudaDeviceSynchronize 1", 6, 0),
        }
        assert model.calls.waits.tolist() == [False, True, False, True]
        assert us(model.calls.work_ns) == [20, 2, 20, 2]
        assert us(model.calls.call_ns) == [2, CALL_NS / 1000, 2, CALL_NS / 1000]

    def test_steps(self) -> None:
        model = model_of(synchronous())
        assert us(model.measured_step_ns) == [131]
        assert step_us(model) == 131
        # The kernel and a usual pause; the host needs 29.
        assert step_us(model.with_calls(waits=np.zeros(4, bool))) == 102

    def test_a_wait_for_the_step_before(self) -> None:
        builder = TraceBuilder()
        for step in range(3):
            t = 131 * step
            builder.step(step, t - 1, 131)
            # Returns 6 after the kernel of the step before; launches 2 later.
            builder.call("cudaDeviceSynchronize", t + 1, 10)
            builder.kernel("forward", t + 18, 118, launch=t + 13)
        model = model_of(builder)
        assert ties(model, Kind.HOST_WAIT) == {
            ("forward 0", "cudaDeviceSynchronize 1", 6, 0),
            ("forward 1", "cudaDeviceSynchronize 0", 6, 1),
        }
        assert us(executed(model).begin_ns) == [13, 144]
        assert step_us(model) == 131

    def test_a_first_step_that_began_after_a_wait_has_nothing_before_it(self) -> None:
        builder = TraceBuilder().step(0, -4, 131)
        builder.call("cudaDeviceSynchronize", -2, 1)
        builder.kernel("forward", 5, 100, launch=0)
        builder.call("cudaDeviceSynchronize", 4, 107)
        model = model_of(builder)
        assert model.num_steps == 1
        assert model.remarks == (NO_STEP_BEFORE,)
        # From the mark, and from the return of the first wait.
        assert us(model.calls.work_ns) == [2, 1, 2]
        # Wait after 2, taking 1 (as it did); launch 1 later; kernel 5 later; return 6 after it.
        assert step_us(model) == 2 + 1 + 1 + 5 + 100 + 6


class TestBackwardThread:
    def test_the_work_is_handed_over_and_back(self) -> None:
        model = model_of(backward_thread())
        assert ties(model, Kind.HANDOFF) == {
            ("call of forward 0", "call of backward 0", 28, 0),
            ("call of backward 0", "call of optimizer 0", 28, 0),
            ("call of forward 1", "call of backward 1", 28, 0),
            ("call of backward 1", "call of optimizer 1", 28, 0),
        }

    def test_waiting_for_backward_is_not_work(self) -> None:
        model = model_of(backward_thread())
        calls = names(model)[model.num_ops :]
        work = dict(zip(calls, us(model.calls.work_ns), strict=True))
        assert work["call of optimizer 1"] == 28
        assert work["call of backward 1"] == 28
        # From the optimizer's return, on the same thread.
        assert work["call of forward 1"] == 38

    def test_steps(self) -> None:
        model = model_of(backward_thread())
        assert step_us(model) == 100
        calls = names(model)[model.num_ops :]
        longer = model.calls.call_ns.copy()
        longer[[name.startswith("call of backward") for name in calls]] += 10_000
        assert step_us(model.with_calls(call_ns=longer)) == 110
        idle = np.zeros_like(model.calls.work_ns)
        # The handoffs stay: 4 x 28 in two steps, and six calls of 2: (112 + 12) / 2.
        assert step_us(model.with_calls(work_ns=idle)) == 62

    def test_events_of_both_threads_count_for_a_handoff(self) -> None:
        model = model_of(backward_thread())
        calls = names(model)[model.num_ops :]
        count = dict(zip(calls, model.calls.num_events.tolist(), strict=True))
        # The step mark, an operator, itself.
        assert count["call of forward 1"] == 3
        # Two operators and itself.
        assert count["call of backward 1"] == 3
        # An operator and itself.
        assert count["call of optimizer 1"] == 2

    def test_a_busy_thread_was_handed_nothing(self) -> None:
        model = model_of(backward_thread(main_busy=True))
        handed = {to for _, to, _, _ in ties(model, Kind.HANDOFF)}
        assert handed == {"call of backward 0", "call of backward 1"}
        calls = names(model)[model.num_ops :]
        work = dict(zip(calls, us(model.calls.work_ns), strict=True))
        assert work["call of optimizer 1"] == 58


@pytest.fixture(scope="module")
def queued() -> Model:
    return model_of(full_queue(), max_steps=2)


class TestLaunchQueue:
    def test_calls_are_as_long_as_those_that_were_not_held(self, queued: Model) -> None:
        assert set(us(queued.calls.call_ns)) == {2}
        assert set(us(queued.calls.work_ns)) == {2}

    def test_times_are_the_recorded_ones(self, queued: Model) -> None:
        starts = executed(queued).start_ns
        recorded = queued.trace.launches["start_ns"][queued.calls.row]
        assert np.ptp(starts - recorded) == 0

    def test_distance_over_passes(self, queued: Model) -> None:
        dependencies = queued.dependencies.take(queued.dependencies.kind == Kind.QUEUE_LIMIT)
        launched = queued.launch_call()
        position = np.empty(2 * KERNELS, np.int64)
        position[launched] = np.arange(2 * KERNELS)
        behind = position[dependencies.to_node - queued.num_ops]
        back = behind - dependencies.from_node + dependencies.steps_ahead.astype(int) * 2 * KERNELS
        # The call after the one that launches 1022 later.
        assert set(back.tolist()) == {QUEUE + 1}
        assert set(dependencies.steps_ahead.tolist()) == {0, 1}

    @pytest.mark.parametrize(
        ("name", "length"),
        [("Command Buffer Full", 2), ("Activity Buffer Request", 30)],
    )
    def test_held_by_work_from_before_the_recording(self, name: str, length: int) -> None:
        """No operation 1022 ahead was recorded, but CUPTI shows that the call of 30 waited 27."""
        builder = TraceBuilder()
        for step in range(3):
            t = 100 * step
            builder.step(step, t, 100)
            builder.kernel("first", t + 16, 20, launch=t + 10)
            held = builder.call("cudaLaunchKernel", t + 50, 30 if step == 1 else 2)
            builder.gpu("kernel", "second", t + 85, 10, correlation=held)
        builder.event("overhead", name, 151, 27, pid=-1, tid=0)
        assert us(model_of(builder).calls.call_ns) == [2, length, 2, 2]

    def test_what_is_left_of_calls_that_all_waited(self) -> None:
        """No call of that name shows its length: 30 less the 27 that it waited."""
        builder = TraceBuilder()
        for step in range(3):
            t = 100 * step
            builder.step(step, t, 100)
            held = builder.call("cudaLaunchKernel", t + 50, 30)
            builder.gpu("kernel", "only", t + 85, 10, correlation=held)
            builder.event("overhead", "Command Buffer Full", t + 51, 27, pid=-1, tid=0)
        assert us(model_of(builder).calls.call_ns) == [3, 3]

    def test_steps(self, queued: Model) -> None:
        assert us(queued.measured_step_ns) == [7000]
        assert step_us(queued) == 7000
        # Two steps are 14000 on the GPU and, launched every 2, 2800 on the host.
        work = np.zeros_like(queued.calls.work_ns)
        # The lead, 1022 kernels of 10, covers a pause of the host of 8000 ...
        work[0] = 8_000_000
        assert step_us(queued.with_calls(work_ns=work)) == 7000
        # ... of one of 13000 it covers 10220: the GPU stands still for the rest. (The host
        # alone would need 15800 for two steps.)
        work[0] = 13_000_000
        found = step_us(queued.with_calls(work_ns=work))
        assert found == pytest.approx((14_000 + 13_000 - 10 * QUEUE) / 2, rel=0.01)


class TestUnavailable:
    def test_without_steps(self) -> None:
        builder = TraceBuilder().kernel("gemm", 0, 100, launch=-90)
        assert build(build_trace(builder)) is NO_STEPS

    def test_with_one_step(self) -> None:
        assert build(build_trace(launch_bound(1))) is NO_STEPS

    def test_without_launches(self) -> None:
        builder = TraceBuilder().step(0, 0, 50).step(1, 50, 50)
        builder.kernel("gemm", 0, 40).kernel("gemm", 50, 40)
        assert build(build_trace(builder)) is NO_LAUNCHES

    def test_without_anything(self) -> None:
        assert build(build_trace(TraceBuilder())) is NO_LAUNCHES


RECORDINGS = ["data_stall", "healthy", "host_sync", "launch_bound", "pageable_copy", "straggler"]


@pytest.fixture(scope="module")
def models(recordings: Path) -> dict[str, Model]:
    return {name: built(read(str(recordings / name))) for name in RECORDINGS}


@pytest.mark.parametrize("name", RECORDINGS)
class TestRecordings:
    def test_unchanged_it_takes_the_recorded_time(
        self, models: dict[str, Model], name: str
    ) -> None:
        model = models[name]
        times = executed(model)
        last = [times.end_ns[model.operations.gpu == gpu].max() for gpu in (0, 1)]
        replayed = (np.array(last) - model.begin_ns) / model.num_steps
        assert replayed == pytest.approx(model.measured_step_ns, rel=0.001)
        found = steady(model)
        assert not isinstance(found, Unavailable)
        assert found.step_ns == pytest.approx(model.measured_step_ns, rel=0.02)

    def test_begins_are_the_recorded_ones(self, models: dict[str, Model], name: str) -> None:
        model = models[name]
        times = executed(model)
        # Apart from collectives whose members' clocks disagree, and what follows on them.
        exact = times.begin_ns == model.operations.place
        assert exact.mean() > 0.97
        assert np.abs(times.begin_ns - model.operations.place).max() < 20_000
        assert (times.start_ns == model.calls.place).mean() > 0.97

    def test_hardly_anything_is_unexplained(self, models: dict[str, Model], name: str) -> None:
        model = models[name]
        assert (model.unexplained_ns < 0.05 * model.measured_step_ns).all()

    def test_unexplained_is_that_of_the_critical_path(
        self, models: dict[str, Model], name: str
    ) -> None:
        trace = models[name].trace
        path = critical_path(trace)
        assert isinstance(path, Table)
        for place, gpu in enumerate(trace.gpus):
            mine = (path["source"] == gpu.source) & (path["device"] == gpu.device)
            last = mine & (path["step_row"] == path["step_row"][mine].max())
            lost = path["length_ns"][last & (path["path_class"] == PathClass.UNEXPLAINED)].sum()
            assert models[name].unexplained_ns[place] == pytest.approx(lost, abs=2_000)

    def test_it_is_not_the_recording_that_is_read_back(
        self, models: dict[str, Model], name: str
    ) -> None:
        model = models[name]
        before, after = steady(model), steady(_slower(model))
        assert not isinstance(before, Unavailable)
        assert not isinstance(after, Unavailable)
        assert after.slowest_ns > 1.3 * before.slowest_ns


def _slower(model: Model) -> Model:
    """Everything takes twice as long: operations, calls, and the work between them."""
    slower = model.with_operations(duration_ns=2 * model.operations.duration_ns)
    calls = model.calls
    return slower.with_calls(work_ns=2 * calls.work_ns, call_ns=2 * calls.call_ns)
