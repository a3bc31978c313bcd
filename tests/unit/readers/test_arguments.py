"""The arguments of an event, found again in the file that holds it."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path
from typing import Any

import pytest

from diagnose.readers import arguments
from diagnose.readers.arguments import Recorded, arguments_of, stored_bytes
from tests.builder import TraceBuilder

# The builder's zero is 5,000,000 us.
AT_100_US = 5_000_100_000


def text(**more: Any) -> bytes:
    """Two operators of one name and start, told apart by their External ids 1001 and 1002."""
    builder = TraceBuilder(rank=0)
    builder.operator("aten::mm", 100, 10, **{"Input Dims": [[2, 3], [3, 4]]})
    builder.operator("aten::mm", 100, 10, **more)
    builder.event("cpu_op", "bare", 300, 1)
    return builder.text().encode()


def second(path: str) -> Recorded:
    return arguments_of(path, "aten::mm", AT_100_US, external_id=1002)


def written(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_the_event_of_an_identifier_is_found(tmp_path, pack):
    path = written(tmp_path / "trace.json", pack(text(layer="attention")))
    assert second(path) == Recorded({"External id": 1002, "layer": "attention"})
    first = arguments_of(path, "aten::mm", AT_100_US, external_id=1001)
    assert first == Recorded({"External id": 1001, "Input Dims": [[2, 3], [3, 4]]})
    # Without an identifier the first one in the file answers.
    assert arguments_of(path, "aten::mm", AT_100_US) == first


def test_a_member_of_an_archive_is_found_by_its_source_path(tmp_path):
    archive = tmp_path / "traces.zip"
    with zipfile.ZipFile(archive, "w") as held:
        held.writestr("rank0.json", text(layer="zero"))
        held.writestr("rank1.json", text(layer="one"))
    found = second(str(archive / "rank1.json"))
    assert found.arguments == {"External id": 1002, "layer": "one"}
    assert stored_bytes(str(archive / "rank1.json")) == archive.stat().st_size


def test_an_event_is_found_across_pieces(tmp_path, monkeypatch):
    path = written(tmp_path / "trace.json", text(layer="x" * 300))
    monkeypatch.setattr(arguments, "_PIECE", 50)
    monkeypatch.setattr(arguments, "_REACH", 1000)
    assert second(path).arguments == {"External id": 1002, "layer": "x" * 300}


def test_an_event_without_arguments_says_so(tmp_path):
    path = written(tmp_path / "trace.json", text())
    found = arguments_of(path, "bare", 5_000_300_000)
    assert found == Recorded(None, "The file has no arguments for this event.")


@pytest.mark.parametrize(
    ("name", "start", "external"),
    [("aten::add", AT_100_US, None), ("aten::mm", AT_100_US + 1, None), ("aten::mm", AT_100_US, 9)],
)
def test_another_name_start_or_identifier_is_not_found(tmp_path, name, start, external):
    path = written(tmp_path / "trace.json", text())
    found = arguments_of(path, name, start, external_id=external)
    assert found.arguments is None
    assert found.reason.startswith(f"{path}: the event was not found; the file may have changed")


def test_a_file_that_is_gone_is_a_reason(tmp_path):
    path = str(tmp_path / "gone.json")
    assert second(path) == Recorded(None, f"{path}: the file is not there any more.")
    assert stored_bytes(path) is None


def test_a_gzip_file_that_breaks_off_before_the_event_says_where(tmp_path):
    packed = gzip.compress(text(layer="attention"))
    path = written(tmp_path / "trace.json.gz", packed[:60])
    found = second(path)
    assert found.arguments is None
    assert "the event was not found before the file broke off" in found.reason


def test_an_archive_that_is_damaged_is_a_reason(tmp_path):
    archive = tmp_path / "traces.zip"
    with zipfile.ZipFile(archive, "w") as held:
        held.writestr("rank0.json", text())
    written(archive, archive.read_bytes()[:-30])
    found = second(str(archive / "rank0.json"))
    assert found.arguments is None
    assert "cut off or damaged" in found.reason


def test_long_texts_lists_and_depths_are_cut_and_say_how_much_is_missing(tmp_path):
    deep: Any = [[[[[["too deep"]]]]]]
    given = {"long": "x" * 4007, "many": list(range(103)), "deep": deep}
    path = written(tmp_path / "trace.json", text(**given))
    found = second(path).arguments
    assert found is not None
    assert found["long"] == "x" * 4000 + "… (7 more)"
    assert found["many"] == [*range(100), "… (3 more)"]
    assert found["deep"] == [[[["(1 items)"]]]]


def test_numbers_keep_their_digits(tmp_path):
    content = text(share=0).replace(b'"share": 0', b'"share": 0.1234567890123456789')
    found = second(written(tmp_path / "trace.json", content))
    assert found.arguments == {"External id": 1002, "share": "0.1234567890123456789"}
