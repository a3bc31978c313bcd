from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from diagnose.agent import main_thread


def from_another_thread(call: Callable[[], Any], meanwhile: Callable[[], object]) -> Any:
    """Run ``call`` on a thread while the main thread, this one, does something else."""
    answer: list[Any] = []
    thread = threading.Thread(target=lambda: answer.append(call()))
    thread.start()
    end = time.monotonic() + 20
    while thread.is_alive() and time.monotonic() < end:
        meanwhile()
    thread.join(10)
    return answer[0]


def spin() -> None:
    sum(range(50))


def walker(inside: Callable[[], object]) -> object:
    return inside()


def test_a_main_thread_in_python_answers() -> None:
    assert from_another_thread(lambda: main_thread.answers(5), spin) is True
    assert main_thread.answers(5) is True
    assert from_another_thread(lambda: [main_thread.answers(5) for _ in range(50)], spin) == (
        [True] * 50
    )


def test_a_main_thread_in_native_code_does_not_answer() -> None:
    def call() -> tuple[bool, float]:
        time.sleep(0.2)  # until the main thread waits
        began = time.monotonic()
        return main_thread.answers(0.2), time.monotonic() - began

    # Waiting for a lock is native code to which no pending call gets through.
    blocked = threading.Event()
    answer, took_s = from_another_thread(call, lambda: blocked.wait(2.0))
    assert answer is False
    assert 0.2 <= took_s < 1.5
    for _ in range(1000):
        spin()  # the late call comes now, and harms nobody


def test_no_edit_while_a_thread_is_inside() -> None:
    entered, leave = threading.Event(), threading.Event()

    def inside() -> None:
        entered.set()
        leave.wait(10)

    thread = threading.Thread(target=walker, args=(inside,))
    thread.start()
    entered.wait(10)
    edits: list[int] = []
    try:
        assert not main_thread.edit_when_quiet(lambda: edits.append(1), walker.__code__)
        assert edits == []
        assert main_thread.edit_when_quiet(lambda: edits.append(2), spin.__code__)
    finally:
        leave.set()
        thread.join(10)
    assert main_thread.edit_when_quiet(lambda: edits.append(3), walker.__code__)
    assert edits == [2, 3]


def test_no_edit_from_inside() -> None:
    assert walker(lambda: main_thread.edit_when_quiet(lambda: None, walker.__code__)) is False


def test_no_edit_from_inside_of_compiled_code() -> None:
    compiled = walker.__code__.replace(co_name="torch_dynamo_resume_in_walker_at_534")
    resumed = FunctionType(compiled, globals())
    assert resumed(lambda: main_thread.edit_when_quiet(lambda: None, walker.__code__)) is False


def test_edit_gives_up() -> None:
    began = time.monotonic()
    assert not walker(lambda: main_thread.edit_hooks(lambda: None, walker.__code__, 0.1))
    assert 0.1 <= time.monotonic() - began < 2


def test_a_dict_that_others_walk_all_the_time_can_be_edited() -> None:
    hooks: OrderedDict[int, int] = OrderedDict((n, n) for n in range(50))
    stop = threading.Event()
    failures: list[BaseException] = []

    def walk() -> None:
        for _ in hooks.values():
            spin()

    def train() -> None:
        while not stop.is_set():
            try:
                walk()
                for _ in range(100):
                    spin()
            except RuntimeError as error:  # mutated during iteration: what must not happen
                failures.append(error)
                return

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()

    def edits() -> int:
        done = 0
        for number in range(100, 115):
            done += main_thread.edit_hooks(
                lambda number=number: hooks.__setitem__(number, 0), walk.__code__, 5
            )
            done += main_thread.edit_hooks(
                lambda number=number: hooks.pop(number), walk.__code__, 5
            )
        return done

    try:
        done = from_another_thread(edits, spin)
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)
    assert failures == []
    assert done == 30


def test_edit_happens_though_the_main_thread_waits_for_ever() -> None:
    edits: list[int] = []
    blocked = threading.Event()
    call = lambda: main_thread.edit_hooks(lambda: edits.append(1), walker.__code__, 5)  # noqa: E731
    assert from_another_thread(call, lambda: blocked.wait(0.2)) is True
    assert edits == [1]


def test_the_interpreter_is_left_as_it_was() -> None:
    interval = sys.getswitchinterval()
    assert gc.isenabled()
    main_thread.edit_when_quiet(lambda: None, walker.__code__)
    assert gc.isenabled()
    assert sys.getswitchinterval() == interval
    gc.disable()
    try:
        main_thread.edit_when_quiet(lambda: None, walker.__code__)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_the_job_changes_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is handed over once on the way: the job may use just that moment."""
    interval = sys.getswitchinterval()

    def job(_seconds: float) -> None:
        gc.disable()
        sys.setswitchinterval(0.02)

    monkeypatch.setattr(main_thread.time, "sleep", job)
    try:
        assert main_thread.edit_when_quiet(lambda: None, walker.__code__)
        assert not gc.isenabled()
        assert sys.getswitchinterval() == 0.02
    finally:
        gc.enable()
        sys.setswitchinterval(interval)


def test_signals_are_left_to_the_job() -> None:
    """One that the job has blocked, to wait for it, is not delivered to a thread of ours."""
    masks: list[set[signal.Signals | int]] = []

    def own() -> None:
        main_thread.leave_signals_to_the_job()
        masks.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, ())))

    thread = threading.Thread(target=own)
    thread.start()
    thread.join()
    assert {signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGALRM} <= masks[0]
    assert not {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE} & masks[0]
