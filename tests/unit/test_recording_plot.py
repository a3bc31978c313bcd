"""``Recording.plot``: the figures of the report and the dashboard, with their options."""

from __future__ import annotations

import subprocess
import sys

import pytest

from diagnose import engine
from diagnose.errors import UnavailableError, UsageError
from diagnose.plotting.palette import DARK, LIGHT
from diagnose.recording import Recording
from diagnose.schema import Detail
from tests.builder import TraceBuilder, build_trace
from tests.text import jobs


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording(jobs.two_ranks())


def bars(figure, name):
    """(start, length) in ms of the bars of a name, without the marks of the legend."""
    return sorted(
        (round(float(base), 6), round(float(x), 6))
        for trace in figure.data
        if trace.type == "bar" and trace.name == name and trace.base is not None
        for base, x in zip(trace.base, trace.x, strict=True)
    )


def test_step_time_has_the_values_of_the_table(recording):
    """Of a step of 100 us rank 0 computes 40 alone, hides 20, exposes 30, copies 5, idles 5."""
    figure = recording.plot("step_time")
    assert [list(bar.x) for bar in figure.data] == [[40, 50], [20, 20], [30, 20], [5, 5], [5, 5]]
    assert figure.layout.title.text == "Where a step's time goes, by GPU"
    shares = recording.step_shares()
    assert [1_000 * x for x in figure.data[2].x] == shares["exposed_communication_ns"].tolist()


def test_overlap_has_a_point_a_step(recording):
    figure = recording.plot("overlap")
    assert [list(line.y) for line in figure.data] == [[40, 40, 40], [50, 50, 50]]
    assert list(figure.data[0].x) == ["7", "8", "9"]


def test_the_timeline_is_the_default_and_shows_gpus_with_their_streams(recording):
    """Rank 0 computes in [5, 15) and [20, 80), seen from the first event, a step mark at 0."""
    figure = recording.plot(lanes=["g0.0s7"], start_ns=0, end_ns=100_000)
    assert list(figure.layout.xaxis.range) == [0, 0.1]
    assert bars(figure, "compute") == [(0.005, 0.01), (0.02, 0.06)]
    whole = recording.plot()
    assert list(whole.layout.xaxis.range) == [0, 0.315]
    labels = list(whole.layout.yaxis.ticktext)
    assert labels[0] == "rank 0, GPU 0"
    assert not any("thread" in label for label in labels)
    everything = recording.plot(lanes="all").layout.yaxis.ticktext
    assert any("thread" in label for label in everything)


def test_a_step_of_the_timeline_is_its_time_on_the_gpus(recording):
    """Step 8: from the end of step 7's work at 115 us to 215 us, by its own at 100 later."""
    assert list(recording.plot(step=8).layout.xaxis.range) == [0.115, 0.215]
    assert list(recording.plot(step="ProfilerStep#8").layout.xaxis.range) == [0.115, 0.215]
    # The first has no step time: its mark on the host.
    assert list(recording.plot(step=7).layout.xaxis.range) == [0, 0.1]


def test_colors_that_are_there_are_explained(recording):
    figure = recording.plot(lanes=["g0.0"])
    legend = {trace.name: trace.marker.color for trace in figure.data if trace.showlegend}
    assert legend == {
        "compute": LIGHT.compute,
        "communication": LIGHT.overlapped,
        "exposed communication": LIGHT.exposed,
        "copies": LIGHT.copies,
    }


def test_dark_is_drawn_on_a_dark_page(recording):
    figure = recording.plot("step_time", dark=True)
    assert figure.layout.paper_bgcolor == DARK.page
    assert figure.data[0].marker.color == DARK.compute
    assert recording.plot("step_time").layout.paper_bgcolor == LIGHT.page


def test_an_unknown_name_lists_those_that_exist(recording):
    with pytest.raises(UsageError, match="no figure 'ranke'") as raised:
        recording.plot("ranke")
    assert raised.value.hint == "figures: " + ", ".join(engine.figures())


def test_an_unknown_option_lists_those_that_exist(recording):
    with pytest.raises(UsageError, match="timeline has no option 'begin'") as raised:
        recording.plot(begin=3)
    assert raised.value.hint == ("options of timeline: start_ns, end_ns, step, lanes, pixels, dark")
    with pytest.raises(UsageError, match="ranks has no option 'step'"):
        recording.plot("ranks", step=8)


def test_a_step_that_is_not_there_lists_those_that_are(recording):
    with pytest.raises(UsageError, match="no step 42") as raised:
        recording.plot(step=42)
    assert raised.value.hint == "steps: 7, 8, 9"
    with pytest.raises(UsageError, match="a step and a window"):
        recording.plot(step=8, start_ns=0)


def test_what_cannot_be_drawn_says_how_to_get_it(recording):
    with pytest.raises(UnavailableError, match=r"plot\('power'\)") as raised:
        recording.plot("power")
    assert raised.value.hint
    fast = Recording(build_trace(TraceBuilder().kernel("gemm", 0, 10), detail=Detail.GPU))
    with pytest.raises(UnavailableError) as raised:
        fast.plot("stalls")
    assert "load the trace without" in raised.value.hint
    with pytest.raises(UnavailableError, match="no operation was recorded"):
        Recording(build_trace(TraceBuilder())).plot()


def test_every_figure_is_named_in_the_help(recording):
    assert "plot" in dir(recording)
    for name in engine.figures():
        assert f"- ``{name}``:" in Recording.plot.__doc__


def test_the_diagnosis_has_what_the_report_says():
    diagnosis = Recording(jobs.two_ranks()).diagnosis()
    assert diagnosis.checked is not None
    assert len(diagnosis.tables["gpus"]) == 2


def test_the_diagnosis_goes_by_the_settings_around_as_the_command_does(tmp_path, monkeypatch):
    assert "gpu-is-sliced" in engine.rules()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "diagnose.toml").write_text('ignore = ["gpu-is-sliced"]\n')
    checked = Recording(jobs.two_ranks()).diagnosis().checked
    assert checked is not None
    assert checked.left_out == ("gpu-is-sliced",)


def test_a_recording_is_loaded_without_plotly():
    code = "import sys, diagnose.recording, diagnose.engine; assert 'plotly' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
