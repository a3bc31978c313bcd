"""Command line of the benchmark; see README.md beside it.

make bench                                  shipped recording and 1 GiB of JSON
make bench BENCH_ARGS=--quick               shipped recording and 128 MiB
make bench BENCH_ARGS="--sizes 128,1024"
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import interval_algebra, results
from benchmarks.candidates import Candidate, Input, candidates, overlap_answer
from benchmarks.environments import PINS, WORK, compile_packages, python_of, versions
from benchmarks.measure import CommandFailedError, Cost, measure
from benchmarks.tile import Tiled, tile

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
TIMEOUT_S = 1800.0
SLOW_FROM_BYTES = 512 * 2**20


def _recording() -> Input:
    files = tuple(sorted((ROOT / "examples/recordings/healthy").glob("*.trace.json.gz")))
    texts = [gzip.decompress(file.read_bytes()) for file in files]
    num_events = sum(len(json.loads(text)["traceEvents"]) for text in texts)
    size = sum(len(text) for text in texts)
    return Input("healthy", "Recording `healthy`, 2 ranks, whole command", files, num_events, size)


def _tiled(mib: int) -> Input:
    original = ROOT / "examples/recordings/healthy/rank00000.trace.json.gz"
    target, facts = WORK / f"tiled-{mib}.json.gz", WORK / f"tiled-{mib}.facts.json"
    if not (target.is_file() and facts.is_file()):
        print(f"writing {mib} MiB of JSON into {target} ...", file=sys.stderr)
        partial = target.with_suffix(".partial.gz")
        written = tile(original, partial, mib=mib)
        partial.rename(target)
        facts.write_text(json.dumps(written.__dict__))
    made = Tiled(**json.loads(facts.read_text()))
    label = f"{made.num_copies} copies of one rank of `healthy` in 4 steps"
    return Input(f"tiled-{mib}", label, (target,), made.num_events, made.num_bytes)


def _run(source: Input, who: Sequence[Candidate], rounds: int) -> list[results.Row]:
    costs: dict[str, list[Cost]] = {candidate.key: [] for candidate in who}
    answers: dict[str, list[float] | None] = {}
    for number in range(rounds):
        for candidate in who:
            if candidate.slow and number and source.num_bytes >= SLOW_FROM_BYTES:
                continue
            try:
                cost = measure(candidate.command(source.files), timeout_s=TIMEOUT_S)
            except CommandFailedError as error:
                print(f"  {candidate.key} failed: {error}", file=sys.stderr)
                continue
            costs[candidate.key].append(cost)
            answers[candidate.key] = overlap_answer(cost.output)
            print(
                f"  {source.key} round {number + 1} {candidate.key}: {cost.cpu_s:.2f} CPU s, "
                f"{cost.peak_mib:.0f} MiB",
                file=sys.stderr,
            )
    return results.rows(source, who, costs, answers)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="128 MiB and one round")
    parser.add_argument("--sizes", help="MiB of JSON of the tiled traces, as 128,1024")
    parser.add_argument("--rounds", type=int, default=None, help="rounds of each (default 3)")
    parser.add_argument("--intervals", type=int, default=None, help="default 10,000,000; 0: none")
    parser.add_argument("--only", help="candidates, as floor,overlap,hta")
    parser.add_argument("--name", default="latest", help="name of the result files")
    parser.add_argument("--readme", action="store_true", help="write the summary into README.md")
    return parser.parse_args()


def _environments() -> dict[str, dict[str, str]]:
    ours = ("torch-diagnose", "numpy", "pandas", "msgspec", "isal")
    theirs = {name: (pins[0].split("==")[0], "numpy", "pandas") for name, pins in PINS.items()}
    found = {"this": versions(sys.executable, ours)}
    return found | {name: versions(python_of(name), packages) for name, packages in theirs.items()}


def main() -> int:
    """Measure, print the table and write it and the figures behind it to results/."""
    options = _options()
    sizes = [
        int(size) for size in (options.sizes or ("128" if options.quick else "1024")).split(",")
    ]
    rounds = options.rounds or (1 if options.quick else 3)
    num_intervals = options.intervals
    if num_intervals is None:
        num_intervals = 1_000_000 if options.quick else 10_000_000
    WORK.mkdir(parents=True, exist_ok=True)
    compile_packages(sys.executable)
    who = [c for c in candidates() if not options.only or c.key in options.only.split(",")]
    document: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": results.machine(),
        "environments": _environments(),
        "inputs": [],
    }
    tables, measured = [], []
    for source in [_recording(), *(_tiled(size) for size in sizes)]:
        found = _run(source, who, max(rounds, 3 if source.num_bytes < 2**25 else 1))
        document["inputs"].append({"label": source.label, "rows": results.as_json(found)})
        tables.append(results.table(source, found))
        measured.append((source, found))
    compared = interval_algebra.compare(num_intervals, rounds) if num_intervals else []
    document["intervals"] = compared
    if compared:
        tables.append(results.intervals_table(compared))
    text = "\n\n".join([_heading(document), *tables]) + "\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{options.name}.json").write_text(json.dumps(document, indent=1) + "\n")
    (RESULTS / f"{options.name}.md").write_text(text)
    print(text)
    missing = [
        f"{source.key}: {candidate.key}"
        for source, found in measured
        for candidate in who
        if candidate.key not in {row.candidate for row in found}
    ]
    if missing:
        print(f"error: no figures of {', '.join(missing)}; see above", file=sys.stderr)
        return 1
    if options.readme:
        _write_readme(f"{_heading(document)}\n\n{results.summary(measured, compared)}")
    return 0


def _write_readme(table: str) -> None:
    path = ROOT / "README.md"
    before, _, rest = path.read_text(encoding="utf-8").partition("<!-- benchmark -->\n")
    _, _, after = rest.partition("<!-- /benchmark -->\n")
    whole = (
        "In parentheses the target, in bold where it is missed. The floor decompresses and scans "
        "the bytes. [How it is measured, and where the time goes](benchmarks/README.md)."
    )
    path.write_text(
        f"{before}<!-- benchmark -->\n{table}\n\n{whole}\n<!-- /benchmark -->\n{after}",
        encoding="utf-8",
    )


def _heading(document: dict[str, Any]) -> str:
    machine, this = document["machine"], document["environments"]["this"]
    return (
        f"Measured {document['date']} on {machine['num_cores']} cores of {machine['processor']}, "
        f"{machine['memory_gib']} GiB, Python {this['python']}, numpy {this['numpy']}; load "
        f"average at the start {machine['load_average_at_start']}. Medians of interleaved runs; "
        "CPU is that of the whole process with interpreter start. HTA is HolisticTraceAnalysis, "
        "the better of 0.5.0 and traceinsight 0.6.1, figure by figure."
    )


if __name__ == "__main__":
    sys.exit(main())
