"""Changes as text: parsed strictly, written back the same."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

from diagnose.errors import UsageError
from diagnose.replay.change import Change
from diagnose.replay.change_text import known, parse, text_of
from diagnose.replay.changes.buckets import BucketSize
from diagnose.replay.changes.collectives import FasterCollectives
from diagnose.replay.changes.host import NoHostSync
from diagnose.replay.changes.kernels import FasterKernels, HigherClocks

IDS = {
    "accumulate-without-sync",
    "bucket-size",
    "comm-priority",
    "communication-stream",
    "copy-stream",
    "cuda-graph",
    "data-ready",
    "delay-collective",
    "faster-collectives",
    "faster-kernels",
    "fused-optimizer",
    "hide-communication",
    "higher-clocks",
    "narrow-gradients",
    "no-allocator-calls",
    "no-contention",
    "no-garbage-collection",
    "no-host-limit",
    "no-host-sync",
    "no-straggler",
    "pinned-copies",
    "prefetch-data",
}
GATHERS = FasterCollectives(factor=3, kind="all_gather")
NEEDED = {"higher-clocks": {"mhz": 1980.0}}


def test_every_change_is_found() -> None:
    assert set(known()) == IDS
    assert list(known()) == sorted(IDS)


@pytest.mark.parametrize("name", sorted(IDS))
def test_a_change_says_what_it_does(name: str) -> None:
    kind = known()[name]
    assert kind.id == name
    assert kind.title == kind.title.strip() != ""
    paragraphs = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    assert len(paragraphs) > 1
    assert paragraphs[0].endswith(".")
    for field in fields(kind):
        assert f"``{field.name}" in (kind.__doc__ or ""), f"{field.name} is not explained"


@pytest.mark.parametrize("name", sorted(IDS))
def test_what_is_searched_needs_no_fields(name: str) -> None:
    kind = known()[name]
    if kind.searched or kind.is_bound:
        assert text_of(kind()) == name


@pytest.mark.parametrize("name", sorted(IDS))
def test_its_text_makes_the_same_change(name: str) -> None:
    change = known()[name](**NEEDED.get(name, {}))
    assert parse(text_of(change)) == change
    assert change.label == text_of(change)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("no-host-sync", NoHostSync()),
        ("no-host-sync:keep_last=true", NoHostSync(keep_last=True)),
        ("bucket-size:mb=50", BucketSize(mb=50.0)),
        ("bucket-size:mb=0.5", BucketSize(mb=0.5)),
        ("faster-collectives:factor=3,kind=all_gather", GATHERS),
        ("faster-collectives:bus_gb_per_s=300", FasterCollectives(bus_gb_per_s=300.0)),
        ("faster-kernels:factor=1.5,family=gemm", FasterKernels(factor=1.5, family="gemm")),
        ("higher-clocks:mhz=1980", HigherClocks(mhz=1980.0)),
    ],
)  # fmt: skip
def test_text_and_change(text: str, change: Change) -> None:
    assert parse(text) == change
    assert text_of(change) == text


def test_blanks_do_not_count() -> None:
    assert parse(" bucket-size: mb = 50 ") == BucketSize(mb=50.0)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("no-hostsync", "there is no change 'no-hostsync'", "did you mean 'no-host-sync'?"),
        ("zzz", "there is no change 'zzz'", "bucket-size, comm-priority"),
        ("", "there is no change ''", "whatif --list"),
        ("no-host-sync:keeplast=1", "has no field 'keeplast'", "did you mean 'keep_last'?"),
        ("cuda-graph:mb=5", "cuda-graph has no field 'mb'", "it has none"),
        ("bucket-size:mb", "bucket-size: mb has no value", "bucket-size:mb="),
        ("bucket-size:mb=5,mb=6", "bucket-size: mb is given twice", "once"),
        ("bucket-size:mb=big", "bucket-size: mb='big' is not a number", "bucket-size:mb=2"),
        ("bucket-size:mb=inf", "bucket-size: mb='inf' is not a number", "bucket-size:mb=2"),
        ("bucket-size:mb=-1", "bucket-size: mb has to be above 0", "--list"),
        ("prefetch-data:workers=1.5", "workers='1.5' is not a whole number", "workers=2"),
        ("no-host-sync:keep_last=maybe", "keep_last='maybe' is not true or false", ""),
        ("higher-clocks", "higher-clocks needs mhz", "higher-clocks:mhz="),
        ("faster-kernels:family=gem", "there is no family 'gem'", "--list"),
        ("faster-kernels:name=", "faster-kernels: name is empty", "--list"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(text)
    assert message in error.value.message
    assert hint in error.value.hint
