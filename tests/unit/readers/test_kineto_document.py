"""What stands around the events: metadata before and after, decoys, large values."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.readers.kineto_texts import codes, dumps, kernel, read, table

INFO = {"backend": "nccl", "rank": 5, "world_size": 8}


def document(before: dict[str, Any], after: dict[str, Any], indent: int | None = None) -> bytes:
    events = [kernel(0), kernel(1)]
    return dumps({**before, "traceEvents": events, **after}, indent=indent).encode()


@pytest.mark.parametrize("chunk_bytes", [7, 100, 4 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_metadata_counts_before_and_after_the_events(chunk_bytes: int, indent: int | None) -> None:
    known = {
        "schemaVersion": 1,
        "distributedInfo": INFO,
        "host_name": 'node-"a" \u00e9 [{',
        "baseTimeNanoseconds": 1759276800000000001,
        "deviceProperties": [{"id": 0, "name": "H100"}, {"id": 1}],
    }
    keys = list(known.items())
    for split in range(len(keys) + 1):
        text = document(dict(keys[:split]), dict(keys[split:]), indent)
        raw = read(text, chunk_bytes=chunk_bytes)
        assert raw.metadata == known
        assert raw.base_ns == 1759276800000000001
        assert len(raw.gpu["order"]) == 2
        assert raw.notes == []


def test_decoys_do_not_count() -> None:
    decoys = {
        "note": '"traceEvents": [{"ph": "X"}], "distributedInfo": {"rank": 1}',
        "nested": {"traceEvents": [kernel(7)], "distributedInfo": {"rank": 2}},
    }
    inner = kernel(3, distributedInfo={"rank": 3}, traceEvents=[kernel(8)])
    text = dumps(decoys | {"traceEvents": [inner], "distributedInfo": INFO}).encode()
    for chunk_bytes in (50, 4 << 20):
        raw = read(text, chunk_bytes=chunk_bytes)
        assert table(raw, "gpu")["name"] == ["kernel_3"]
        assert raw.metadata["distributedInfo"] == INFO
        assert raw.notes == []


def test_large_values_are_skipped_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagnose.readers.kineto.document.LARGEST_HEADER", 50_000)
    snapshot = [{"frames": [{"name": f"f{i}", "line": i, "text": '"}]\\'}]} for i in range(5000)]
    for before, after in (
        ({"a": snapshot}, {}),
        ({}, {"a": snapshot}),
        ({"a": 1}, {"a": snapshot}),
    ):
        text = document({"schemaVersion": 1, **before}, {**after, "distributedInfo": INFO})
        assert len(text) > 300_000
        raw = read(text, chunk_bytes=10_000)
        assert len(raw.gpu["order"]) == 2
        assert raw.metadata["distributedInfo"] == INFO
        assert raw.metadata.get("a") in (None, 1)
        assert raw.notes == []


def test_damage_in_the_metadata_does_not_cost_the_events() -> None:
    bad = rb'{"path": "C:\Users\x", "bw": inf, "distributedInfo": {"rank": 5}, "traceEvents": ['
    for head in (bad, b'{"a": "b"c" , ' + bad[1:], b'{"a": , ' + bad[1:]):
        raw = read(head + dumps(kernel(0)).encode() + b"]}")
        assert table(raw, "gpu")["name"] == ["kernel_0"]
    assert read(bad + dumps(kernel(0)).encode() + b"]}").metadata["distributedInfo"] == {"rank": 5}
    tail = b'{"traceEvents": [' + dumps(kernel(0)).encode() + b'], "a" "b", "c": 1}'
    raw = read(tail)
    assert len(raw.gpu["order"]) == 1
    assert set(codes(raw)) <= {"text-repaired", "truncated"}
    assert codes(raw)


def test_two_lists_of_events_are_both_read() -> None:
    part = dumps([kernel(0)]).encode(), dumps([kernel(1)]).encode()
    raw = read(b'{"traceEvents": ' + part[0] + b', "x": 1, "traceEvents": ' + part[1] + b"}")
    assert table(raw, "gpu")["name"] == ["kernel_0", "kernel_1"]
    assert raw.gpu["order"].tolist() == [0, 1]


def test_strings_longer_than_any_window_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagnose.readers.kineto.document.LARGEST_HEADER", 50_000)
    long = '\\" [{"traceEvents": [' * 20_000 + "\\"
    for value in (long, [long, 1, {"b": long}], "\\" * 300_001):
        for before, after in (({"a": value}, {}), ({}, {"a": value})):
            text = document({"schemaVersion": 1, **before}, {**after, "distributedInfo": INFO})
            for chunk_bytes in (10_007, 1 << 16):
                raw = read(text, chunk_bytes=chunk_bytes)
                assert table(raw, "gpu")["name"] == ["kernel_0", "kernel_1"]
                assert raw.metadata == {"schemaVersion": 1, "distributedInfo": INFO}
                assert raw.notes == []


def test_keys_may_be_escaped() -> None:
    text = document({"host_name": "a"}, {}).replace(b"traceEvents", b"trace\\u0045vents")
    raw = read(text.replace(b"host_name", b"host\\u005fname"))
    assert raw.metadata == {"host_name": "a"}
    assert table(raw, "gpu")["name"] == ["kernel_0", "kernel_1"]


@pytest.mark.parametrize("value", ["soon", None, -5, 1.5, 1 << 70])
def test_a_base_time_that_is_none(value: Any) -> None:
    assert read(document({"baseTimeNanoseconds": value}, {})).base_ns is None
