"""One result, whatever the layout, the chunk size and the path through the reader."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from diagnose.readers.kineto.prefilter import Prefilter, Selection
from diagnose.schema import Detail
from tests.unit.readers.kineto_texts import (
    PREFIXES,
    as_kineto,
    call,
    codes,
    content,
    dumps,
    flow,
    kernel,
    layouts,
    operator,
    process,
    read,
    table,
)


def mixture() -> list[dict[str, Any]]:
    """Every kind of event, in an order that no rule explains."""
    collective = {"Collective name": "allreduce", "In msg nelems": 5, "Group size": 2}
    events: list[dict[str, Any]] = [*process(42, "CPU")]
    for i in range(6):
        events += [
            operator(i),
            flow(i),
            call(i, "cuda_driver" if i % 2 else "cuda_runtime"),
            kernel(i, grid=[i + 1, 1, 1], block=[32, 1, 1]),
            operator(i, "record_param_comms") | {"args": {"External id": i} | collective},
            flow(i, "f"),
        ]
    events += [
        operator(7, "ProfilerStep#7", "user_annotation"),
        operator(8, "forward", "user_annotation"),
        operator(8, "forward", "gpu_user_annotation"),
        operator(8, "run.py(3): step", "python_function"),
        operator(8, "Buffer Flush", "overhead"),
        operator(8, "PyTorch Profiler (0)", "Trace") | {"pid": "Spans"},
        kernel(9) | {"cat": "gpu_memset", "name": "Memset (Device)"},
        kernel(9, bytes=64) | {"cat": "gpu_memcpy", "name": 'Memcpy "HtoD" \u00e9 },{ '},
        kernel(9, cuda_sync_kind="Event Sync", wait_on_cuda_event_id=3) | {"cat": "cuda_sync"},
        {"ph": "i", "name": "Record Window End", "s": "g", "pid": "", "tid": "", "ts": 5},
        kernel(10, **collective),
        *process(0, "GPU 0"),
    ]
    return events


NUM_KEPT = {  # of mixture(), counted by hand: gpu, host, calls, syncs, collectives, operators
    Detail.GPU: (9, 8, 0, 0, 7, 0),
    Detail.LAUNCHES: (9, 9, 6, 1, 7, 0),
    Detail.SHAPES: (9, 9, 6, 1, 7, 6),
    Detail.ALL: (9, 17, 6, 1, 7, 0),
}


@pytest.mark.parametrize("detail", Detail)
def test_every_layout_reads_the_same(detail: Detail) -> None:
    events = mixture()
    expected = content(read(as_kineto(events), detail, prefilter=False))
    groups = ("gpu", "host", "calls", "syncs", "collectives", "operators")
    assert tuple(len(expected[group]["order"]) for group in groups) == NUM_KEPT[detail]
    assert expected["num_events"] == len(events)
    assert expected["notes"] == []
    for name, text in layouts(events).items():
        for chunk_bytes in (500, 4 << 20):
            assert content(read(text, detail, chunk_bytes)) == expected, (name, chunk_bytes)


@pytest.mark.parametrize("detail", Detail)
def test_every_chunk_size_reads_the_same(detail: Detail) -> None:
    texts = layouts(mixture())
    expected = content(read(texts["kineto"], detail, prefilter=False))
    for name in ("kineto", "compact", "other key order"):
        for chunk_bytes in (*range(1, 40, 13), *range(64, 1500, 53), 4096, 1 << 20):
            assert content(read(texts[name], detail, chunk_bytes)) == expected, (name, chunk_bytes)


@pytest.mark.parametrize("detail", Detail)
def test_a_recording_reads_the_same_on_the_fast_and_on_the_slow_path(
    recordings: Path, detail: Detail
) -> None:
    text = gzip.decompress((recordings / "healthy" / "rank00000.trace.json.gz").read_bytes())
    document = json.loads(text)
    slow = content(read(text, detail, prefilter=False))
    kernels = [
        event
        for event in document["traceEvents"]
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    assert slow["gpu"]["name"] == [event["name"] for event in kernels]
    assert slow["gpu"]["correlation"] == [event["args"]["correlation"] for event in kernels]
    assert slow["num_events"] == len(document["traceEvents"])
    assert slow["notes"] == []
    for chunk_bytes in (100_001, 1 << 20):
        assert content(read(text, detail, chunk_bytes)) == slow
    written_anew = {
        "compact": dumps(document, separators=(",", ":")),
        "indented": dumps(document, indent=1),
        "other key order": dumps(
            {"traceEvents": [dict(reversed(e.items())) for e in document.pop("traceEvents")]}
            | document,
        ),
    }
    for name, written in written_anew.items():
        for chunk_bytes in (99_991, 4 << 20):
            assert content(read(written.encode(), detail, chunk_bytes)) == slow, name


def chunk_of(events: list[dict[str, Any]]) -> bytes:
    text = as_kineto(events)
    return text[text.index(b"[\n") + 4 : text.rindex(b"\n  ],")]


def select(prefilter: Prefilter, chunk: bytes) -> Selection | None:
    return prefilter.select(chunk + b",\n  { what follows", len(chunk))


def test_the_prefilter_takes_what_it_needs_and_no_more() -> None:
    events = mixture()
    selection = select(Prefilter(Detail.GPU, ("ProfilerStep", *PREFIXES)), chunk_of(events))
    assert selection is not None
    assert selection.num_events == len(events)
    chosen = [events[place] for place in selection.places.tolist()]
    assert [json.loads(text) for text in selection.events] == json.loads(dumps(chosen))
    dropped = [event for event in events if event not in chosen]
    assert {event.get("cat", event["name"]) for event in dropped} == {
        "cpu_op",
        "ac2g",
        "cuda_runtime",
        "cuda_driver",
        "cuda_sync",
        "user_annotation",
        "gpu_user_annotation",
        "python_function",
        "Record Window End",
    } - ({"Record Window End"} if events[-4] in chosen else set())


def test_a_chunk_in_which_one_event_is_laid_out_otherwise_is_not_filtered() -> None:
    events = [kernel(i) for i in range(5)]
    chunk = chunk_of(events)
    prefilter = Prefilter(Detail.GPU, ("ProfilerStep",))
    assert select(prefilter, chunk) is not None
    assert select(prefilter, chunk.replace(b"},\n  {", b"} ,\n  {", 1)) is None
    assert select(prefilter, dumps(events)[1:-1].encode()) is None


def test_events_hidden_from_the_prefilter_by_their_layout_are_found() -> None:
    # A kernel on one line amid Kineto's layout, and one with its keys in another order.
    odd = b"{" + dumps(kernel(50)).encode()[1:]
    turned = dumps(dict(reversed(kernel(51).items()))).encode()
    chunk = chunk_of([operator(i) for i in range(4)])
    for text in (odd, turned):
        for joint in (b",\n  ", b","):
            whole = b'{"traceEvents": [\n  ' + chunk + joint + text + joint + chunk + b"\n]}"
            for chunk_bytes in (len(chunk) + 300, 4 << 20):
                found = read(whole, Detail.GPU, chunk_bytes)
                assert len(found.gpu["order"]) == 1
                assert found.num_events == 9


def test_places_count_all_events() -> None:
    for detail in Detail:
        raw = read(as_kineto([flow(0), kernel(1), operator(2), kernel(3)]), detail)
        assert raw.gpu["order"].tolist() == [1, 3]


def test_a_cut_within_nested_objects_is_mended() -> None:
    nested = [{"name": "a", "ts": 1}, {"name": "b", "ts": 2}]
    events = [kernel(i, extra=nested) for i in range(4)]
    text = dumps({"traceEvents": events}).encode()
    for chunk_bytes in range(100, len(text), 7):
        raw = read(text, Detail.ALL, chunk_bytes)
        assert table(raw, "gpu")["name"] == [f"kernel_{i}" for i in range(4)]
        assert codes(raw) == {}


def test_an_escaped_name_is_not_skipped() -> None:
    chunk = as_kineto([operator(i) for i in range(3)] + [operator(3, "record_param_comms")])
    for name in (b"\\u0072ecord_param_comms", b"r\\u0065cord_param_comms"):
        assert name not in chunk
        text = chunk.replace(b"record_param_comms", name)
        raw = read(text, Detail.GPU, len(text) - 60)
        assert table(raw, "host")["name"] == ["record_param_comms"]


def test_two_events_where_the_layout_promises_one() -> None:
    # "},{" in the middle of a kernel: what follows it is an event of its own.
    text = as_kineto([kernel(i) for i in range(8)])
    split = text.replace(b'"kernel_3", ', b'"kernel_3"},{"ph": "X", "cat": "kernel", ')
    assert split != text
    for chunk_bytes in (700, len(text) - 100, 4 << 20):
        raw = read(split, Detail.GPU, chunk_bytes)
        assert content(raw) == content(read(split, Detail.GPU, chunk_bytes, prefilter=False))
        assert raw.num_events == 9
