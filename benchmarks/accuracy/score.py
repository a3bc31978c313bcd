"""How far predictions are from what repairing the job really gave, pair by pair."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import diagnose
from diagnose.analysis import Unavailable
from diagnose.replay import Prediction, build, predict
from diagnose.replay.change_text import parse
from diagnose.trace import Observer, Trace

FOLDER = Path(__file__).parent
NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class Truth:
    """One job with a fault and without, both timed with no profiler, in turn.

    ``before_ms`` and ``after_ms``: mean step of each repeat, of the slower rank.
    """

    name: str
    world: int
    repaired: str
    changes: tuple[str, ...]
    kept_aside: bool
    """Nothing in the replay was changed after this pair was looked at because of it."""
    model: str
    before_ms: tuple[float, ...]
    after_ms: tuple[float, ...]
    recording: str
    """Folder of the faulty side's recording, from ``benchmarks/accuracy``."""

    @property
    def timed_once(self) -> bool:
        """One mean of ten steps a side: how much it varies is not known."""
        return len(self.before_ms) == 1

    @property
    def gain_ms(self) -> float:
        """Median before less median after."""
        return median(self.before_ms) - median(self.after_ms)

    @property
    def is_told(self) -> bool:
        """Whether the repeats of the two sides lie apart; else the pair is not scored."""
        low, high = sorted((self.before_ms, self.after_ms), key=median)
        return not self.timed_once and max(low) < min(high)


@dataclass(frozen=True)
class Score:
    """A prediction beside the truth. Errors in percent; None where nothing was predicted."""

    truth: Truth
    prediction: Prediction | None
    reason: str = ""

    @property
    def step_error_pct(self) -> float | None:
        """Predicted step after the repair over the measured one, less 100 %."""
        if self.prediction is None:
            return None
        return 100 * (self.prediction.then.likely / NS_PER_MS / median(self.truth.after_ms) - 1)

    @property
    def unchanged_error_pct(self) -> float:
        """The same of who says that the repair changes nothing."""
        return 100 * (median(self.truth.before_ms) / median(self.truth.after_ms) - 1)

    @property
    def gain_error_pct(self) -> float | None:
        """Predicted gain over the measured one, less 100 %."""
        if self.prediction is None or not (self.truth.is_told or self.truth.timed_once):
            return None
        return 100 * (self.prediction.gain.likely / NS_PER_MS / self.truth.gain_ms - 1)

    @property
    def range_holds(self) -> bool | None:
        """Whether the predicted range of the step touches the range of the repeats."""
        if self.prediction is None:
            return None
        low, high = self.prediction.then.low / NS_PER_MS, self.prediction.then.high / NS_PER_MS
        return low <= max(self.truth.after_ms) and high >= min(self.truth.after_ms)


def truths(path: Path = FOLDER / "truth.json") -> list[Truth]:
    """The measured pairs."""
    return [_truth(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def _truth(entry: dict[str, Any]) -> Truth:
    return Truth(
        entry["name"],
        entry["world"],
        entry["repaired"],
        tuple(entry["changes"]),
        entry["kept_aside"],
        entry["model"],
        tuple(entry["before_step_ms"]),
        tuple(entry["after_step_ms"]),
        entry.get("recording", f"recordings/{entry['name']}"),
    )


def scores(pairs: Sequence[Truth], folder: Path = FOLDER) -> Iterator[Score]:
    """Predict each pair from the recording of its faulty side alone."""
    for truth in pairs:
        trace = diagnose.load(folder / truth.recording).trace
        if not truth.timed_once:
            trace = untouched(trace, truth.before_ms)
        model = build(trace, max_steps=5)
        answer = (
            model
            if isinstance(model, Unavailable)
            else predict(model, tuple(parse(change) for change in truth.changes))
        )
        if isinstance(answer, Unavailable):
            yield Score(truth, None, answer.because)
        else:
            yield Score(truth, answer)


def untouched(trace: Trace, step_ms: Sequence[float]) -> Trace:
    """The trace as ``diagnose attach`` records it from a job that nobody profiled before.

    It then knows the job's own steps from before the window. The recorded processes had
    been profiled a moment earlier, for the other pairs they measure, which leaves the host
    slower: the steps beside their windows are of that state, and are replaced by those
    timed before.
    """
    before = round(median(step_ms) * NS_PER_MS)
    spread = round((max(step_ms) - min(step_ms)) * NS_PER_MS)
    seen = trace.observer or Observer()
    return replace(
        trace,
        observer=replace(seen, before_ns=before, after_ns=None, before_spread_ns=spread),
    )
