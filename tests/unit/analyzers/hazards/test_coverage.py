"""What of a recording is seen, counted by hand."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from diagnose.analysis import Unavailable
from diagnose.analyzers.hazards import hazards, sequence
from diagnose.analyzers.hazards.coverage import coverage
from diagnose.readers import read
from tests.builder import TraceBuilder
from tests.unit.analyzers.hazards.programs import PINNED, Program, X, Y, found, memory


def test_every_operation_is_counted_once(tmp_path: Path) -> None:
    program = Program()
    program.op("known", writes=[X], kernels=2)
    program.op("copied", reads=[X], writes=[PINNED], copy="Memcpy DtoH (Device -> Pinned)")
    program.host_op("aten::sum", reads=[PINNED])
    program.op("of the host alone", reads=[memory(60, device="cpu")])
    program.op("no tensors")
    program.op("no schema", writes=[Y], schema="")
    program.launch("no operator", 500)
    program.builder.call("cudaGraphLaunch", 510, correlation=77)
    for start in (520, 540, 560):
        program.builder.kernel("in a graph", start, 10, correlation=77)
    program.builder.kernel("launched before", 0, 10)
    program.now = 600
    program.record("e", 7)
    program.record("e", 7, annotated=False)
    program.wait("e", 20)
    program.wait("e", 20, annotated=False)
    program.host_call("cuStreamWaitValue32")
    [one] = coverage(program.trace(tmp_path))
    assert asdict(one) == {
        "source": 0,
        "num_gpu_ops": 11,
        "num_launched_before": 1,
        "num_known": 4,
        "num_in_graphs": 3,
        "num_without_operator": 1,
        "num_unknown": 2,
        "num_unnamed_waits": 2,
        "num_unnamed_records": 1,
        "num_without_schema": 1,
        "num_host_accesses": 1,
        "analysed": True,
    }


def test_without_an_execution_trace(tmp_path: Path) -> None:
    trace = read(TraceBuilder(rank=0).kernel("k", 0, 10, launch=-5).write(tmp_path))
    assert coverage(trace) == ()
    answer = hazards(trace)
    assert isinstance(answer, Unavailable)
    assert "execution trace" in answer.because


def test_more_streams_than_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program()
    program.op("write", writes=[X], stream=20)
    program.op("read", reads=[X])
    trace = program.trace(tmp_path)
    monkeypatch.setattr(sequence, "MOST_LANES", 2)
    assert isinstance(hazards(trace), Unavailable)
    assert not coverage(trace)[0].analysed
    monkeypatch.setattr(sequence, "MOST_LANES", 3)
    assert len(found(program, tmp_path)) == 1
