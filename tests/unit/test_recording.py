"""Every analysis is a method of a Recording and returns a DataFrame."""

from __future__ import annotations

import pickle

import pytest

import diagnose
from diagnose import engine
from diagnose.errors import UnavailableError, UsageError
from diagnose.recording import Recording
from diagnose.schema import Detail
from tests.builder import TraceBuilder, build_trace


def two_steps() -> TraceBuilder:
    """Step 1 computes 10..40 and reduces 30..50; step 2 computes 60..90, reduces 90..100."""
    builder = TraceBuilder(rank=3, world_size=4).step(1, 0, 20).step(2, 20, 20)
    builder.kernel("gemm", 10, 30, launch=5).collective("allreduce", 30, 20, launch=6)
    builder.kernel("gemm", 60, 30, launch=25).collective("allreduce", 90, 10, launch=26)
    return builder


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording(build_trace(two_steps()))


def test_overlap_by_step_is_a_frame_with_the_steps_names(recording):
    frame = recording.overlap(by="step")
    assert list(frame["step"]) == ["ProfilerStep#1", "ProfilerStep#2"]
    assert list(frame["overlapped_ns"]) == [10_000, 0]
    assert list(frame["exposed_communication_ns"]) == [10_000, 10_000]
    assert frame["step_ns"].isna().tolist() == [True, False]
    assert frame["step_ns"][1] == 50_000


def test_an_option_may_be_given_by_place(recording):
    assert recording.overlap("step").equals(recording.overlap(by="step"))


def test_every_analysis_is_listed_and_documented(recording):
    listed = dir(recording)
    for name, analyzer in engine.analyzers().items():
        assert name in listed
        assert getattr(recording, name).__doc__ == analyzer.run.__doc__
        assert "trace" not in engine.options_of(analyzer).parameters


def test_what_is_no_analysis_is_no_attribute(recording):
    with pytest.raises(AttributeError, match="no attribute 'overlop'"):
        _ = recording.overlop
    assert not hasattr(recording, "_private")


def test_a_wrong_option_is_a_usage_error(recording):
    with pytest.raises(UsageError, match="bye"):
        recording.overlap(bye="step")


def test_what_the_trace_does_not_hold_says_how_to_get_it():
    recording = Recording(build_trace(two_steps(), detail=Detail.GPU))
    with pytest.raises(UnavailableError) as raised:
        recording.overlap(by="step")
    assert raised.value.hint


def test_an_unknown_rank_is_missing_and_not_a_number():
    recording = Recording(build_trace(TraceBuilder().kernel("gemm", 0, 10)))
    assert recording.overlap()["rank"].isna().all()


def test_a_recording_survives_pickling(recording):
    copy = pickle.loads(pickle.dumps(recording))
    assert copy.overlap().equals(recording.overlap())


def test_load_refuses_another_detail():
    with pytest.raises(UsageError, match="only='everything'"):
        diagnose.load("x", only="everything")


@pytest.mark.parametrize(
    ("only", "detail"),
    [
        (None, Detail.ALL),
        ("shapes", Detail.SHAPES),
        ("launches", Detail.LAUNCHES),
        ("gpu", Detail.GPU),
    ],
)
def test_load_reads_as_much_as_is_asked(tmp_path, only, detail):
    path = two_steps().write(tmp_path)
    recording = diagnose.load(path, only=only)
    assert recording.trace.detail is detail
    assert recording.sources[0].rank == 3
    assert recording.overlap()["compute_ns"].tolist() == [60_000]


def test_load_passes_the_users_rank_and_progress(tmp_path):
    path = TraceBuilder().kernel("gemm", 0, 10).write(tmp_path)
    read = []
    recording = diagnose.load(path, rank=7, progress=read.append)
    assert recording.sources[0].rank == 7
    assert sum(read) == path.stat().st_size
