"""Damaged text: what can be read is read, what cannot is counted, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from diagnose.errors import (
    DamagedInputError,
    DecompressionBombError,
    EmptyInputError,
    InputTooLargeError,
    NotATraceError,
)
from diagnose.readers.kineto import chunks
from diagnose.schema import Detail
from tests.unit.readers.kineto_texts import as_kineto, codes, dumps, kernel, operator, read, table


def lines(*texts: str) -> bytes:
    good = [dumps(kernel(i)) for i in range(4)]
    listed = ",\n".join([*good[:2], *texts, *good[2:]])
    return f'{{"schemaVersion": 1, "traceEvents": [\n{listed}\n]}}'.encode(
        "utf-8", "surrogateescape"
    )


def named(name: str) -> str:
    """An event whose name is written with exactly these characters."""
    return (
        '{"ph": "X", "cat": "kernel", "name": "' + name + '", "pid": 0, "tid": 7,'
        ' "ts": 5277830926900.5, "dur": 1.5, "args": {"device": 0, "stream": 7}}'
    )


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (r"C:\cache\_mod\Users\u1\new", r"C:\cache\_mod\Users\u1\new"),
        (r"C:\dir\q\\", "C:\\dir\\q\\"),
        (r"C:\build" + "\\", "C:\\build\\"),  # the backslash hides the closing quote
        ("a\x01b\nc\td", "a\x01b\nc\td"),
        ("caf\udcc3 \udcff!", "caf\ufffd \ufffd!"),
        (r"half \ud83d pair", "half \ufffd pair"),
        ('std::map<"key">::at', 'std::map<"key">::at'),
        (r"\ud83d\ude00 \q", r"\ud83d\ude00 \q"),
    ],
)
def test_names_stay_legible(written: str, shown: str) -> None:
    for chunk_bytes in (200, 4 << 20):
        raw = read(lines(named(written)), chunk_bytes=chunk_bytes)
        found = table(raw, "gpu")
        assert found["name"] == ["kernel_0", "kernel_1", shown, "kernel_2", "kernel_3"]
        assert found["end_ns"][2] - found["start_ns"][2] == 1500
        assert codes(raw) == {"text-repaired": 1}
        assert raw.complete
        written_out = named(written).encode("utf-8", "surrogateescape")
        offset = lines(named(written)).index(written_out)
        assert f"the first at byte {offset};" in raw.notes[0].sentence


def test_legal_text_is_not_called_repaired() -> None:
    legal = r"a\u0001 \\ \" \/ \ud83d\ude00 " + "\u00e9 \ufffd"
    raw = read(lines(named(legal)))
    assert table(raw, "gpu")["name"][2] == 'a\x01 \\ " / \U0001f600 \u00e9 \ufffd'
    assert codes(raw) == {}


@pytest.mark.parametrize("word", ["inf", "-inf", "nan", "NaN", "-nan", "Infinity", "-Infinity"])
def test_numbers_that_are_not_finite_are_missing(word: str) -> None:
    args = f'"device": 0, "stream": {word}, "occupancy": {word}, "note": "{word}: {word},"'
    event = named("inf, nan").replace('"device": 0, "stream": 7', args)
    raw = read(lines(event))
    assert table(raw, "gpu")["name"][2] == "inf, nan"
    assert table(raw, "gpu")["stream"] == [7, 7, 7, 7, 7]  # from the track: tid 7
    assert codes(raw) == {"value-not-finite": 2}


@pytest.mark.parametrize("key", ["ts", "dur"])
@pytest.mark.parametrize("value", ["nan", "NaN", "null", '""', '"soon"', "", "-Infinity"])
def test_an_event_without_time_is_left_out_and_counted(key: str, value: str) -> None:
    usual = {"ts": "5277830926900.5", "dur": "1.5"}[key]
    raw = read(lines(named("lost").replace(f'"{key}": {usual}', f'"{key}": {value}')))
    assert table(raw, "gpu")["name"] == [f"kernel_{i}" for i in range(4)]
    found = codes(raw)
    assert found.pop("invalid-timestamp") == 1
    assert found == (
        {"value-not-finite": 1}
        if value.lower().strip("-") in ("nan", "infinity")
        else {"text-repaired": 1}
        if not value
        else {}
    )


def test_times_missing_altogether_and_negative_durations() -> None:
    without = {key: value for key, value in kernel(5).items() if key != "ts"}
    host = operator(6)
    host["dur"] = -1
    events = [kernel(0), without, kernel(1, duration="-0.001"), host, kernel(2, duration="0.000")]
    raw = read(as_kineto(events))
    assert table(raw, "gpu")["name"] == ["kernel_0", "kernel_2"]
    assert len(raw.host["order"]) == 0
    assert codes(raw) == {"invalid-timestamp": 2}
    assert "2 GPU events" in raw.notes[0].sentence
    assert "1 host event " in raw.notes[0].sentence


def test_time_zero_is_no_time_where_all_else_is_later() -> None:
    zero = kernel(7, start="0.000", duration="0.000", **{"Collective name": "allreduce"})
    negative = kernel(8, start="-3.000", duration="5.000")
    early = kernel(9, start="0.000", duration="5.000")
    assert codes(read(as_kineto([kernel(1), zero, negative, early]))) == {"invalid-timestamp": 3}
    raw = read(as_kineto([kernel(1, start="20.000"), zero, negative, early]))
    assert codes(raw) == {"invalid-timestamp": 1}  # times from zero on: only the empty one
    assert table(raw, "gpu")["name"] == ["kernel_1", "kernel_8", "kernel_9"]
    assert len(raw.collectives["order"]) == 0


@pytest.mark.parametrize(
    "broken",
    [
        '{"ph": "X", "cat": "kernel" "name" "x" 5',
        '{"ph": "X", "cat": "kernel", "name": "x", "ts": 1, "dur": 2, "args": {"device": 0}',
        '{"ph": "X", "cat": "ker',
        "{]}",
        "hello",
        "}",
    ],
)
def test_an_event_beyond_repair_costs_no_other(broken: str) -> None:
    for chunk_bytes in (128, 4 << 20):
        raw = read(lines(broken), chunk_bytes=chunk_bytes)
        assert table(raw, "gpu")["name"] == [f"kernel_{i}" for i in range(4)], broken
        found = codes(raw)
        assert found.pop("event-dropped") >= 1
        assert found.keys() <= {"text-repaired"}
        assert not raw.complete


@pytest.mark.parametrize("entry", ["17", '"ph"', "[1, 2]", "null", "-1.5e3", "true", "[]", '"],{"'])
def test_entries_that_are_no_events_are_skipped(entry: str) -> None:
    for chunk_bytes in (128, 4 << 20):
        raw = read(lines(entry), chunk_bytes=chunk_bytes)
        assert table(raw, "gpu")["name"] == [f"kernel_{i}" for i in range(4)], entry
        assert codes(raw) == {"not-an-event": 1}
        assert raw.complete


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b"},\n{", b"}, ,\n{", {"text-repaired": 1}),
        (b"},\n{", b"},,,,\n{", {"text-repaired": 1}),
        (b"}}\n]", b"}},\n]", {"text-repaired": 1}),
        (b"},\n{", b"},\x00\x00\n{", {"text-repaired": 1}),
        (b"},\n{", b"};\n{", {"event-dropped": 1}),  # what stands between counts as an entry
    ],
)
def test_what_stands_between_events(old: bytes, new: bytes, expected: dict[str, int]) -> None:
    for chunk_bytes in (150, 4 << 20):
        raw = read(lines().replace(old, new, 1), chunk_bytes=chunk_bytes)
        assert table(raw, "gpu")["name"] == [f"kernel_{i}" for i in range(4)]
        assert codes(raw) == expected


def test_a_missing_comma() -> None:
    raw = read(lines().replace(b"},\n{", b"}\n{", 1))
    assert table(raw, "gpu")["name"] == [f"kernel_{i}" for i in range(4)]


@pytest.mark.parametrize(
    ("ts", "start_ns"),
    [
        ("1000.", 1_000_000),
        (".5", 500),
        ("+5", 5_000),
        ("007", 7_000),
        ("0x10", None),
        ("1_000", None),
        ("None", None),
        ("undefined", None),
        ("-.25", -250),
        ("1e3", 1_000_000),
        ("1.5E+06", 1_500_000_000),
        ("2500e-3", 2_500),
        ("100000000000000000000e-18", 100_000),
        ("9" * 5000, None),
        ("true", None),
        ("{}", None),
    ],
)
def test_numbers_that_json_does_not_know(ts: str, start_ns: int | None) -> None:
    args = '"device": 0, "stream": 7, "other": None, "more": [1], "text": "a: None, b: +5"'
    event = named("odd").replace('"ts": 5277830926900.5', f'"ts": {ts}')
    text = f'{{"traceEvents": [{event}]}}'.replace('"device": 0, "stream": 7', args).encode()
    raw = read(text)
    found = table(raw, "gpu")
    assert found["start_ns"] == ([] if start_ns is None else [start_ns])
    expected = {"text-repaired": 1} | ({"invalid-timestamp": 1} if start_ns is None else {})
    assert codes(raw) == expected


@pytest.mark.parametrize("blank", ["\f", "\v", "\u00a0", "\u2028", "\u3000"])
def test_blanks_that_json_does_not_know(blank: str) -> None:
    event = named("a, b").replace(', "', f',{blank}"')
    raw = read(lines(event))
    assert table(raw, "gpu")["name"][2] == "a, b"
    assert codes(raw) == {"text-repaired": 1}


def test_an_event_that_never_ends_does_not_swallow_its_successors() -> None:
    open_dict = dumps(kernel(7))[:-1]
    open_list = dumps(kernel(7))[:-2] + ', "list": [1, 2'
    open_string = dumps(kernel(7))[:-2] + ', "text": "abc'
    for broken in (open_dict, open_list, open_string):
        for chunk_bytes in (150, 1000, 4 << 20):
            raw = read(lines(broken), chunk_bytes=chunk_bytes)
            assert table(raw, "gpu")["name"] == [f"kernel_{i}" for i in range(4)], broken
            assert codes(raw) == {"event-dropped": 1}
            offset = lines(broken).index(broken.encode())
            assert f"the first at byte {offset} " in raw.notes[0].sentence


@pytest.mark.parametrize("event", ['{"ph" x}', '{"ph": "X", "name": "a" "b": 5}'])
def test_a_trace_of_which_no_event_can_be_read(event: str) -> None:
    with pytest.raises(DamagedInputError, match="byte 17 ") as caught:
        read(f'{{"traceEvents": [{event}]}}'.encode())
    assert caught.value.hint


def test_damage_in_the_last_event() -> None:
    events = ",\n".join([dumps(kernel(0)), named(r"\q")])
    for tail in ("]}", "]", "]\n}\n", '], "traceName": "x"}'):
        raw = read(f'{{"traceEvents": [{events}{tail}'.encode())
        assert table(raw, "gpu")["name"] == ["kernel_0", "\\q"]
        assert raw.complete  # the events are; metadata may be missing
        assert ("truncated" in codes(raw)) is (tail == "]")


def test_every_cut_of_a_trace_keeps_the_complete_events() -> None:
    text = as_kineto([kernel(i) for i in range(4)], {"distributedInfo": {"rank": 3}})
    first = text.index(b"{\n    ")
    ends = [at + 4 for at in range(len(text)) if text.startswith(b"\n  }", at)]
    complete = text.rindex(b"}") + 1
    closed = text.index(b"]", ends[-1]) + 1
    for detail in (Detail.GPU, Detail.ALL):
        for length in range(1, len(text) + 1):
            expected = sum(end <= length for end in ends)
            if not expected:
                with pytest.raises((DamagedInputError, NotATraceError)):
                    read(text[:length], detail, 300)
                continue
            raw = read(text[:length], detail, 300)
            assert table(raw, "gpu")["name"] == [f"kernel_{i}" for i in range(expected)]
            assert raw.metadata["distributedInfo"] == {"rank": 3}
            assert raw.complete is (length >= closed), length
            assert ("truncated" in codes(raw)) is (length < complete)
    with pytest.raises(DamagedInputError, match="byte"):
        read(text[:first])


def test_the_note_on_a_cut_names_the_byte_of_the_lost_event() -> None:
    text = as_kineto([kernel(i) for i in range(4)])
    third = text.index(b'{\n    "ph": "X", "cat": "kernel", "name": "kernel_2"')
    note = read(text[: third + 60]).notes[0]
    assert note.code == "truncated"
    assert f"byte {third} " in note.sentence
    assert "60 bytes" in note.sentence


def test_text_after_the_end_is_told() -> None:
    raw = read(as_kineto([kernel(0)]) + b'{"traceEvents": []}')
    assert codes(raw) == {"text-repaired": 1}
    assert "19 bytes" in raw.notes[0].sentence
    assert codes(read(as_kineto([kernel(0)]) + b"\n\x00\x00 \n")) == {}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"", EmptyInputError),
        (b"   \n", NotATraceError),
        (b'{"schemaVersion": 1, "deviceProperties": []}', NotATraceError),
        (b'{"schemaVersion": 1, "deviceProp', DamagedInputError),
        (b'{"traceEvents": null}', NotATraceError),
        (b'{"data": {"traceEvents": [{"ph": "X"}]}}', NotATraceError),
        (b"[1, 2, 3]", NotATraceError),
        (b'[{"a": 1}]', NotATraceError),
        (b'"traceEvents"', NotATraceError),
        (b"hello world", NotATraceError),
        (b"\x00\x01\x02", NotATraceError),
        (b"<!DOCTYPE html><html>", NotATraceError),
        (b"\x80\x04\x95abc", NotATraceError),
        (b"\x28\xb5\x2f\xfdabc", NotATraceError),
        (b"{" * 100_000, DamagedInputError),
        (b"[" * 100_000, (DamagedInputError, NotATraceError)),
        (b'{"traceEvents": ' + b"[" * 100_000, (DamagedInputError, NotATraceError)),
        (b'{"traceEvents": [' + b'{"args":' * 100_000, (DamagedInputError, NotATraceError)),
    ],
)
def test_what_is_no_trace_is_refused(text: bytes, error: Any) -> None:
    with pytest.raises(error) as caught:
        read(text)
    assert "a.json" in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "text", [b'{"traceEvents": []}', b"[]", b'\xef\xbb\xbf{"traceEvents":[ ]}']
)
def test_an_empty_list_is_a_trace_of_nothing(text: bytes) -> None:
    raw = read(text)
    assert raw.num_events == 0
    assert raw.complete
    assert raw.notes == []
    assert raw.num_bytes == len(text)


def test_an_event_larger_than_any_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagnose.readers.kineto.reader.LARGEST_EVENT", 10_000)
    giant = named("x" * 50_000)
    for detail in Detail:
        raw = read(lines(giant), detail, 1000)
        assert table(raw, "gpu")["name"] == [f"kernel_{i}" for i in range(4)]
        assert codes(raw) == {"event-dropped": 1}
        assert raw.num_events == 5


class Bomb:
    """Endless text that unpacks from next to nothing."""

    def __init__(self, text: bytes, filler: bytes) -> None:
        self.text, self.filler = text, filler
        self.stored_bytes_read = 1000
        self.given = 0

    def read(self, size: int, /) -> bytes:
        self.given += size
        if self.given > 1 << 24:
            raise AssertionError("read on and on")
        text, self.text = self.text, b""
        return (text + self.filler * size)[:size]


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"a": "', b'{"a": [', b'{"traceEvents": [', b"[{}, "]
)
@pytest.mark.parametrize("filler", [b" ", b"\x00", b"a", b"[", b'{"":', b"{},", b'{"ph":],'])
def test_a_bomb_is_stopped(text: bytes, filler: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    from diagnose.readers.kineto.reader import KinetoReader
    from diagnose.readers.raw import ReadOptions

    monkeypatch.setattr(chunks, "BOMB_BYTES", 1 << 18)
    refused = pytest.raises((DecompressionBombError, NotATraceError))
    with pytest.raises(DecompressionBombError, match="unpack") if text else refused:
        KinetoReader(1 << 14).read(Bomb(text, filler), "a.json", ReadOptions())


def test_columns_beyond_the_memory_limit_are_refused() -> None:
    import io

    from diagnose.readers.kineto.reader import KinetoReader
    from diagnose.readers.raw import ReadOptions

    text = as_kineto([kernel(i) for i in range(1000)])
    with pytest.raises(InputTooLargeError, match="limit") as caught:
        KinetoReader(10_000).read(
            io.BytesIO(text), "a.json", ReadOptions(memory_limit_bytes=20_000)
        )
    assert "--only gpu" in caught.value.hint
    KinetoReader().read(io.BytesIO(text), "a.json", ReadOptions(memory_limit_bytes=10**6))
