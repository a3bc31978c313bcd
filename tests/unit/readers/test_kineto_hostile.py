"""Text made to take for ever or to fill the memory: the time grows with its length, no faster."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from diagnose.errors import InputError
from diagnose.schema import Detail
from tests.unit.readers.kineto_texts import codes, dumps, kernel, operator, read

KERNEL = dumps(kernel(1)).encode()
BEFORE = b'{"traceEvents": [' + KERNEL + b","
AFTER = b"," + KERNEL + b"]}"
SIZE = 500_000
MARK = b'{"ph":"B","cat":"kernel","name":"a","pid":1,"tid":1,"ts":1},'


def times(text: bytes, size: int = SIZE) -> bytes:
    return text * (size // len(text))


# Repeated within the list of events.
REPEATED = [
    b'{"',
    b'{"args":',
    b"[",
    b"[1,",
    b"}",
    b"},",
    b'",',
    b'"}],{',
    b" ",
    b"\x00",
    b",",
    b"17,",
    b'"a",',
    b'{"zz":\\q},',
    b'{"ph":"X"};\n',
    b'{"ph":"X","name":"\\q"},\n',
    b'{"ph":"X","name":"\x01\xff"},\n',
    b'{"ph":"X","args":{"a":1},\n',
    b'{"ph":"X","args":[{"a":1},\n',
    b'{"ph":"X","name":"a},\n',
    b'{"ph":"X" x},\n',
    b'{"ph":"X","cat":"kernel","ts":1e999,"dur":nan},',
    b'[{"ph":"X"},',
    MARK,
]
# Once, as one odd event between two sound ones.
ONCE = {
    "deep": b'{"args":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "quotes": b'{"ph":"X","name":"' + times(b'a" b') + b'"}',
    "backslashes": b'{"ph":"X","name":"' + b"\\" * (SIZE + 1) + b'"}',
    "blanks": b'{"ph":1 "q"}' + b" " * SIZE + b"x",
    "blanks in it": b'{"ph":"X","name":"a"' + b" " * SIZE + b'x"}',
    "nan(": b'{"ph":"X","a":[' + times(b"nan(,") + b"]}",
    "events in it": b'{"ph":"X","name":"a\n' + times(b'{"ph":"X" x},\n') + b"}",
    "beginnings": b'{"ph":"X","name":\\q,"args":[' + times(b',{"ph":"') + b"}",
    "digits of ts": b'{"ph":"X","cat":"kernel","dur":1,"ts":' + b"9" * SIZE + b"}",
    "digits of pid": b'{"ph":"X","cat":"kernel","ts":1,"dur":1,"pid":' + b"9" * SIZE + b"}",
    "digits of args": b'{"ph":"X","args":{"stream":' + b"9" * SIZE + b"}}",
}
# Whole files.
DECOYS = times(b'"traceEvents":[],')
FILES = {
    "decoys": b'{"a":{' + DECOYS + b'"b":1},"traceEvents":[' + KERNEL + b"]}",
    "damaged decoys": b'{"a":\\q{' + DECOYS + b'"b":1},"traceEvents":[' + KERNEL + b"]}",
    "many lists": b"{" + DECOYS + b'"traceEvents":[' + KERNEL + b"]}",
    "deep lists": times(b'{"traceEvents":['),
    "deep header": b'{"a":' + b"[" * SIZE,
    "long header": b'{"a":"' + b"x" * SIZE + b'","traceEvents":[' + KERNEL + b"]}",
    "many keys": b"{" + times(b'"a":1,') + b'"traceEvents":[' + KERNEL + b"]}",
    "digits in the header": b'{"a":' + b"9" * SIZE + b',"traceEvents":[' + KERNEL + b"]}",
    "openers": times(b'{"'),
}


@pytest.mark.parametrize("part", REPEATED, ids=ascii)
def test_repeated_without_end(part: bytes) -> None:
    begin = time.process_time()
    raw = read(BEFORE + times(part) + AFTER)
    # The slowest needs 1 s; one that looks at the rest of the text from each place needs minutes.
    assert time.process_time() - begin < 8
    assert raw.gpu["correlation"][0] == 1
    assert codes(raw)


@pytest.mark.parametrize("name", ONCE)
def test_one_odd_event(name: str) -> None:
    begin = time.process_time()
    raw = read(BEFORE + ONCE[name] + AFTER)
    assert time.process_time() - begin < 8
    numbers = raw.gpu["correlation"].tolist()
    assert (numbers[0], numbers[-1], numbers.count(1)) == (1, 1, 2)


@pytest.mark.parametrize("name", FILES)
def test_odd_files(name: str) -> None:
    begin = time.process_time()
    try:
        raw = read(FILES[name])
    except InputError as error:
        refusal = str(error)
    else:
        refusal = ""
        assert raw.gpu["correlation"].tolist() == [1] or codes(raw)
    assert len(refusal) < 300
    assert time.process_time() - begin < 8


def test_memory_does_not_grow_with_what_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagnose.readers.kineto.document.LARGEST_HEADER", 1 << 20)
    events = b",".join([dumps(operator(1)).encode()] * 40_000)
    skipped = b'{"a": "' + b"x" * 12_000_000 + b'", "traceEvents": [' + events + b"]}"
    tracemalloc.start()
    try:
        raw = read(skipped, Detail.GPU, 1 << 18)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert raw.num_events == 40_000
    assert peak < 8 << 20
