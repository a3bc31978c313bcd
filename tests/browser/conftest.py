"""The browser that all tests of pages share, and the pages that they look at."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import diagnose
from diagnose import cli, engine
from diagnose.reporters.html import FURTHER, whole
from tests import report_tables
from tests.browser.chromium import Chromium, find
from tests.browser.dashboard import Server, Tab, known
from tests.browser.recordings import eight_ranks, on_cpu, with_hostile_file_names

NO_BROWSER = (
    "no Chromium: install it (Debian, Ubuntu: apt install chromium), or name it in CHROMIUM=..."
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One browser for all; without one the tests are skipped, in continuous integration failed."""
    program = find()
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail(NO_BROWSER, pytrace=False)
        pytest.skip(NO_BROWSER)
    started = Chromium(program, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go: ``$SCREENSHOTS``, else a folder that pytest keeps for a while."""
    asked = os.environ.get("SCREENSHOTS")
    folder = Path(asked) if asked else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory,
    browser: Chromium,
    root: Path,
    recordings: Path,
    cases: Path,
) -> Iterator[Server]:
    """A dashboard of several recordings; it must not have failed at anything when it ends."""
    made = tmp_path_factory.mktemp("shown")
    hostile = made / "hostile"
    hostile.mkdir()
    shutil.copy(cases / "ui-hostile-names" / "rank0.json", hostile)
    real = [recordings / name for name in ("straggler", "healthy")]
    # One whose findings say when.
    real.append(root / "benchmarks/accuracy/recordings/gc_pause")
    started = Server(root, [*real, known(made / "known"), hostile])
    yield started
    started.stop()
    assert started.said == []


@pytest.fixture
def tab(browser: Chromium, server: Server) -> Tab:
    """The browser's page, on the dashboard."""
    return Tab(browser, server)


@pytest.fixture(scope="session")
def pages(
    tmp_path_factory: pytest.TempPathFactory, recordings: Path, cases: Path
) -> dict[str, Path]:
    """The report of each recording as a page, by name."""
    made = tmp_path_factory.mktemp("pages")
    given = {name: recordings / name for name in ("healthy", "straggler", "launch_bound")}
    given["hostile"] = made / "hostile"
    given["hostile"].mkdir()
    shutil.copy(cases / "ui-hostile-names" / "rank0.json", given["hostile"])
    given["files"] = with_hostile_file_names(made / "files")
    given["eight"] = eight_ranks(recordings / "straggler", made / "eight")
    given["cpu"] = on_cpu(made / "cpu")
    written = {}
    for name, recording in given.items():
        written[name] = made / f"{name}.html"
        status = cli.execute(["report", str(recording), "-o", str(written[name])])
        assert status == 0, name
    written["findings"] = made / "findings.html"
    written["findings"].write_text(_with_findings(given["straggler"]), encoding="utf-8")
    return written


def _with_findings(recording: Path) -> str:
    """The page with stairs and a finding of each severity, whatever rules say of the recording."""
    trace = diagnose.load(recording).trace
    further = {name: engine.Request(*asked) for name, asked in FURTHER.items()}
    diagnosis = engine.diagnose(trace, {**engine.REPORT, **further}, debug=True)
    return whole(
        dataclasses.replace(
            diagnosis,
            tables={**diagnosis.tables, "staircase": report_tables.stairs()},
            findings=report_tables.findings(trace.gpus, operator="<img src=x>" * 40),
            checked=report_tables.checked(),
        )
    )
