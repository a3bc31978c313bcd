"""The table predicted against measured: ``python -m benchmarks.accuracy [--page FILE]``.

From `truth.json` (jobs timed with and without a fault, no profiler; see
`benchmarks/gpu/pairs.py`) and the recordings of the faulty sides. With ``--page`` the table
replaces what stands between the markers of `docs/accuracy.md`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.accuracy.score import NS_PER_MS, Score, scores, truths

BEGIN, END = "<!-- accuracy: begin -->", "<!-- accuracy: end -->"
_HEADINGS = (
    "pair",
    "change",
    "before, ms",
    "after, ms",
    "predicted after, ms",
    "error of the step, %",
    "gain, ms",
    "predicted gain, ms",
    "error of the gain, %",
    "kept aside",
)


def main() -> None:
    """Print the table, or put it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    text = page_part(list(scores(truths())))
    if arguments.page is None:
        print(text)
        return
    page = arguments.page.read_text(encoding="utf-8")
    head, rest = page.split(BEGIN)
    tail = rest.split(END)[1]
    arguments.page.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", encoding="utf-8")


def page_part(found: Sequence[Score]) -> str:
    """The table, the pairs that are not scored, and the sums."""
    scored = [score for score in found if score.truth.is_told]
    once = [score for score in found if score.truth.timed_once]
    others = [s for s in found if not s.truth.is_told and not s.truth.timed_once]
    lines = [*_table(scored), "", summary(scored)]
    if others:
        lines += ["", "Not scored, as the repeats of the two sides overlap:", "", *_table(others)]
    if once:
        why = "each side was timed once, and what the profiler cost is assumed"
        lines += ["", f"Not scored, as {why}:", "", *_table(once)]
    return "\n".join(lines)


def _table(found: Sequence[Score]) -> list[str]:
    head = ["| " + " | ".join(_HEADINGS) + " |", "|" + " -- |" * len(_HEADINGS)]
    return head + [_row(score) for score in found]


def summary(scored: Sequence[Score]) -> str:
    """Median and worst error, over all and over the pairs kept aside."""
    said = []
    for name, chosen in (
        ("All", list(scored)),
        ("Kept aside", [score for score in scored if score.truth.kept_aside]),
    ):
        errors = [abs(e) for s in chosen if (e := s.step_error_pct) is not None]
        gains = [abs(e) for s in chosen if (e := s.gain_error_pct) is not None]
        missing = len(chosen) - len(errors)
        better = sum(
            abs(s.step_error_pct or 0.0) < abs(s.unchanged_error_pct)
            for s in chosen
            if s.prediction is not None
        )
        if errors:
            said.append(
                f"{name}: {len(chosen)} pairs, {missing} without a prediction; error of the step: "
                f"median {median(errors):.1f} %, most {max(errors):.1f} %; of the gain: median "
                f'{median(gains):.0f} %, most {max(gains):.0f} %; nearer than "nothing '
                f'changes" in {better} of {len(errors)}.'
            )
    return "\n\n".join(said)


def _row(score: Score) -> str:
    truth, prediction = score.truth, score.prediction
    cells = [truth.name, ", ".join(f"`{c}`" for c in truth.changes) or "nothing"]
    cells += [_spread(truth.before_ms), _spread(truth.after_ms)]
    if prediction is None:
        cells += [f"none: {score.reason}", "", f"{truth.gain_ms:.2f}", "", ""]
    else:
        then, gain = prediction.then, prediction.gain
        cells += [_range(*then), f"{score.step_error_pct:+.1f}", f"{truth.gain_ms:.2f}"]
        cells += [_range(*gain)]
        cells += ["" if score.gain_error_pct is None else f"{score.gain_error_pct:+.0f}"]
    cells.append("yes" if truth.kept_aside else "no")
    return "| " + " | ".join(cells) + " |"


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{median(values):.2f} [{min(values):.2f} to {max(values):.2f}]"


def _range(low: float, likely: float, high: float) -> str:
    scaled = [value / NS_PER_MS for value in (low, likely, high)]
    return f"{scaled[1]:.2f} [{scaled[0]:.2f} to {scaled[2]:.2f}]"


if __name__ == "__main__":
    main()
