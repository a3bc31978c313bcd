"""What is known of a pair, on disk: ``truth/NAME.json``, and all of them in ``pairs.jsonl``.

A line of ``pairs.jsonl``::

    {"name": ..., "world": 1, "change": ..., "environment_change": {}, "facts": {...},
     "before": {"step_ms": [a value per repeat], "median_ms": ..., "spread_pct": ...,
                "steps_per_repeat": ..., "issue_ms": ..., "alone_ms": ...,
                "traced_steps": ..., "trace_bytes": ..., "after_profiling_ms": ...},
     "after": {the same}, "gain_ms": ..., "gain_pct": ..., "noise_ms": ...,
     "environment": {"before": {...}, "after": {...}}, "whole": true}

``step_ms`` ... ``alone_ms`` are of no profiler (see `measure.py`), the slower rank's;
``after_profiling_ms`` is a step in a process that was profiled. ``noise_ms`` is the greater of both
sides' distances between least and greatest repeat: a gain below it is not told from chance.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.jobs.pairs.catalogue import BY_NAME, PAIRS


class Truth:
    """One pair's file. Only one process writes it at a time."""

    def __init__(self, out: Path, name: str) -> None:
        self.name = name
        self._out = out
        self._path = out / "truth" / f"{name}.json"
        self.content: dict[str, Any] = {}
        if self._path.exists():
            self.content = json.loads(self._path.read_text())

    @property
    def facts(self) -> dict[str, Any]:
        return dict(self.content.get("facts", {}))

    def measured(self, side: str) -> bool:
        return "median_ms" in self.content.get(side, {})

    def recorded(self, side: str) -> bool:
        folder = self._out / "pairs" / self.name / side
        told = "traced_steps" in self.content.get(side, {})
        return told and (folder / "recording.json").exists()

    def complete(self, sides: Iterable[str]) -> bool:
        """Whether these sides are measured and recorded."""
        return all(self.measured(side) and self.recorded(side) for side in sides)

    def add_timing(self, timing: Mapping[str, dict[str, Any]], facts: dict[str, Any]) -> None:
        for side, said in timing.items():
            self.content[side] = self.content.get(side, {}) | said
        self.content["facts"] = facts
        self._write()

    def add_environment(self, side: str, environment: dict[str, Any]) -> None:
        self.content.setdefault("environment", {})[side] = environment
        self._write()

    def add_recording(self, side: str, said: dict[str, Any]) -> None:
        self.content[side] = self.content.get(side, {}) | said
        self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self.content, indent=1))
        part.replace(self._path)

    def line(self) -> dict[str, Any]:
        """All of it, with the gain where both sides are measured."""
        pair = BY_NAME[self.name]
        told: dict[str, Any] = {
            "name": self.name,
            "world": pair.world,
            "change": pair.change,
            "environment_change": dict(pair.environment),
            **self.content,
            "whole": self.complete(pair.sides),
        }
        if self.measured("before") and self.measured("after"):
            before, after = self.content["before"], self.content["after"]
            gain = before["median_ms"] - after["median_ms"]
            noise = max(max(side["step_ms"]) - min(side["step_ms"]) for side in (before, after))
            told["gain_ms"] = round(gain, 4)
            told["gain_pct"] = round(100 * gain / before["median_ms"], 2)
            told["noise_ms"] = round(noise, 4)
        return told


def write_lines(out: Path) -> list[dict[str, Any]]:
    """Write ``pairs.jsonl`` of what is there; its lines."""
    known = [Truth(out, pair.name) for pair in PAIRS]
    lines = [truth.line() for truth in known if truth.content]
    part = out / "pairs.jsonl.part"
    part.write_text("".join(json.dumps(line) + "\n" for line in lines))
    part.replace(out / "pairs.jsonl")
    return lines
