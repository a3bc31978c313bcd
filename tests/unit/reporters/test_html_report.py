"""The page of whole jobs: its order, its figures, and that they are those of the text report."""

from __future__ import annotations

import dataclasses
import html
import io
import json
import re

import pytest

from diagnose import engine
from diagnose.reporters import Page
from diagnose.reporters.html import FURTHER, REPORTER
from tests import report_tables
from tests.browser.recordings import eight_ranks
from tests.text import jobs


def diagnosed(trace):
    further = {name: engine.Request(*asked) for name, asked in FURTHER.items()}
    return engine.diagnose(trace, {**engine.REPORT, **further}, debug=True)


def rendered(diagnosis, form="html"):
    out = io.StringIO()
    # Wide enough for every column of the text.
    engine.reporters()[form].render(diagnosis, out, Page(160))
    return out.getvalue()


def words(page):
    """What a reader sees, without style and scripts."""
    body = re.sub(r"<(script|style)[^>]*>.*?</\1>", " ", page, flags=re.DOTALL)
    shown = html.unescape(re.sub("<[^>]*>", " ", body)).replace("\u00a0", " ")
    return re.sub(r"\s+", " ", shown)


@pytest.fixture(scope="module")
def two_ranks():
    return diagnosed(jobs.two_ranks())


def full(diagnosis):
    """With findings and stairs."""
    return dataclasses.replace(
        diagnosis,
        tables={**diagnosis.tables, "staircase": report_tables.stairs()},
        findings=report_tables.findings(diagnosis.trace.gpus),
        checked=report_tables.checked(),
    )


def test_sections_stand_in_the_order_in_which_they_are_read(two_ranks):
    page = rendered(full(two_ranks))
    assert re.findall(r'<section id="(.*?)"', page) == [
        "time",
        "overlap",
        "findings",
        "gains",
        "ranks",
        "stalls",
        "operations",
        "unchecked",
        "notes",
        "definitions",
    ]
    assert page.index("Trace quality") < page.index('class="lead"') < page.index('class="tiles"')
    assert page.index('class="tiles"') < page.index('<section id="time"')


def test_tiles_say_what_the_tables_say(two_ranks):
    """Step times of 100 us; hidden 40 and 50 %; exposed 30 and 20 us a step; idle 5."""
    shown = words(rendered(full(two_ranks)))
    assert "Step time 100.0 us as recorded, mean of 2 timed steps" in shown
    assert "Communication hidden 40.0\u201350.0 % of communication, by GPU" in shown
    assert "Exposed communication 20.0\u201330.0 us a step, by GPU" in shown
    assert "Copies only 5.0 us a step, by GPU" in shown
    assert "GPU idle 5.0 us a step, by GPU" in shown
    assert "Largest single gain 4.20 ms a step (3.90 to 4.50): Rank 1 is as fast" in shown


def test_text_and_page_show_the_same_rows(two_ranks):
    text, page = rendered(two_ranks, "text"), words(rendered(two_ranks))
    rows = re.findall(r"^ +[01] +0 +[\d.].*$", text, re.MULTILINE)
    assert len(rows) >= 2
    for row in rows[:2]:  # those of the GPUs, which have no bar
        assert " ".join(row.split()) in page


def test_figures_hold_the_numbers_of_the_tables(two_ranks):
    page = rendered(full(two_ranks))
    data = json.loads(re.search(r'id="figures">(.*?)</script>', page).group(1))
    assert set(data["figures"]) >= {"step-time", "overlap", "staircase", "stalls"}
    exposed = data["figures"]["step-time"]["data"][2]
    assert (exposed["name"], exposed["x"]) == ("exposed communication", [30, 20])
    assert data["figures"]["staircase"]["data"][0]["x"] == [42.4, 38.2, 37.5, 36.9, 34.8]
    for key in data["figures"]:
        assert f'id="figure-{key}"' in page


@pytest.mark.parametrize(
    "job", [jobs.unknown_ranks, jobs.many_ranks, jobs.class_in_doubt, jobs.no_gpu_work]
)
def test_every_job_has_a_page(job):
    page = rendered(diagnosed(job()))
    assert "Trace quality" in words(page)
    assert page.count("<main>") == page.count("</html>") == 1


def test_a_job_on_the_cpu_has_its_steps_and_no_figure():
    page = rendered(diagnosed(jobs.on_cpu()))
    assert '<h2 id="time-title">Steps on the host</h2>' in page
    assert "This job ran on the CPU" in words(page)
    assert 'class="plot"' not in page
    assert "Plotly" not in page


def test_without_step_times_the_window_is_divided_instead():
    page = rendered(diagnosed(jobs.unknown_ranks()))
    assert "Where the window's time goes" in words(page)
    data = json.loads(re.search(r'id="figures">(.*?)</script>', page).group(1))
    assert data["figures"]["step-time"]["layout"]["xaxis"]["title"]["text"] == "window (us)"
    assert "step_shares" not in page


def test_hostile_names_stay_text():
    page = rendered(diagnosed(jobs.hostile_names()))
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_the_same_input_gives_the_same_bytes(two_ranks):
    assert rendered(two_ranks) == rendered(diagnosed(jobs.two_ranks()))


def test_eight_ranks_fit_into_a_mail(recordings, tmp_path):
    import diagnose

    recording = diagnose.load(eight_ranks(recordings / "straggler", tmp_path / "eight"))
    page = rendered(full(diagnosed(recording.trace)))
    assert len(page.encode()) < 3_000_000
    assert "rank 7" in page


def test_the_format_goes_by_the_name_of_the_file():
    assert REPORTER.suffixes == (".html", ".htm")
