"""Record now: only where it was allowed, one at a time, and the result is opened."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dashboard import library as library_module
from dashboard.app import create_app
from dashboard.library import Library
from dashboard.live import MOST_STEPS, Attempt, Recorder
from dashboard.security import Guard
from diagnose.errors import UsageError
from tests.dashboard.conftest import PORT, TOKEN, Asked, write_known

RECORDS = """
import pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
print("options:", " ".join(sys.argv[1:3]), sys.argv[3])
folder.mkdir()
(folder / "rank0.json").write_text('{"traceEvents": []}')
(folder / "recording.json").write_text("{}")
print("\\x1b[31mrecorded\\x1b[0m <b>it</b>")
"""
FAILS = 'import sys; print("error: no training process was found"); sys.exit(2)'
WAITS = 'print("waiting", flush=True); import time; time.sleep(60)'


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "_SCAN_S", -1.0)


def recorder(folder: Path, script: str) -> Recorder:
    return Recorder(folder, [sys.executable, "-c", script])


def until(ready: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + 60
    while not (answer := ready()):
        assert time.monotonic() < end, what
        time.sleep(0.02)
    return answer


def ended(attempt: Attempt) -> Attempt:
    until(lambda: attempt.status is not None, "the command to end")
    until(lambda: attempt.lines, "what it said")
    return attempt


def test_it_runs_the_command_into_a_new_folder(tmp_path: Path) -> None:
    attempt = ended(recorder(tmp_path, RECORDS).start(5))
    assert attempt.lines[0] == "options: --steps 5 --no-report"
    assert attempt.recorded
    assert attempt.folder.parent == tmp_path
    assert attempt.folder.name.startswith("recording-")


def test_a_second_one_of_the_same_second_has_a_folder_of_its_own(tmp_path: Path) -> None:
    given = recorder(tmp_path, RECORDS)
    assert ended(given.start(1)).folder != ended(given.start(1)).folder


@pytest.mark.parametrize("steps", [0, -1, MOST_STEPS + 1])
def test_steps_have_limits(tmp_path: Path, steps: int) -> None:
    given = recorder(tmp_path, RECORDS)
    with pytest.raises(UsageError, match="cannot be recorded"):
        given.start(steps)
    assert given.attempt is None


def test_only_one_at_a_time_and_it_ends_with_the_server(tmp_path: Path) -> None:
    given = recorder(tmp_path, WAITS)
    attempt = given.start(1)
    until(lambda: attempt.lines, "the command to begin")
    with pytest.raises(UsageError, match="on its way"):
        given.start(1)
    given.close()
    assert attempt.status == -15
    with pytest.raises(ProcessLookupError):
        os.kill(attempt.process.pid, 0)
    given.close()


def test_a_command_that_fails_recorded_nothing(tmp_path: Path) -> None:
    attempt = ended(recorder(tmp_path, FAILS).start(1))
    assert (attempt.status, attempt.recorded) == (2, False)
    assert list(attempt.lines) == ["error: no training process was found"]


def allowed(folder: Path, script: str) -> tuple[Asked, Recorder]:
    write_known(folder / "before")
    given = recorder(folder, script)
    app = create_app(Library([str(folder)]), Guard(token=TOKEN, port=PORT), recorder=given)
    return Asked(app), given


def start(asked: Asked, steps: Any, clicks: int = 1) -> Any:
    values = {
        "record-start.n_clicks": clicks,
        "record-steps.value": steps,
        "address.pathname": "/",
        "address.search": "?theme=dark",
    }
    return asked.callback("record-said.children", values, "record-start.n_clicks")


def follow(asked: Asked) -> dict[str, Any]:
    values = {
        "record-watch.n_intervals": 1,
        "record-watch.disabled": False,
        "address.pathname": "/",
        "address.search": "?theme=dark",
    }
    answer = asked.callback("record-said.children", values, "record-watch.n_intervals")
    found: dict[str, Any] = answer.get_json()["response"]
    return found


def test_the_button_records_and_opens_the_result(tmp_path: Path) -> None:
    asked, given = allowed(tmp_path, RECORDS)
    answer = start(asked, 3)
    assert answer.get_json()["response"]["record-watch"] == {"disabled": False}
    assert given.attempt is not None
    ended(given.attempt)
    found = until(lambda: (one := follow(asked)).get("address") and one, "the result")
    name = given.attempt.folder.name
    assert found["address"]["href"] == f"/?recording={tmp_path.name}-{name}&theme=dark"
    assert found["record-watch"] == {"disabled": True}
    # What the command said, as text, without what colours a terminal.
    shown = str(found["record-said"])
    assert "<b>it</b>" in shown
    assert "\x1b" not in shown


def test_the_dialog_says_why_nothing_was_recorded(tmp_path: Path) -> None:
    asked, given = allowed(tmp_path, FAILS)
    start(asked, 3)
    assert given.attempt is not None
    ended(given.attempt)
    found = follow(asked)
    assert "no training process was found" in str(found["record-said"])
    assert "address" not in found
    assert found["record-start"] == {"disabled": False}


@pytest.mark.parametrize("steps", [None, "", "3; rm -rf /", 0, 10_000, True, [1]])
def test_only_a_number_of_steps_starts_it(tmp_path: Path, steps: Any) -> None:
    asked, given = allowed(tmp_path, WAITS)
    answer = start(asked, steps)
    try:
        assert "cannot be recorded" in str(answer.get_json())
        assert given.attempt is None
    finally:
        given.close()


def test_a_button_that_appears_starts_nothing(tmp_path: Path) -> None:
    asked, given = allowed(tmp_path, RECORDS)
    start(asked, 3, clicks=0)
    assert given.attempt is None


def test_without_the_flag_there_is_no_button_and_no_callback(asked: Asked, tmp_path: Path) -> None:
    assert "record-start" not in asked.get("/_dash-layout").text
    assert "record" not in asked.get("/_dash-dependencies").text.replace("recording", "")
    other, given = allowed(tmp_path, RECORDS)
    # The very request that another server answers, posted by hand.
    [found] = [o for o in other.app._callback_list if "record-said.children" in o["output"]]
    answer = asked.client.post(
        "/_dash-update-component",
        json={
            "output": found["output"],
            "outputs": [{"id": "record-said", "property": "children"}],
            "inputs": [{"id": "record-start", "property": "n_clicks", "value": 1}],
            "state": [{"id": "record-steps", "property": "value", "value": 3}],
            "changedPropIds": ["record-start.n_clicks"],
        },
        base_url=f"http://127.0.0.1:{PORT}",
    )
    assert answer.status_code == 400
    assert given.attempt is None


def test_another_site_cannot_start_it(tmp_path: Path) -> None:
    asked, given = allowed(tmp_path, RECORDS)
    values = {"record-start.n_clicks": 1, "record-steps.value": 3}
    for headers in ({"Origin": "http://evil.example"}, {"Sec_Fetch_Site": "same-site"}):
        answer = asked.callback("record-said.children", values, "record-start.n_clicks", **headers)
        assert answer.status_code == 403
    assert given.attempt is None
