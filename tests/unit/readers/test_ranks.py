"""Which rank wrote a file."""

from __future__ import annotations

from typing import Any

import pytest

from diagnose.readers.assemble import ranks


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("rank3.json", 3),
        ("rank_3.json", 3),
        ("rank-00003.trace.json.gz", 3),
        ("a/b/worker_rank3.1733059200.pt.trace.json", 3),
        ("Rank12.json", 12),
        ("rank00000.trace.json.gz", 0),
        ("node-a_4711.1733059200123456789.pt.trace.json", None),
        ("trank3x.json", None),
        ("trank3.json", None),
        ("rank3x.json", None),
        ("frank3.json", None),
        ("ranks3.json", None),
        ("rank.json", None),
        ("rank1_vs_rank2.json", None),
        ("rank1_rank1.json", 1),
        ("rank99999999999999999999.json", None),
        ("rank_5/node.pt.trace.json", 5),
        ("rank_5\\node.pt.trace.json", 5),
        ("test_rank5/trace.json", None),
        ("archive.zip/rank7.json", 7),
    ],
)
def test_rank_in_file_name(path: str, rank: int | None) -> None:
    assert ranks.in_file_name(path) == rank


@pytest.mark.parametrize(
    ("label", "rank"),
    [
        ("rank 3", 3),
        ("rank3", 3),
        ("4242 | Rank 3: python3", 3),
        ("python3 rank=11 | GPU 0", 11),
        ("python3 | GPU 0", None),
        ("4242", None),
        ("ranking 3", None),
    ],
)
def test_rank_in_the_name_of_a_process(label: str, rank: int | None) -> None:
    assert ranks.in_label(label) == rank


@pytest.mark.parametrize(
    ("metadata", "rank"),
    [
        ({"distributedInfo": {"rank": 6}}, 6),
        ({"distributedInfo": {"rank": 0}}, 0),
        ({"distributedInfo": {"rank": "6"}}, 6),
        ({"distributedInfo": {"rank": -1}}, None),
        ({"distributedInfo": {"rank": True}}, None),
        ({"distributedInfo": {"rank": 1.0}}, None),
        ({"distributedInfo": {"rank": None}}, None),
        ({"distributedInfo": {"rank": [1]}}, None),
        ({"distributedInfo": "rank 3"}, None),
        ({"rank": 3, "job": {"rank": 99}}, None),
        ({}, None),
    ],
)
def test_rank_in_metadata(metadata: dict[str, Any], rank: int | None) -> None:
    assert ranks.in_metadata(metadata) == rank


def test_order_of_belief() -> None:
    told = {"manifest": 2, "labelled": 4, "user": 5}
    metadata = {"distributedInfo": {"rank": 1}}
    assert ranks.find("rank3.json", metadata, **told)[:2] == (1, "metadata")
    assert ranks.find("rank3.json", {}, **told)[:2] == (2, "manifest")
    assert ranks.find("rank3.json", {}, labelled=4, user=5)[:2] == (3, "file name")
    assert ranks.find("x.json", {}, labelled=4, user=5)[:2] == (4, "process name")
    assert ranks.find("x.json", {}, user=5)[:2] == (5, "user")


def test_agreement_is_silent_and_contradiction_is_not() -> None:
    metadata = {"distributedInfo": {"rank": 3}}
    assert ranks.find("rank3.json", metadata, manifest=3).notes == ()
    (note,) = ranks.find("rank4.json", metadata, manifest=5).notes
    assert (note.code, note.severity) == ("rank-contradiction", "warning")
    assert "rank 3" in note.sentence
    assert "manifest says 5" in note.sentence
    assert "file name says 4" in note.sentence


@pytest.mark.parametrize(
    ("path", "told", "severity"),
    [
        ("rank4.json", {}, "info"),
        ("x.json", {"labelled": 4}, "info"),
        ("x.json", {"manifest": 4}, "warning"),
        ("x.json", {"user": 4}, "warning"),
        ("rank4.json", {"manifest": 3}, "info"),
    ],
)
def test_what_a_manifest_or_a_person_said_of_a_file_is_not_passed_over(
    path: str, told: dict[str, int], severity: str
) -> None:
    (note,) = ranks.find(path, {"distributedInfo": {"rank": 3}}, **told).notes
    assert (note.code, note.severity) == ("rank-contradiction", severity)


def test_a_rank_beyond_the_world() -> None:
    for rank, size, codes in ((7, 8, []), (8, 8, ["rank-beyond-world"]), (7, None, [])):
        info = {"rank": rank} | ({} if size is None else {"world_size": size})
        found = ranks.find("x.json", {"distributedInfo": info})
        assert [note.code for note in found.notes] == codes


def test_unknown_rank_is_a_note_that_names_the_file() -> None:
    found = ranks.find("host_1.json", {})
    assert found[:2] == (None, None)
    (note,) = found.notes
    assert note.code == "rank-unknown"
    assert note.sentence.startswith("host_1.json: ")
