"""Compares what ``diagnose contention`` says of ``jobs/contention.py`` with what was measured.

    python -m benchmarks.gpu.contention_table DIR [--page docs/contention.md]

``DIR`` holds the recordings (``ctas08`` ...) that ``benchmarks.gpu.record contention`` made.
Predicted: from the trace alone. Measured: the same blocks of kernels between two CUDA events,
without a profiler. With ``--page`` the table replaces what stands between its markers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import diagnose
from diagnose.contention._kernels import families
from diagnose.contention._measured import Measured
from diagnose.contention._pairing import measured
from diagnose.contention._rates import Estimate, slowdowns
from diagnose.trace import Trace

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
COMPUTE = {"multiply": "gemm", "add": "elementwise"}
IN_BLOCK = {"multiply": 12, "add": 6}
"""Kernels in a block."""
LEAST_NS = 50_000
"""Shorter compute kernels are not the job's but those of barriers."""

Floats = npt.NDArray[np.float64]


class Blocks(NamedTuple):
    """How long blocks of kernels took, in milliseconds; ``(ranks, rounds)``."""

    beside: Floats
    alone: Floats

    @property
    def ratio(self) -> float:
        """Median beside over median alone, all ranks and rounds together."""
        return float(np.median(self.beside) / np.median(self.alone))

    def ratios_of_halves(self) -> list[float]:
        """The same of each rank's first and second half of the rounds."""
        middle = self.beside.shape[1] // 2
        halves = (slice(None, middle), slice(middle, None))
        return [
            float(np.median(beside[half]) / np.median(alone[half]))
            for beside, alone in zip(self.beside, self.alone, strict=True)
            for half in halves
        ]


class Row(NamedTuple):
    """One pattern of traffic beside one kind of compute."""

    ctas: int
    pattern: str
    compute: str
    predicted: Estimate
    """Whole durations of overlapped kernels over what they take alone."""
    while_beside: Estimate
    coverage_pct: float
    in_trace: Blocks
    measured: Blocks


def rows(folder: Path) -> Iterator[Row]:
    """The rows of one recording."""
    trace = diagnose.load(str(folder)).trace
    truth = [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.timed.json"))]
    known = measured(trace)
    seen = known.seen
    family = families(trace, seen)
    of_kernel = np.array(family.names)[family.of_group[seen.group]]
    # As the job ran them, equally many steps each.
    names = tuple(truth[0]["timed"])
    pattern = _patterns(trace, known, len(names))
    for number, name in enumerate(names):
        for compute, kernels in COMPUTE.items():
            chosen = (pattern == number) & (of_kernel == kernels) & (seen.duration > LEAST_NS)
            picked = np.intersect1d(np.flatnonzero(chosen), known.paired)
            split = known.by_label(picked, np.zeros(len(picked), np.int64), 1)
            beside = seen.beside.sum(1)
            blocks = [one["timed"][name][compute] for one in truth]
            yield Row(
                int(truth[0]["max_ctas"]),
                name,
                compute,
                known.ratios(split),
                slowdowns(known.rates(split)),
                100 * float(beside[picked].sum() / beside[chosen].sum()),
                _blocks_in_trace(known, chosen, IN_BLOCK[compute]),
                Blocks(*(np.array([b[f"{k}_ms"] for b in blocks]) for k in ("beside", "alone"))),
            )


def _patterns(trace: Trace, known: Measured, number: int) -> npt.NDArray[np.int64]:
    """Which of the patterns each kernel's step is; -1 outside of steps."""
    names = trace.strings.decode(trace.steps["name"])
    step = np.array([int(str(name).rpartition("#")[2]) for name in names])
    per_pattern = (step.max() + 1) // number
    found = step[known.step_row] // per_pattern
    return np.where(known.step_row >= 0, found, -1)


def _blocks_in_trace(known: Measured, chosen: npt.NDArray[np.bool_], in_block: int) -> Blocks:
    """The blocks as the trace shows them: first start to last end. Beside and alone in turn."""
    seen, ranks = known.seen, []
    for gpu in np.unique(seen.gpu).tolist():
        own = np.flatnonzero(chosen & (seen.gpu == gpu))
        own = own[np.argsort(seen.start[own])]
        start, end = (column[own].reshape(-1, in_block) for column in (seen.start, seen.end))
        ranks.append((end[:, -1] - start[:, 0]) / 1e6)
    blocks = np.array(ranks)
    return Blocks(blocks[:, 0::2], blocks[:, 1::2])


def _estimate(one: Estimate) -> str:
    value, low, high = (float(bound[0]) for bound in one)
    return f"{value:.2f} [{low:.2f} to {high:.2f}]"


def _milliseconds(one: Floats, other: Floats) -> str:
    return f"{np.median(one):.2f}, {np.median(other):.2f}"


HEADINGS = (
    "blocks",
    "beside",
    "kernels",
    "predicted",
    "rests on",
    "measured",
    "halves",
    "in the trace",
    "alone, ms: trace, measured",
    "beside, ms: trace, measured",
    "while beside",
)


def table(found: list[Row]) -> list[str]:
    """Lines of Markdown."""
    lines = [f"| {' | '.join(HEADINGS)} |", f"| --{' | --' * (len(HEADINGS) - 1)} |"]
    for row in found:
        halves = row.measured.ratios_of_halves()
        cells: list[Any] = [
            row.ctas,
            row.pattern,
            COMPUTE[row.compute],
            _estimate(row.predicted),
            f"{row.coverage_pct:.0f} %",
            f"{row.measured.ratio:.2f}",
            f"{min(halves):.2f} to {max(halves):.2f}",
            f"{row.in_trace.ratio:.2f}",
            _milliseconds(row.in_trace.alone, row.measured.alone),
            _milliseconds(row.in_trace.beside, row.measured.beside),
            _estimate(row.while_beside),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def main() -> None:
    """Print the table, or put it into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    folders = sorted(arguments.folder.glob("ctas*"))
    text = "\n".join(table([row for folder in folders for row in rows(folder)]))
    if arguments.page is None:
        print(text)
        return
    before, found, rest = arguments.page.read_text(encoding="utf-8").partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not (found and closed):
        raise SystemExit(f"{arguments.page} has no {BEGIN} and {END}")
    arguments.page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
