"""Whole reports, compared character by character with files that people have read.

``expected/`` holds what each report has to look like. After a change that is
meant to show: look at what the test prints, work the numbers out, and edit the
file. The timelines are in ``jobs.py``, with their arithmetic.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from diagnose import __version__, engine
from diagnose.findings import Diagnosis
from diagnose.reporters import Page, _info, _overlap
from diagnose.trace import Trace
from diagnose.wording.plain import width_of
from tests.text import jobs

EXPECTED = Path(__file__).parent / "expected"
PLAIN = Page(100)
REQUESTS = {name: asked for name, asked in engine.REPORT.items() if name != "staircase"}
"""Of these small jobs most of the host's time would count as the profiler's: see
``tests/text/verbs/whatif.txt`` for a staircase worked out by hand."""


def rendered(trace: Trace, name: str = "text", page: Page = PLAIN) -> str:
    out = io.StringIO()
    engine.reporters()[name].render(engine.diagnose(trace, REQUESTS, debug=True), out, page)
    return out.getvalue()


def overlap(trace: Trace, by: str, form: str = "text", page: Page = PLAIN) -> str:
    table = engine.run(engine.analyzers()["overlap"], trace, by=by)
    return _overlap.write(Diagnosis(trace, {"overlap": table}), by, form, page)


REPORTS = {
    "two_ranks.txt": lambda: rendered(jobs.two_ranks()),
    "two_ranks_80_columns.txt": lambda: rendered(jobs.two_ranks(), page=Page(80)),
    "two_ranks_ascii.txt": lambda: rendered(jobs.two_ranks(), page=Page(100, unicode=False)),
    "two_ranks.md": lambda: rendered(jobs.two_ranks(), "markdown"),
    "two_ranks.json": lambda: rendered(jobs.two_ranks(), "json").replace(__version__, "VERSION"),
    "two_ranks_info.txt": lambda: _info.write(Diagnosis(jobs.two_ranks()), "text", PLAIN),
    "two_ranks_by_step.txt": lambda: overlap(jobs.two_ranks(), "step"),
    "two_ranks_by_stream.csv": lambda: overlap(jobs.two_ranks(), "stream", "csv"),
    "unknown_ranks.txt": lambda: rendered(jobs.unknown_ranks()),
    "many_ranks.txt": lambda: rendered(jobs.many_ranks()),
    "class_in_doubt.txt": lambda: rendered(jobs.class_in_doubt()),
    "class_in_doubt_overlap.txt": lambda: overlap(jobs.class_in_doubt(), "rank"),
    "no_gpu_work.txt": lambda: rendered(jobs.no_gpu_work()),
    "on_cpu.txt": lambda: rendered(jobs.on_cpu()),
    "costly_overlap.txt": lambda: rendered(jobs.costly_overlap()),
    "hostile_names.txt": lambda: rendered(jobs.hostile_names()),
    "hostile_names.md": lambda: rendered(jobs.hostile_names(), "markdown"),
}


@pytest.mark.parametrize("name", REPORTS)
def test_the_report_reads_as_expected(name):
    shown = REPORTS[name]()
    assert shown == (EXPECTED / name).read_text(encoding="utf-8"), f"\n{shown}"


def test_every_expected_file_is_tested():
    assert sorted(path.name for path in EXPECTED.iterdir()) == sorted(REPORTS)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize(
    "job",
    [
        jobs.two_ranks,
        jobs.unknown_ranks,
        jobs.many_ranks,
        jobs.costly_overlap,
        jobs.on_cpu,
        jobs.hostile_names,
    ],
)
def test_no_line_is_wider_than_the_page(job, width, unicode):
    trace, page = job(), Page(width, unicode=unicode)
    texts = [rendered(trace, page=page), _info.write(Diagnosis(trace), "text", page)]
    texts += [overlap(trace, by, page=page) for by in ("rank", "stream", "group", "collective")]
    # The columns that have to be there need 80.
    limit = max(width, 80)
    for line in "\n".join(texts).splitlines():
        assert width_of(line) <= limit, line
        assert unicode or line.isascii()


def test_colour_adds_nothing_but_colour():
    import re

    coloured = rendered(jobs.two_ranks(), page=Page(100, color=True))
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == rendered(jobs.two_ranks())


def test_nothing_in_a_name_is_obeyed():
    for name in ("text", "markdown", "json"):
        shown = rendered(jobs.hostile_names(), name)
        assert "\x1b" not in shown
        assert "\u202e" not in shown or name == "json"
        if name == "markdown":
            assert "<script>" not in shown
            assert "| evil |" not in shown
        if name == "text":
            assert "[red]" in shown
