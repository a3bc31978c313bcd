"""Whether a trace can be believed: each note with its count."""

from __future__ import annotations

import pytest

from diagnose.schema import Detail
from diagnose.trace import Note
from tests.builder import TraceBuilder, build_trace


def notes(builder: TraceBuilder, detail: Detail = Detail.ALL) -> dict[str, Note]:
    found = build_trace(builder, detail=detail).notes
    assert len({note.code for note in found}) == len(found)
    return {note.code: note for note in found}


def sound() -> TraceBuilder:
    """Three even steps with everything in place."""
    builder = TraceBuilder(rank=0)
    for number in range(3):
        builder.step(number, 100 * number, 100)
        builder.kernel("gemm", 100 * number + 50, 10, launch=100 * number + 20)
    return builder


def test_a_sound_trace_has_no_notes() -> None:
    assert notes(sound()) == {}
    assert notes(sound(), Detail.GPU) == {}


def test_no_gpu_work() -> None:
    builder = TraceBuilder(rank=0).step(0, 0, 10)
    builder.operator("gloo:all_reduce", 2, 3)
    assert list(notes(builder)) == ["no-gpu-events"]


def test_launched_before_the_window() -> None:
    builder = TraceBuilder(rank=0)
    for start in (0, 5, 400):
        builder.kernel("old", start, 3)  # correlation ids below those of all calls
    for number in range(3):
        builder.step(number, 100 * number, 100)
        builder.kernel("gemm", 100 * number + 50, 10, launch=100 * number + 20)
    (note,) = notes(builder).values()
    assert (note.code, note.count, note.severity) == ("launched-before-window", 3, "info")
    assert "3 of 6" in note.sentence


def test_a_launch_that_is_missing_within_the_window() -> None:
    builder = sound().kernel("lost its launch", 260, 5)
    (note,) = notes(builder).values()
    assert (note.code, note.count, note.severity) == ("launch-missing", 1, "warning")
    assert "1 of 4" in note.sentence


def test_no_launches_at_all() -> None:
    builder = TraceBuilder(rank=0).kernel("a", 0, 10).kernel("b", 20, 10)
    for number in range(3):
        builder.step(number, 100 * number, 100)
    (note,) = notes(builder).values()
    assert (note.code, note.count, note.severity) == ("no-launches", 2, "warning")
    assert notes(builder, Detail.GPU) == {}


def test_launches_without_kernels_and_where_they_lie() -> None:
    builder = sound()
    for at in (1, 2, 130, 230, 240, 250):
        builder.call("cudaLaunchKernel", at)
    builder.call("cudaEventRecord", 135)
    (note,) = notes(builder).values()
    assert (note.code, note.count, note.severity) == ("kernel-missing", 6, "warning")
    assert "2 before the first" in note.sentence
    assert "3 after the last" in note.sentence
    assert "1 in between" in note.sentence


def test_launches_still_queued_at_the_end_are_no_damage() -> None:
    builder = sound()
    builder.call("cudaMemcpyAsync", 299)
    (note,) = notes(builder).values()
    assert (note.code, note.count, note.severity) == ("kernel-missing", 1, "info")


@pytest.mark.parametrize(("ahead", "severity"), [(0.5, "info"), (10, "info"), (10.001, "warning")])
def test_kernels_before_their_launch(ahead: float, severity: str) -> None:
    builder = (
        sound().kernel("early", 270, 5, launch=270 + ahead).kernel("on time", 280, 5, launch=280)
    )
    (note,) = notes(builder).values()
    assert (note.code, note.count, note.severity) == ("kernel-before-launch", 1, severity)
    assert f"{ahead:.3f} us" in note.sentence


def test_no_step_marks() -> None:
    (note,) = notes(TraceBuilder(rank=0).kernel("gemm", 50, 10, launch=20)).values()
    assert (note.code, note.severity) == ("no-steps", "info")


def test_fewer_than_three_steps() -> None:
    builder = TraceBuilder(rank=0).step(0, 0, 100).step(1, 100, 100)
    builder.kernel("gemm", 50, 10, launch=20)
    (note,) = notes(builder).values()
    assert (note.code, note.count) == ("few-steps", 2)


