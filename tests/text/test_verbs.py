"""What the verbs across ranks print, character by character, for jobs worked out by hand.

``verbs/`` holds the outputs; ``jobs.py`` the timelines with their arithmetic.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose import engine
from diagnose.findings import Diagnosis
from diagnose.reporters import Page, _comparison, _path, _ranks, _replay, _stalls
from diagnose.trace import Trace
from diagnose.wording.plain import width_of
from tests.text import jobs

EXPECTED = Path(__file__).parent / "verbs"
PLAIN = Page(100)


def diagnosed(trace: Trace, **requests: engine.Request) -> Diagnosis:
    return engine.diagnose(trace, requests, debug=True)


def ranks(trace: Trace, page: Page = PLAIN) -> str:
    names = {"ranks": "ranks", "stragglers": "stragglers", "clocks": "clock_offsets"}
    names |= {"unmatched": "unmatched_collectives", "transfer_bandwidth": "transfer_bandwidth"}
    found = diagnosed(trace, **{key: engine.Request(name) for key, name in names.items()})
    return _ranks.write(found, "text", page)


def stalls(trace: Trace, by: str = "cause", page: Page = PLAIN) -> str:
    names = {"stalls": "stalls", "causes": "stall_causes", "sites": "stall_sites"}
    names |= {"host_waits": "host_waits"}
    found = diagnosed(trace, **{key: engine.Request(name) for key, name in names.items()})
    return _stalls.write(found, by, "text", page)


def path(trace: Trace, page: Page = PLAIN) -> str:
    names = {"path": "critical_path", "slack": "slack", "cost": "communication_cost"}
    found = diagnosed(trace, **{key: engine.Request(name) for key, name in names.items()})
    return _path.write(found, "text", page)


def compare(page: Page = PLAIN) -> str:
    second = jobs.two_ranks(late=10)
    request = engine.Request("compare", {"other": second})
    first = diagnosed(jobs.two_ranks(late=0), comparison=request)
    return _comparison.write(first, Diagnosis(second), "text", page, 5.0)


def whatif(*changes: str, form: str = "text", page: Page = PLAIN) -> str:
    name = "replay" if changes else "staircase"
    request = engine.Request(name, {"changes": changes})
    found = diagnosed(jobs.gpu_is_the_limit(), **{name: request})
    return _replay.write(found, form, page)


OUTPUTS = {
    "ranks.txt": lambda: ranks(jobs.two_ranks()),
    "stalls.txt": lambda: stalls(jobs.two_ranks()),
    "stalls_by_step.txt": lambda: stalls(jobs.two_ranks(), "step"),
    "stalls_by_interval.txt": lambda: stalls(jobs.two_ranks(), "interval"),
    "critical_path.txt": lambda: path(jobs.two_ranks()),
    "compare.txt": compare,
    "whatif.txt": lambda: whatif("faster-collectives:factor=4"),
    "whatif_staircase.txt": whatif,
    "whatif_staircase.md": lambda: whatif(form="markdown"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_output_reads_as_expected(name):
    shown = OUTPUTS[name]()
    assert shown == (EXPECTED / name).read_text(encoding="utf-8"), f"\n{shown}"


def test_every_expected_file_is_tested():
    assert sorted(file.name for file in EXPECTED.iterdir()) == sorted(OUTPUTS)


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_is_wider_than_the_page(width, unicode):
    page = Page(width, unicode=unicode)
    texts = [ranks(jobs.two_ranks(), page), path(jobs.two_ranks(), page), compare(page)]
    texts += [whatif(page=page), whatif("hide-communication", page=page)]
    texts += [stalls(jobs.two_ranks(), by, page) for by in ("cause", "step", "interval")]
    texts += [stalls(jobs.hostile_names(), by, page) for by in ("cause", "step", "interval")]
    # The columns that have to be there need 80.
    limit = max(width, 80)
    for line in "\n".join(texts).splitlines():
        assert width_of(line) <= limit, line
        assert unicode or line.isascii(), line
