"""Who is measured, and with which command."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environments import python_of

CHILDREN = Path(__file__).resolve().parent / "children"


@dataclass(frozen=True)
class Input:
    """What everybody reads: one trace file per rank, and how much is in them."""

    key: str
    label: str
    files: tuple[Path, ...]
    num_events: int
    num_bytes: int
    """Bytes of text after decompression."""


@dataclass(frozen=True)
class Candidate:
    """One command. ``ours``: this project; ``slow``: run once on inputs of 512 MiB and more."""

    key: str
    label: str
    prefix: tuple[str, ...]
    suffix: tuple[str, ...] = ()
    ours: bool = False
    slow: bool = False

    def command(self, files: Sequence[Path]) -> list[str]:
        return [*self.prefix, *(str(file) for file in files), *self.suffix]


def candidates() -> tuple[Candidate, ...]:
    """All of them, in the order of the table. Makes the environments of the others."""
    bin_folder = Path(sys.executable).parent
    diagnose = str(bin_folder / "diagnose")

    def child(name: str, python: str = sys.executable) -> tuple[str, ...]:
        return (python, str(CHILDREN / name))

    return (
        Candidate("floor", "decompress and scan the bytes (floor)", child("floor.py")),
        Candidate(
            "overlap",
            "`diagnose overlap`: GPU activities",
            (diagnose, "overlap"),
            ("--format", "json"),
            ours=True,
        ),
        Candidate(
            "report",
            "`diagnose report --fast`: and launches, synchronisations",
            (diagnose, "report"),
            ("--fast", "--format", "json"),
            ours=True,
        ),
        Candidate(
            "everything",
            "`diagnose.load` and overlap by step: everything",
            child("everything.py"),
            ours=True,
        ),
        Candidate(
            "judged",
            "`diagnose report`: everything, judged and replayed",
            (diagnose, "report"),
            ("--format", "json"),
            ours=True,
        ),
        Candidate(
            "hta",
            "HolisticTraceAnalysis 0.5.0: load and overlap",
            child("hta_overlap.py", python_of("hta")),
            slow=True,
        ),
        Candidate(
            "traceinsight",
            "traceinsight 0.6.1: load and overlap",
            child("hta_overlap.py", python_of("traceinsight")),
            slow=True,
        ),
    )


def overlap_answer(output: str) -> list[float] | None:
    """The overlap of each rank in percent, as a command printed it; None if it printed none."""
    try:
        document = json.loads(output)
    except json.JSONDecodeError:
        return None
    if isinstance(document, dict):
        if "overlap_pct" in document:
            return [round(value, 2) for value in document["overlap_pct"]]
        document = document.get("gpus") or document.get("rows") or []
    if not isinstance(document, list):
        return None
    values = [row["overlap_pct"] for row in document if isinstance(row, dict)]
    return [round(value, 2) for value in values] or None
