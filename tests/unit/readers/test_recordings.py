"""Assembly of the shipped recordings against plain counting over the JSON, without this package."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from diagnose import readers
from diagnose.schema import NULL
from diagnose.trace import Trace

ROOT = Path(__file__).resolve().parents[3] / "examples" / "recordings"
TRACES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/rank*.trace.json.gz"))
GPU = ("kernel", "gpu_memcpy", "gpu_memset")


@cache
def events(name: str) -> list[dict[str, Any]]:
    """Complete events, with start and end as whole nanoseconds read from the text."""
    with gzip.open(ROOT / name) as file:
        found = json.load(file, parse_float=Decimal)["traceEvents"]
    found = [event for event in found if event.get("ph") == "X"]
    for event in found:
        event["start"] = int(Decimal(event["ts"]) * 1000)
        event["end"] = event["start"] + int(Decimal(event["dur"]) * 1000)
    return found


@cache
def trace_of(name: str) -> Trace:
    return readers.read(ROOT / name)


def of(name: str, *categories: str) -> list[dict[str, Any]]:
    return [event for event in events(name) if event.get("cat") in categories]


def launches(name: str) -> dict[int, dict[str, Any]]:
    calls = of(name, "cuda_runtime", "cuda_driver")
    found = {call["args"]["correlation"]: call for call in calls}
    assert len(found) == len(calls)
    return found


def marks(name: str) -> list[dict[str, Any]]:
    found = of(name, "user_annotation")
    return sorted(
        (event for event in found if event["name"].startswith("ProfilerStep#")),
        key=lambda event: event["start"],
    )


def test_the_recordings_are_there() -> None:
    assert len(TRACES) >= 11


@pytest.mark.parametrize("name", TRACES)
def test_every_gpu_operation_with_its_launch_and_step(name: str) -> None:
    trace, calls, steps = trace_of(name), launches(name), marks(name)
    expected = []
    for event in of(name, *GPU):
        call = calls.get(event["args"]["correlation"])
        number = None
        for mark in steps:
            if call is not None and mark["start"] <= call["start"] < mark["end"]:
                number = int(mark["name"].removeprefix("ProfilerStep#"))
        launched = None if call is None else (call["start"], call["name"])
        args = event["args"]
        place = (args["device"], args["stream"], event["start"], event["end"])
        expected.append((*place, event["name"], launched, number))
    ops, table = trace.gpu_ops, trace.launches
    call_names, numbers = table.texts("name"), trace.steps["number"].tolist()
    found = [
        (
            *place,
            None if call < 0 else (int(table["start_ns"][call]), call_names[call]),
            None if step < 0 else numbers[step],
        )
        for *place, call, step in zip(
            *(ops[column].tolist() for column in ("device", "stream", "start_ns", "end_ns")),
            ops.texts("name"),
            ops["launch_row"].tolist(),
            ops["step_row"].tolist(),
            strict=True,
        )
    ]
    assert Counter(found) == Counter(expected)


@pytest.mark.parametrize("name", TRACES)
def test_tables_hold_what_the_file_holds(name: str) -> None:
    trace = trace_of(name)
    assert len(trace.launches) == len(launches(name))
    assert len(trace.syncs) == len(of(name, "cuda_sync"))
    host = of(name, "cpu_op", "user_annotation", "overhead", "Trace", "python_function")
    assert Counter(trace.host_ops.texts("name")) == Counter(event["name"] for event in host)
    assert trace.steps.texts("name") == [mark["name"] for mark in marks(name)]


@pytest.mark.parametrize("name", TRACES)
def test_collectives_and_their_metadata(name: str) -> None:
    expected = Counter()
    for event in of(name, "kernel"):
        if "nccl" in event["name"]:
            args = event["args"]
            elements = args.get("In msg nelems")
            known = elements is not None
            assert not known or args["dtype"] == "BFloat16"
            size = 2 * max(elements, args["Out msg nelems"]) if known else None
            kind = args.get("Collective name")
            expected[(event["start"], kind, size, "kernel" if known else "name")] += 1
    table = trace_of(name).collectives
    starts = trace_of(name).gpu_ops["start_ns"][table["gpu_op_row"]].tolist()
    sizes = [None if size == NULL else size for size in table["bytes"].tolist()]
    found = zip(starts, table.texts("name"), sizes, table.texts("origin"), strict=True)
    assert Counter(found) == expected
    assert set(table.texts("collective")) == {"all_reduce"}


@pytest.mark.parametrize("name", TRACES)
def test_every_note_is_true(name: str) -> None:
    """The list of notes is complete, each with its count and its figures in the sentence."""
    gpu, calls = of(name, *GPU), launches(name)
    without = [event for event in gpu if event["args"]["correlation"] not in calls]
    with_launch = [event for event in gpu if event["args"]["correlation"] in calls]
    overhead = of(name, "overhead")
    total = sum(event["end"] - event["start"] for event in overhead)
    marked = sum(mark["end"] - mark["start"] for mark in marks(name))
    expected = {}
    if without:
        assert max(event["start"] for event in without) < min(e["start"] for e in with_launch)
        figure = f"{len(without)} of {len(gpu)}"
        expected["launched-before-window"] = (len(without), "info", figure)
    if overhead:
        share = 100 * total / marked
        figure = f"{total / 1e6:,.3f} ms, {share:.1f} % of the marked time"
        severity = "warning" if share > 5 else "info"
        expected["profiler-overhead"] = (len(overhead), severity, figure)
    notes = trace_of(name).notes
    assert {note.code: (note.count, note.severity) for note in notes} == {
        code: values[:2] for code, values in expected.items()
    }
    for note in notes:
        assert expected[note.code][2] in note.sentence
    # What the absence of further notes claims:
    used = {event["args"]["correlation"] for event in gpu}
    launching = ("LaunchKernel", "Memcpy", "Memset", "GraphLaunch")
    assert not [
        call
        for correlation, call in calls.items()
        if any(word in call["name"] for word in launching) and correlation not in used
    ]
    assert not [e for e in with_launch if e["start"] < calls[e["args"]["correlation"]]["start"]]
    durations = [mark["end"] - mark["start"] for mark in marks(name)]
    assert len(durations) >= 3
    assert durations[0] <= 2 * sorted(durations[1:])[len(durations[1:]) // 2]


def test_a_recording_of_two_ranks_is_complete() -> None:
    trace = readers.read(ROOT / "healthy")
    assert [(s.rank, s.rank_origin, s.world_size) for s in trace.sources] == [
        (0, "metadata", 2),
        (1, "metadata", 2),
    ]
    assert [source.environment["nccl"] for source in trace.sources] == ["2.28.9", "2.28.9"]
    for source in (0, 1):
        with (ROOT / f"healthy/rank0000{source}.telemetry.csv").open() as file:
            times = [int(line.split(",")[0]) for line in file.read().split()[1:]]
        mine = trace.samples["unix_ns"][trace.samples["source"] == source]
        assert mine.tolist() == sorted(times)
    assert [note.severity for note in trace.notes if note.code != "profiler-overhead"] == [
        "info",
        "info",
    ]
