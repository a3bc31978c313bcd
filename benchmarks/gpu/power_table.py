"""Compares the class powers of ``diagnose power`` with what the sensor read in long phases.

    python -m benchmarks.gpu.power_table DIR [--page docs/power.md]

``DIR`` is the recording that ``benchmarks.gpu.record power`` made, with ``rankNNNNN.phases.csv``
beside the traces. Read: the mean of the sensor's readings inside of a phase, without its first
0.3 s, in which the sensor may still speak of the phase before (it lags by up to 150 ms and
averages over up to 100 ms). Estimated: from trace and telemetry, without the phases. With
``--page`` the table replaces what stands between its markers.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import diagnose
from diagnose.analysis import Unavailable
from diagnose.analyzers.power.cards import Card, cards
from diagnose.analyzers.power.classes import power_classes
from diagnose.analyzers.power.doing import Doing, class_times
from diagnose.analyzers.power.fit import student_t
from diagnose.analyzers.power.summary import peak_sensor
from diagnose.trace import Gpu, Table, Trace

BEGIN, END = "<!-- class powers: begin -->", "<!-- class powers: end -->"
LEFT_OUT_NS = 300_000_000
CLASSES = {
    "compute": Doing.COMPUTE,
    "communication": Doing.COMMUNICATION,
    "overlap": Doing.OVERLAPPED,
    "idle": Doing.IDLE,
}
"""As `jobs/power_phases.py` calls its phases; it cannot be imported without torch."""

Array = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Spans(NamedTuple):
    """The phases of one name, without what is left out; unix time in nanoseconds."""

    begin: Array
    end: Array


class Read(NamedTuple):
    """What the sensor read in the phases of one name. Watts; NaN where nothing was read."""

    mean: float
    low: float
    high: float
    """A 95 % interval of the mean, by the scatter of the phases' means."""
    num_phases: int
    num_refreshes: int
    in_class_pct: float
    """How much of the time that was read the GPU was really in the class, by the trace."""


class Row(NamedTuple):
    """One class on one physical GPU."""

    gpu: str
    phase: str
    read: Read
    estimated: tuple[float, float, float]
    """Power with its interval; NaN where there is none."""
    method: str


def rows(folder: Path) -> Iterator[Row]:
    """The rows of a recording, GPU by GPU."""
    trace = diagnose.load(str(folder)).trace
    classes = power_classes(trace)
    if isinstance(classes, Unavailable):
        raise SystemExit(f"{folder}: no power of classes: {classes.because}")
    for card in cards(trace):
        phases = _common([_phases(folder, gpu) for gpu in card.gpus])
        for phase, doing in CLASSES.items():
            if phase not in phases:
                continue
            at = (classes["source"] == card.gpus[0].source) & (classes["doing"] == doing)
            figures, method = _estimated(classes.take(at))
            name = " and ".join(trace.sources[gpu.source].label for gpu in card.gpus)
            yield Row(name, phase, _read(trace, card, phases[phase], doing), figures, method)


def _phases(folder: Path, gpu: Gpu) -> dict[tuple[str, str], tuple[int, int]]:
    """Phase and step -> begin and end of one rank."""
    path = folder / f"rank{gpu.rank or 0:05d}.phases.csv"
    if not path.is_file():
        raise SystemExit(f"{path} is not there: record with `benchmarks.gpu.record power`")
    with open(path, newline="") as file:
        return {
            (row["phase"], row["step"]): (int(row["begin_unix_ns"]), int(row["end_unix_ns"]))
            for row in csv.DictReader(file)
        }


def _common(ranks: Sequence[dict[tuple[str, str], tuple[int, int]]]) -> dict[str, Spans]:
    """By phase the time in which all ranks that share a GPU were in it, its beginning left out."""
    found: dict[str, list[tuple[int, int]]] = {}
    for key in ranks[0]:
        if all(key in rank for rank in ranks):
            begin = max(rank[key][0] for rank in ranks) + LEFT_OUT_NS
            end = min(rank[key][1] for rank in ranks)
            if begin < end:
                found.setdefault(key[0], []).append((begin, end))
    return {phase: Spans(*np.array(spans, np.int64).T) for phase, spans in found.items()}


def _read(trace: Trace, card: Card, spans: Spans, doing: Doing) -> Read:
    sensor = None if card.samples is None else peak_sensor(card.samples)
    times = class_times(trace, card.gpus)
    if card.samples is None or sensor is None or times is None:
        raise SystemExit(f"no readings of a moment: {card.why_not or 'the sensor gives means'}")
    known = card.samples.known(sensor)
    unix_ns, watts = card.samples["unix_ns"][known], card.samples[sensor][known]
    means, num_refreshes, in_class, whole = [], 0, 0.0, 0.0
    for begin, end in zip(spans.begin.tolist(), spans.end.tolist(), strict=True):
        if begin < times.start_ns or end > times.end_ns:
            continue  # a pause before the first or after the last GPU work is in no class
        own = watts[(unix_ns >= begin) & (unix_ns < end)]
        if len(own):
            means.append(float(own.mean()))
            num_refreshes += 1 + int(np.count_nonzero(own[1:] != own[:-1]))
        first, last = times.until(times.seconds([begin, end]))
        in_class += float((last - first)[doing])
        whole += (end - begin) / 1e9
    share = 100 * in_class / whole if whole else math.nan
    return Read(*_mean(np.array(means)), len(means), num_refreshes, share)


def _mean(values: Floats) -> tuple[float, float, float]:
    if len(values) < 2:
        nothing = math.nan
        return float(values.mean()) if len(values) else nothing, nothing, nothing
    middle = float(values.mean())
    reach = student_t(len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return middle, middle - reach, middle + reach


def _estimated(row: Table) -> tuple[tuple[float, float, float], str]:
    if not len(row):
        return (math.nan, math.nan, math.nan), "the trace has no such time"
    low, high = float(row["mean_low_w"][0]), float(row["mean_high_w"][0])
    said = row.texts("method")[0] or row.texts("why")[0]
    return (float(row["mean_w"][0]), low, high), str(said)


HEADINGS = (
    *("GPU of", "phase", "phases", "refreshes", "in the class, %"),
    *("read, W", "estimated, W", "difference, %", "how"),
)


def table(found: Sequence[Row]) -> list[str]:
    """Lines of Markdown."""
    lines = [f"| {' | '.join(HEADINGS)} |", f"| --{' | --' * (len(HEADINGS) - 1)} |"]
    for row in found:
        cells = (
            row.gpu,
            row.phase,
            f"{row.read.num_phases:,}",
            f"{row.read.num_refreshes:,}",
            "-" if math.isnan(row.read.in_class_pct) else f"{row.read.in_class_pct:.1f}",
            _watts(row.read.mean, row.read.low, row.read.high),
            _watts(*row.estimated),
            _difference(row.estimated[0], row.read.mean),
            row.method,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _watts(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.1f}" + ("" if math.isnan(low) else f" [{low:.1f} to {high:.1f}]")


def _difference(estimated: float, read: float) -> str:
    return "-" if math.isnan(estimated) or not read > 0 else f"{100 * (estimated / read - 1):+.1f}"


def put(page: Path, text: str) -> None:
    """Replace what stands between the markers of a page."""
    before, found, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not (found and closed):
        raise SystemExit(f"{page} has no {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or put it into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args(arguments)
    text = "\n".join(table(list(rows(options.folder))))
    if options.page is None:
        print(text)
    else:
        put(options.page, text)


if __name__ == "__main__":
    main()
