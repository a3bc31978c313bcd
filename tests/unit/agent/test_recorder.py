"""What a recorder leaves when the interpreter ends, without torch and without its thread."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from diagnose.agent import recorder as module
from diagnose.agent.hooks import OptimizerHook
from diagnose.agent.profiler import Output
from diagnose.agent.recorder import Recorder
from diagnose.agent.steps import StepClock


@pytest.fixture
def recorder() -> Recorder:
    clock = StepClock()
    return Recorder(clock, OptimizerHook(clock), lambda: None)


def test_an_exit_with_nothing_recorded_takes_no_time(recorder: Recorder) -> None:
    began = time.monotonic()
    recorder.at_exit()
    assert time.monotonic() - began < 0.5


def test_an_exit_removes_what_the_stopped_thread_would_have_removed(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_EXIT_S", 0.01)
    recorder._output = Output(str(tmp_path / "trace.json"))
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json.part"]
    recorder.at_exit()
    assert list(tmp_path.iterdir()) == []


def test_an_exit_lets_a_recorded_trace_be_written(recorder: Recorder, tmp_path: Path) -> None:
    output = recorder._output = Output(str(tmp_path / "trace.json"))

    def write() -> None:
        time.sleep(0.1)
        Path(output.unfinished).write_text("{}")
        output.finish()

    thread = threading.Thread(target=write)
    thread.start()
    recorder.at_exit()
    thread.join()
    assert (tmp_path / "trace.json").read_text() == "{}"
