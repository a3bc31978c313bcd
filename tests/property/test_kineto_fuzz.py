"""Damage of any kind: an answer or an InputError, and what stands before the damage is kept."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.errors import InputError
from diagnose.readers.containers import open_streams
from diagnose.readers.kineto.reader import KinetoReader
from diagnose.readers.raw import ReadOptions
from diagnose.schema import Detail
from tests.unit.readers.kineto_texts import (
    as_kineto,
    call,
    flow,
    kernel,
    layouts,
    operator,
    process,
    read,
    table,
)

EVENTS = [
    *process(0, "GPU 0"),
    *(make(i) for i in range(5) for make in (operator, call, flow, kernel)),
    operator(9, "ProfilerStep#1", "user_annotation"),
]
TEXTS = layouts(EVENTS)


def ends_of_kernels(text: bytes) -> list[int]:
    """For each kernel the offset behind all of its text, and behind its separator."""
    ends = []
    for i in range(5):
        at = max(
            text.index(b"kernel_%d" % i),
            text.index(b'"correlation"', text.index(b"kernel_%d" % i) - 300),
        )
        following = text.find(b'"ph"', text.index(b"}", at) + 30)
        ends.append(following if following > 0 else len(text))
    return ends


def kernels_before(text: bytes, offset: int) -> list[str]:
    return [f"kernel_{i}" for i, end in enumerate(ends_of_kernels(text)) if end <= offset]


@settings(max_examples=150)
@given(
    layout=st.sampled_from(sorted(TEXTS)),
    position=st.floats(0, 1, exclude_max=True),
    replacement=st.one_of(
        st.binary(min_size=0, max_size=4),
        st.sampled_from([b'"', b"{", b"}", b"[", b"]", b"\\", b"},{", b'},\n  {\n    "ph": "X"']),
        st.sampled_from([b"nan", b"\x00" * 50, b"\xef\xbb\xbf", b"]}", b"1e999"]),
    ),
    removed=st.integers(0, 40),
    detail=st.sampled_from(Detail),
    chunk_bytes=st.sampled_from([200, 1000, 4 << 20]),
)
def test_a_hole_in_the_text(
    layout: str, position: float, replacement: bytes, removed: int, detail: Detail, chunk_bytes: int
) -> None:
    text = TEXTS[layout]
    at = int(position * len(text))
    damaged = text[:at] + replacement + text[at + removed :]
    try:
        found = table(read(damaged, detail, chunk_bytes), "gpu")["name"]
    except InputError:
        assert not kernels_before(text, at)
        return
    expected = kernels_before(text, at)
    assert found[: len(expected)] == expected


@settings(max_examples=100)
@given(data=st.binary(max_size=300), detail=st.sampled_from(Detail))
def test_any_bytes_in_the_list_of_events(data: bytes, detail: Detail) -> None:
    good = as_kineto([kernel(0)])
    cut = good.index(b"\n  ],")
    raw = read(good[:cut] + b",\n" + data + good[cut:], detail, 150)
    assert table(raw, "gpu")["name"][:1] == ["kernel_0"]


@settings(max_examples=60)
@given(data=st.binary(max_size=200), head=st.sampled_from([b"", b"{", b"[", b'{"traceEvents":[']))
def test_any_bytes_at_all(data: bytes, head: bytes) -> None:
    try:
        raw = read(head + data, Detail.ALL, 64)
    except InputError:
        return
    assert raw.num_bytes == len(head + data)


@pytest.fixture(scope="module")
def packed() -> bytes:
    return gzip.compress(as_kineto(EVENTS * 3), mtime=0)


@settings(max_examples=60)
@given(position=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255), cut=st.booleans())
def test_damage_in_compressed_data(
    packed: bytes, tmp_path_factory: pytest.TempPathFactory, position: float, value: int, cut: bool
) -> None:
    at = int(position * len(packed))
    damaged = packed[:at] if cut else packed[:at] + bytes([value]) + packed[at + 1 :]
    path = Path(tmp_path_factory.mktemp("packed", numbered=True)) / "a.json.gz"
    path.write_bytes(damaged)
    try:
        ((member, stream),) = open_streams(str(path))
        raw = KinetoReader(500).read(stream, member, ReadOptions())
    except InputError:
        return
    assert raw.notes or table(raw, "gpu")["name"] == [f"kernel_{i}" for i in range(5)] * 3
