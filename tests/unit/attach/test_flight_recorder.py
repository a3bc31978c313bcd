"""When windows are due, what is kept of them, and the files that are always written."""

from __future__ import annotations

import csv
import errno
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from diagnose.attach.launching.flight_recorder import StepLog, StepRow, TelemetryLog
from diagnose.attach.launching.retention import Limits, Windows, parse_size, size_of
from diagnose.attach.launching.triggers import AfterSteps, Due, Interval, OnSlow, Schedule
from diagnose.errors import UsageError
from diagnose.telemetry.replay import ReplaySource

MS = 1_000_000


def steps(first: int, durations_ms: Iterable[float]) -> list[Interval]:
    return [Interval(first + n, round(ms * MS)) for n, ms in enumerate(durations_ms)]


# Steps of 100 ms; 2 s to prepare are 20 steps, and 1 more so that none is counted twice;
# 2 s more, for polls every second of which one may be late, are another 20.
@pytest.mark.parametrize(
    ("last_step", "at_step"),
    [(459, 500), (458, None), (479, 500), (480, None), (970, 1000)],
)
def test_a_multiple_is_asked_for_while_it_can_be_prepared(
    last_step: int, at_step: int | None
) -> None:
    due = Schedule(every=500).observe(steps(last_step - 9, [100] * 10))
    assert (due and due.at_step) == at_step


def test_each_multiple_is_asked_for_once() -> None:
    schedule = Schedule(every=100)
    asked = []
    for first in range(1, 400, 10):
        due = schedule.observe(steps(first, [100] * 10))
        if due is not None:
            asked.append(due.at_step)
    assert asked == [100, 200, 300, 400]


def test_hosts_that_poll_at_other_moments_ask_for_the_same_steps() -> None:
    asked: list[list[int | None]] = []
    for phase in range(1, 11):
        schedule = Schedule(every=70)
        mine = [
            due.at_step
            for first in range(phase, 700, 10)
            if (due := schedule.observe(steps(first, [100] * 10))) is not None
        ]
        asked.append(mine)
    assert asked[0][:5] == [70, 140, 210, 280, 350]
    assert all(mine[:5] == asked[0][:5] for mine in asked)


def test_a_step_that_was_missed_is_made_up_for_and_said() -> None:
    due = Schedule(at=[10]).observe(steps(1, [100] * 20))
    assert due == Due(None, "step 10 comes too soon to be prepared at step 20")


def test_several_steps_are_asked_for_in_turn() -> None:
    schedule = Schedule(at=[200, 100])
    assert schedule.observe(steps(1, [100] * 70)) == Due(100, "step 100")
    assert schedule.observe(steps(71, [100] * 10)) is None
    assert schedule.observe(steps(81, [100] * 90)) == Due(200, "step 200")
    assert schedule.observe(steps(171, [100] * 100)) is None


def test_nothing_is_due_before_a_step_was_seen() -> None:
    assert Schedule(every=1, at=[1]).observe([]) is None


def test_a_window_after_warming_up_is_asked_for_once() -> None:
    trigger = AfterSteps(30)
    assert trigger.observe(steps(1, [100] * 29)) is None
    assert trigger.observe([]) is None
    assert trigger.observe(steps(30, [100])) == Due(None, "30 steps of warming up are over")
    assert trigger.observe(steps(31, [100] * 100)) is None


def slow_windows(trigger: OnSlow, durations_ms: Sequence[float]) -> list[int]:
    """At which steps windows are due, fed one step at a time."""
    return [i.step for i in steps(1, durations_ms) if trigger.observe([i]) is not None]


def test_a_job_that_becomes_slow_is_recorded_once_three_of_five_steps_are() -> None:
    # The third slow step makes the median of five slow: step 103.
    assert slow_windows(OnSlow(20), [10] * 100 + [13] * 50) == [103]


def test_the_reason_has_the_figures() -> None:
    trigger = OnSlow(20)
    trigger.observe(steps(1, [10] * 100))
    due = trigger.observe(steps(101, [13] * 3))
    assert due == Due(None, "steps take 13.0 ms, 30 % more than the usual 10.0 ms")


@pytest.mark.parametrize(
    "durations",
    [
        pytest.param([10] * 100 + [500] + [10] * 50, id="a checkpoint"),
        pytest.param([10] * 100 + [500, 500] + [10] * 50, id="evaluation and a checkpoint"),
        pytest.param(([10] * 24 + [400]) * 10, id="a checkpoint every 25 steps"),
        pytest.param([10] * 100 + [11.9] * 50, id="slower, but by less"),
        pytest.param([3000, 900] + [40] * 18 + [10] * 100, id="compilation"),
        pytest.param([10] * 20 + [13] * 3, id="nothing to compare with"),
    ],
)
def test_what_is_no_slow_down(durations: list[float]) -> None:
    assert slow_windows(OnSlow(20), durations) == []


def test_a_job_that_stays_slow_is_not_recorded_again_and_again() -> None:
    assert slow_windows(OnSlow(20), [10] * 100 + [13] * 1000) == [103]


def test_the_new_level_is_the_usual_one_after_a_while() -> None:
    # Slow at 103; after 200 steps 13 ms is usual, so 13 does not count, but 16 does.
    durations = [10] * 100 + [13] * 400 + [16] * 50
    assert slow_windows(OnSlow(20), durations) == [103, 503]


def test_a_second_slow_down_after_recovery_is_recorded_after_the_cool_down() -> None:
    early = [10] * 100 + [13] * 20 + [10] * 30 + [13] * 200
    # The second one begins at 151, within 200 steps after 103, and lasts: due at 303.
    assert slow_windows(OnSlow(20), early) == [103, 303]


