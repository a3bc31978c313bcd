"""A recording as pages see it: each analysis once, from several threads as from one."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dashboard.shown import Shown
from diagnose import engine
from diagnose.analysis import Unavailable
from diagnose.errors import UnavailableError
from diagnose.recording import load


def test_an_analysis_runs_once(known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown("k", "k", load([str(known)]).trace)
    ran = []
    run = engine.diagnose
    monkeypatch.setattr(engine, "diagnose", lambda *a, **k: ran.append(a) or run(*a, **k))
    threads = [threading.Thread(target=shown.table, args=("breakdown",)) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert shown.table("breakdown") is shown.table("breakdown")
    assert len(ran) == 1
    shown.table("overlap", by="rank")
    shown.table("overlap", by="step")
    assert len(ran) == 3


def test_what_a_trace_does_not_hold_has_a_reason(known_shown: Shown) -> None:
    found = known_shown.table("power_summary")
    assert isinstance(found, Unavailable)
    assert found.because


def test_the_unit_is_that_of_the_longest_window(known_shown: Shown) -> None:
    assert (known_shown.unit.name, known_shown.unit.nanoseconds) == ("us", 1_000)
    assert known_shown.labels == {(0, 0): "rank 0"}


def test_no_operation_has_no_timeline(cases: Path) -> None:
    file = cases / "parse-no-gpu-work" / "no-events.json"
    shown = Shown("e", "empty", load([str(file)]).trace)
    with pytest.raises(UnavailableError, match="empty: no operation"):
        _ = shown.timeline


def test_the_document_is_that_of_the_report(known_shown: Shown) -> None:
    assert known_shown.document.about[1] == "1 file | rank 0 of 1 | 2 steps | window 800.0 us"
    assert known_shown.document.verdict == known_shown.diagnosis.quality.verdict
