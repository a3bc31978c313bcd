from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from diagnose.agent.protocol import MAX_LINE_BYTES, Lines, RefusalError, decode, encode, number_of


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        yield near, far


def test_message_is_one_line() -> None:
    assert encode({"ok": True, "error": "a\nb é"}) == b'{"ok":true,"error":"a\\nb \\u00e9"}\n'


def test_lines_are_cut_from_any_pieces(ends) -> None:
    near, far = ends
    lines = Lines(near)
    assert lines.next() is None
    for piece in (b'{"op', b'": "a"}', b"\n\n{}"):
        far.sendall(piece)
        assert lines.receive()
    assert [lines.next(), lines.next(), lines.next()] == [b'{"op": "a"}', b"", None]
    far.sendall(b"\n")
    assert lines.receive()
    assert lines.next() == b"{}"


def test_nothing_there_yet_is_not_the_end(ends) -> None:
    near, far = ends
    lines = Lines(near)
    assert lines.receive()
    far.close()
    assert not lines.receive()


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_endless_line_is_refused(ends, ending: bytes) -> None:
    near, far = ends
    near.setblocking(True)
    lines = Lines(near)
    sent = 0
    with pytest.raises(RefusalError) as refusal:  # noqa: PT012 - the last receive is the one
        while sent <= MAX_LINE_BYTES + 65536:
            far.sendall(b"x" * 65536 + (ending if sent > MAX_LINE_BYTES else b""))
            sent += 65536
            lines.receive()
            lines.next()
    assert refusal.value.code == "bad-request"
    assert sent <= MAX_LINE_BYTES + 2 * 65536


@pytest.mark.parametrize(
    "line",
    [b"", b"nonsense", b"[]", b"1", b"{}", b'{"op": 1}', b"\xff\xfe", b'"op"', b"[" * 100_000],
)
def test_what_is_no_request_is_refused(line: bytes) -> None:
    with pytest.raises(RefusalError) as refusal:
        decode(line)
    assert refusal.value.reply() == {
        "ok": False,
        "code": "bad-request",
        "error": refusal.value.sentence,
    }


def test_request() -> None:
    assert decode(json.dumps({"op": "arm", "marks": 2}).encode()) == {"op": "arm", "marks": 2}


@pytest.mark.parametrize("value", ["3", True, float("nan"), -1, 11, [], {}])
def test_number_out_of_range_is_refused(value: object) -> None:
    with pytest.raises(RefusalError, match=r"^n must be a number from 0 to 10$"):
        number_of({"n": value}, "n", 2, 0, 10)


def test_number() -> None:
    assert number_of({}, "n", 2, 0, 10) == 2
    assert number_of({"n": None}, "n", 2, 0, 10) == 2
    assert number_of({"n": 10}, "n", 2, 0, 10) == 10
