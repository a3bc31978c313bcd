"""Records the GPU experiments: ``python -m benchmarks.gpu.record contention|power --out DIR``.

``contention``: `jobs/contention.py` with traffic on 4, 8, 16 and 32 multiprocessors, a
recording each (``ctas04`` ... with ``rankNNNNN.timed.json``, the same rounds without a
profiler). ``power``: `jobs/power_phases.py` with telemetry, one recording, at most four
minutes. ``--ranks`` of them (2), side by side if they share a GPU; ``power`` in turns if that does
not begin (``power-in-turns``).
About two minutes each. Never changes power limits or clocks.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu import two_ranks
from diagnose import manifest

JOBS = Path(__file__).parent / "jobs"
CTAS = (4, 8, 16, 32)
POWER_TIMEOUT_S = 220
TIMED_OUT, NOT_BEGUN = 124, 125


def main() -> None:
    """Run the experiment that is asked for, under the environment two ranks need."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", choices=("contention", "power"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--ctas", type=int, nargs="+", default=CTAS)
    arguments = parser.parse_args()
    two_ranks.end_cleanly()
    if arguments.experiment == "power":
        script, folder = JOBS / "power_phases.py", arguments.out / "power"
        ranks = arguments.ranks
        status = record(script, folder, {}, POWER_TIMEOUT_S, side_by_side=True, ranks=ranks)
        print("power", status, flush=True)
        if status == NOT_BEGUN:
            apart = folder.with_name("power-in-turns")
            status = record(script, apart, {}, POWER_TIMEOUT_S, ranks=ranks)
            print("power in turns", status, flush=True)
        return
    for ctas in arguments.ctas:
        folder = arguments.out / f"ctas{ctas:02d}"
        bounded = {"NCCL_MAX_CTAS": str(ctas), "NCCL_MIN_CTAS": str(ctas)}
        script = JOBS / "contention.py"
        status = record(script, folder, bounded, 80, side_by_side=True, ranks=arguments.ranks)
        print(folder.name, status, flush=True)


def record(
    script: Path,
    folder: Path,
    variables: dict[str, str],
    timeout_s: float,
    *,
    side_by_side: bool = False,
    ranks: int = 2,
) -> int:
    """Run one job with telemetry beside it; 0 if its recording is whole.

    Else the job's status, TIMED_OUT if it took longer than it may, or NOT_BEGUN.
    A GPU that both ranks share is sampled once, as rank 0's.
    """
    gpus = ranks if two_ranks.num_gpus() >= ranks else 1
    folder.mkdir(parents=True)
    started = time.time_ns()
    line = [sys.executable, "-m", "diagnose.telemetry", "--output", str(folder)]
    line += [
        word for gpu in range(gpus) for word in ("--gpu", str(gpu), "--name", f"rank{gpu:05d}")
    ]
    with open(folder / "telemetry.log", "wb") as log:
        telemetry = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=log, stderr=log)
    status = TIMED_OUT
    try:
        script_line = [str(script), "--out", str(folder)]
        alive = folder / "alive"
        begun = two_ranks.job(script_line, variables, alive, ranks=ranks, side_by_side=side_by_side)
        with begun as running:
            status = running.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        print(error, flush=True)
    except (TimeoutError, RuntimeError) as error:
        status = NOT_BEGUN
        print(error, flush=True)
    finally:
        if telemetry.stdin is not None:
            telemetry.stdin.close()
        telemetry.wait(20)
    (folder / "alive").unlink(missing_ok=True)
    traces = sorted(folder.glob("rank*.trace.json.gz"))
    names = [trace.name.removesuffix(".trace.json.gz") for trace in traces]
    files = tuple(
        manifest.RankFiles(
            int(name.removeprefix("rank")),
            f"{name}.trace.json.gz",
            f"{name}.telemetry.csv" if (folder / f"{name}.telemetry.csv").exists() else None,
            f"{name}.env.json",
        )
        for name in names
    )
    if files:
        manifest.write(manifest.Manifest(files, len(files), started_unix_ns=started), folder)
    return status


if __name__ == "__main__":
    main()