def test_our_own_window_does_not_count() -> None:
    trigger = OnSlow(20)
    trigger.observe(steps(1, [10] * 100))
    trigger.recorded(101, 110)
    assert trigger.observe(steps(101, [30] * 10)) is None
    assert trigger.observe(steps(111, [30] + [10] * 30)) is None


def test_a_restarted_job_is_learned_anew() -> None:
    trigger = OnSlow(20)
    trigger.observe(steps(1, [10] * 100))
    assert trigger.observe(steps(1, [30] * 19)) is None
    assert trigger.observe(steps(20, [13] * 40)) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1000", 1000),
        ("2GB", 2_000_000_000),
        ("2GiB", 2_147_483_648),
        ("1.5 kb", 1500),
        ("500M", 500_000_000),
        ("64MiB", 67_108_864),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "2XB", "1e9", "i", "1i"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is no size"):
        parse_size(text)


def make(window: Path, size: int) -> Path:
    window.mkdir()
    (window / "rank00000.trace.json.gz").write_bytes(b"x" * size)
    return window


def test_the_oldest_windows_go_when_there_are_too_many(tmp_path: Path) -> None:
    windows = Windows(tmp_path, Limits(keep=2))
    made = []
    for step in (100, 200, None):
        made.append(make(windows.next(step), 10))
        windows.keep(made[-1])
    assert [path.name for path in made] == [
        "window00001-step00000100",
        "window00002-step00000200",
        "window00003",
    ]
    assert windows.kept == made[1:]
    assert sorted(tmp_path.iterdir()) == made[1:]


def test_the_oldest_windows_go_when_the_folder_is_too_large_but_never_the_newest(
    tmp_path: Path,
) -> None:
    (tmp_path / "steps.csv").write_bytes(b"x" * 100)
    windows = Windows(tmp_path, Limits(keep=10, max_bytes=1000))
    first, second = (make(windows.next(None), 450) for _ in range(2))
    assert windows.keep(first) == []
    assert windows.keep(second) == []  # 1000 bytes: not more than that
    third = make(windows.next(None), 5000)
    assert windows.keep(third) == [first, second]
    assert windows.kept == [third]
    assert size_of(tmp_path) == 5100


def test_what_a_run_did_not_make_is_never_removed(tmp_path: Path) -> None:
    other = make(tmp_path / "window00000", 10)
    windows = Windows(tmp_path, Limits(keep=1))
    windows.keep(make(windows.next(None), 10))
    windows.keep(make(windows.next(None), 10))
    assert other.exists()


def test_a_full_disk_is_noticed_before_a_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = Windows(tmp_path, Limits())
    assert windows.refusal() is None
    monkeypatch.setattr("diagnose.attach.launching.retention.SPARE_BYTES", 1 << 62)
    assert "MB are free" in str(windows.refusal())
    assert "cannot be used" in str(Windows(tmp_path / "missing", Limits()).refusal())


def read_rows(path: Path) -> list[list[str]]:
    with open(path) as file:
        return list(csv.reader(file))


def test_step_times_are_written(tmp_path: Path) -> None:
    log = StepLog(tmp_path)
    log.write([StepRow(1000, 0, 5, None), StepRow(1250, 0, 6, 250)])
    log.write([])
    log.close()
    assert read_rows(tmp_path / "steps.csv") == [
        ["unix_ns", "rank", "step", "interval_ns"],
        ["1000", "0", "5", ""],
        ["1250", "0", "6", "250"],
    ]


def test_step_times_stay_within_their_bound_and_the_latest_are_kept(tmp_path: Path) -> None:
    log = StepLog(tmp_path, max_bytes=2000)
    for step in range(1, 1001):
        log.write([StepRow(step * 100, 0, step, 100)])
    log.close()
    assert size_of(tmp_path) <= 2000
    kept = [
        int(row[2])
        for name in ("steps.previous.csv", "steps.csv")
        for row in read_rows(tmp_path / name)[1:]
    ]
    assert kept == list(range(kept[0], 1001))
    assert len(kept) > 40  # at least half of the bound, at 20 bytes a row at most


class FullDisk:
    def tell(self) -> int:
        return 0

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None: ...


def test_a_full_disk_is_said_once_and_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, said = [0.0], []
    log = StepLog(tmp_path, say=said.append, clock=lambda: now[0])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda *_, **__: FullDisk())
        log.write([StepRow(1, 0, 1, None)])
        now[0] = 61
        log.write([StepRow(2, 0, 2, None)])
    log.write([StepRow(3, 0, 3, None)])  # too early
    now[0] = 200
    log.write([StepRow(4, 0, 4, None)])
    log.close()
    assert [row[2] for row in read_rows(tmp_path / "steps.csv")[1:]] == ["4"]
    assert len(said) == 1
    assert "No space left on device" in said[0]


def test_telemetry_is_kept_in_segments(tmp_path: Path) -> None:
    played = tmp_path / "gpu.telemetry.csv"
    played.write_text("unix_ns,power_avg_w\n" + "".join(f"{n},100\n" for n in range(1, 100)))
    source = ReplaySource([played], speed=None)
    now = [0.0]
    log = TelemetryLog(
        tmp_path, source, [0], interval_s=60, segment_s=600, keep=2, clock=lambda: now[0]
    )
    for now[0] in (0, 300, 900, 1800, 3000):  # all but the second begin a segment
        log.turn()
    log.close()
    assert [path.name for path in sorted((tmp_path / "telemetry").iterdir())] == [
        "gpu00.000003.telemetry.csv",
        "gpu00.000004.telemetry.csv",
    ]
    for path in (tmp_path / "telemetry").iterdir():
        rows = read_rows(path)
        assert len(rows) == 3  # the header, the reading at its start and that at its end
        assert rows[1][rows[0].index("power_avg_w")] == "100"