def test_a_first_step_over_twice_the_median_is_a_warm_up() -> None:
    def three(first: float) -> TraceBuilder:
        builder = TraceBuilder(rank=0).step(0, 0, first)
        builder.step(1, 1000, 100).step(2, 1100, 120).step(3, 1220, 140)
        return builder.kernel("gemm", 50, 10, launch=20)

    assert notes(three(240)) == {}
    (note,) = notes(three(240.001)).values()
    assert (note.code, note.severity) == ("warm-up-step", "warning")
    assert "0.120 ms" in note.sentence


def test_the_profilers_own_work() -> None:
    builder = sound()
    for at in (10, 120, 220):
        builder.operator("Command Buffer Full", at, 4, category="overhead")
    builder.operator("Activity Buffer Request", 230, 3, category="overhead")
    (note,) = notes(builder).values()
    assert (note.code, note.count, note.severity) == ("profiler-overhead", 4, "info")
    assert "0.015 ms, 5.0 % of the marked time" in note.sentence
    assert "3x Command Buffer Full, 1x Activity Buffer Request" in note.sentence
    builder.operator("Activity Buffer Request", 240, 0.001, category="overhead")
    assert notes(builder)["profiler-overhead"].severity == "warning"


def test_at_gpu_detail_launches_are_not_judged() -> None:
    builder = sound().kernel("old", 262, 5)
    builder.call("cudaLaunchKernel", 130)
    assert set(notes(builder)) == {"launch-missing", "kernel-missing"}
    assert notes(builder, Detail.GPU) == {}


def test_a_pause_between_groups_of_steps() -> None:
    builder = sound()
    for number in (100, 101):
        builder.step(number, 1000 + 100 * (number - 100), 100)
        builder.kernel("gemm", 1050 + 100 * (number - 100), 10, launch=1020 + 100 * (number - 100))
    (note,) = notes(builder).values()
    # Window 50 to 1160; marks end at 300 and resume at 1000.
    assert (note.code, note.severity, note.count) == ("recording-paused", "warning", 1)
    assert "0.700 ms" in note.sentence
    assert "1.110 ms" in note.sentence
    builder.kernel("evaluation", 400, 200, launch=390)  # 500 of 1110 remain: less than half
    assert notes(builder) == {}


def test_an_idle_gpu_within_a_step_is_no_pause() -> None:
    builder = TraceBuilder(rank=0).step(0, 0, 100).step(1, 100, 900).step(2, 1000, 100)
    for at in (50, 1050):
        builder.kernel("gemm", at, 10, launch=at - 20)
    assert notes(builder) == {}


@pytest.mark.parametrize("name", ["", "(no name)", None])
def test_kernels_without_a_name_are_in_doubt(name: str | None) -> None:
    builder = sound().kernel("named", 270, 5, launch=265)
    builder.events[-1]["name"] = name
    (note,) = notes(builder).values()
    assert (note.code, note.count, note.severity) == ("kernel-unnamed", 1, "warning")
    assert "1 of 4" in note.sentence
    assert build_trace(builder).gpu_ops["certain"].tolist() == [True, True, True, False]


def test_an_id_of_several_launches_names_none_of_them() -> None:
    builder = sound()
    builder.kernel("a", 270, 5, launch=262, correlation=77)
    builder.kernel("b", 280, 5, launch=265, correlation=77)
    (note,) = notes(builder).values()
    assert (note.code, note.count, note.severity) == ("launch-ambiguous", 2, "warning")
    assert "2 of 5" in note.sentence
    assert build_trace(builder).gpu_ops["step_row"].tolist() == [0, 1, 2, -1, -1]


def test_a_driver_call_within_the_launch_is_the_same_launch() -> None:
    builder = sound()
    correlation = builder.call("cudaLaunchKernel", 262, 4)
    builder.call("cuLaunchKernel", 263, 2, correlation=correlation)
    builder.kernel("a", 270, 5, correlation=correlation)
    assert notes(builder) == {}
    assert build_trace(builder).gpu_ops["step_row"].tolist() == [0, 1, 2, 2]
