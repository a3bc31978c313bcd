"""Bytes lost or added in the middle of a file: no other event is lost, and the loss is told."""

from __future__ import annotations

import pytest

from diagnose.readers.raw import RawFile
from diagnose.schema import Detail
from tests.unit.readers.kineto_texts import as_kineto, call, codes, dumps, kernel, read, table

KERNELS = [kernel(i) for i in range(40)]


def names(raw: RawFile) -> list[str]:
    return [str(name) for name in table(raw, "gpu")["name"]]


def listed(events: list[str]) -> bytes:
    joined = ",\n".join(events)
    return f'{{"traceEvents": [\n{joined}\n], "traceName": "a"}}'.encode()


def sentence(raw: RawFile, code: str) -> str:
    return next(note.sentence for note in raw.notes if note.code == code)


@pytest.mark.parametrize("filler", [b"\x00", bytes(range(32)), bytes(range(256))])
@pytest.mark.parametrize("place", [b'el_10"', b'"ts": 5277830927', b'"args"'])
@pytest.mark.parametrize("detail", [Detail.GPU, Detail.ALL])
def test_a_hole_costs_the_events_it_touches_and_is_told(
    filler: bytes, place: bytes, detail: Detail
) -> None:
    """From within kernel 10 to within kernel 30, whatever stands there now."""
    text = as_kineto(KERNELS)
    first = text.rindex(b'{\n    "ph"', 0, text.index(b'"kernel_10"'))
    begin = text.index(place, first)
    end = text.index(b'"dur"', text.index(b'"kernel_30"'))
    hole = (filler * (end - begin))[: end - begin]
    raw = read(text[:begin] + hole + text[end:], detail)
    assert names(raw) == [f"kernel_{i}" for i in range(40) if not 10 <= i <= 30]
    assert codes(raw) == {"event-dropped": 1}
    assert not raw.complete
    after = text.index(b"}\n  },", end) + len(b"}\n  }")
    told = sentence(raw, "event-dropped")
    assert f"at least 1 event could not be read and left out, the first at byte {first} " in told
    assert f" {after - first} bytes in all, room for about " in told


def test_a_hole_that_begins_in_an_event_nobody_wants_is_seen() -> None:
    """Operators are skipped unread where only GPU work is kept; what lies between is not."""
    events = [call(0), *KERNELS, call(1), kernel(50)]
    text = as_kineto(events)
    begin, end = text.index(b"LaunchKernel"), text.rindex(b"LaunchKernel")
    for filler in (b"\x00", b"~"):
        raw = read(text[:begin] + filler * (end - begin) + text[end:], Detail.GPU)
        assert names(raw) == ["kernel_50"]
        if filler == b"\x00":
            assert codes(raw) == {"event-dropped": 1}


def test_zeros_between_events_are_a_hole_but_not_at_the_end() -> None:
    good = [dumps(kernel(i)) for i in range(4)]
    raw = read(listed([good[0], "\0" * 500 + good[1], *good[2:]]))
    assert names(raw) == [f"kernel_{i}" for i in range(4)]
    assert codes(raw) == {"event-dropped": 1}
    padded = read(listed(good)[:-20].rstrip(b'], "traceName') + b"\x00" * 500)
    assert "event-dropped" not in codes(padded)
    assert not padded.complete


def test_a_few_control_characters_are_a_name_and_no_hole() -> None:
    event = dumps(kernel(1)).replace("kernel_1", "red \x1b[31m\x01\x02 end")
    raw = read(listed([dumps(kernel(0)), event]))
    assert names(raw) == ["kernel_0", "red \x1b[31m\x01\x02 end"]
    assert raw.complete


def test_an_event_with_the_keys_of_two_is_none() -> None:
    """The quote that is missing would make one name of the rest of one event and half another."""
    first, second = dumps(kernel(1)), dumps(kernel(2))
    merged = first[: first.index("rnel_1")] + second[second.index('"ph"') :]
    raw = read(listed([dumps(kernel(0)), merged.replace("ke", "k\\q", 1), dumps(kernel(3))]))
    assert names(raw) == ["kernel_0", "kernel_3"]
    assert codes(raw) == {"event-dropped": 1}


@pytest.mark.parametrize("entry", ["[]", "[1, [2]]", "null", "5", '"x"', "true", '[{"a": 1}]'])
@pytest.mark.parametrize("chunk_bytes", [128, 4 << 20])
def test_entries_that_are_no_events_cost_nothing(entry: str, chunk_bytes: int) -> None:
    good = [dumps(kernel(i)) for i in range(4)]
    raw = read(listed([*good[:2], entry, *good[2:]]), chunk_bytes=chunk_bytes)
    assert names(raw) == [f"kernel_{i}" for i in range(4)]
    assert codes(raw) == {"not-an-event": 1}
    assert raw.complete


def test_events_in_a_list_within_the_list_are_missing() -> None:
    good = [dumps(kernel(i)) for i in range(3)]
    raw = read(listed([good[0], f"[{good[1]}]", good[2]]))
    assert names(raw) == ["kernel_0", "kernel_2"]
    assert codes(raw) == {"event-dropped": 1}


@pytest.mark.parametrize("junk", ["]", "]}", "]}]}", '], "x": 5}, ', "]}\x00}", "] ~ "])
@pytest.mark.parametrize("chunk_bytes", [200, 4 << 20])
@pytest.mark.parametrize("bare", [False, True])
def test_brackets_too_early_do_not_end_the_events(junk: str, chunk_bytes: int, bare: bool) -> None:
    good = [dumps(kernel(i)) for i in range(6)]
    events = f"{','.join(good[:3])}{junk}{','.join(good[3:])}"
    text = f"[{events}]" if bare else f'{{"traceEvents": [{events}], "traceName": "late"}}'
    raw = read(text.encode(), chunk_bytes=chunk_bytes)
    assert names(raw) == [f"kernel_{i}" for i in range(6)]
    assert codes(raw) == {"event-dropped": 1}
    if not bare:
        assert raw.metadata["traceName"] == "late"


def test_a_second_trace_behind_the_first_is_told_and_left_alone() -> None:
    document = listed([dumps(kernel(0))])
    bare = f"[{dumps(kernel(0))}]".encode()
    for text in (document * 2, document + b"\n" + document, bare + b" " + bare):
        raw = read(text)
        assert raw.num_events == 1
        assert codes(raw) == {"text-repaired": 1}
        assert "after the end of the trace were not read" in raw.notes[0].sentence
