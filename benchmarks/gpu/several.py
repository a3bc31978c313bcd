"""Records jobs on several GPUs and checks what must hold: ``python -m benchmarks.gpu.several``.

    python -m benchmarks.gpu.several --out DIR [--ranks N] [--only JOB,JOB] [--seconds 600]

``jobs/several.py`` on all GPUs (``--ranks``), each job recorded twice: by ``diagnose attach`` while
it trains, and at a step by ``diagnose run``. ``DIR/JOB/{attach,run}`` are the recordings,
``DIR/checks.json`` and the output what `several_checks.py` says of them. Where there is one GPU
two ranks share it, to try it out: their bandwidths mean nothing. Status 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu import two_ranks
from benchmarks.gpu.several_checks import Check, checks

SCRIPT = Path(__file__).parent / "jobs" / "several.py"
JOBS = ("healthy", "fsdp", "serial", "tiny_buckets", "straggler", "low_bandwidth")
VARIABLES = {"low_bandwidth": {"NCCL_MAX_CTAS": "1", "NCCL_MIN_CTAS": "1"}}
"""One channel."""
AT_STEP = 45
PATIENCE_S = 100
"""Collectives are timed alone before a job trains, which takes long on one channel."""
# NVLink multicast needs rights that a container may lack; without it NCCL takes its other ways.
ALWAYS = {"NCCL_NVLS_ENABLE": "0"}


def main() -> None:
    """Record and check the jobs, as many as there is time for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=max(two_ranks.num_gpus(), 2))
    parser.add_argument("--only", default=",".join(JOBS))
    parser.add_argument("--seconds", type=float, default=600)
    arguments = parser.parse_args()
    two_ranks.end_cleanly()
    until = time.monotonic() + arguments.seconds
    said: dict[str, list[Check]] = {}
    for job in arguments.only.split(","):
        if time.monotonic() > until:
            print(f"{job}: no time left", flush=True)
            continue
        folder = arguments.out / job
        folder.mkdir(parents=True, exist_ok=True)
        variables = {**ALWAYS, **VARIABLES.get(job, {})}
        for name, record in (("attach", attached), ("run", started)):
            key = f"{job}/{name}"
            said[key] = [record(job, folder, variables, arguments.ranks)]
            if said[key][0].holds:
                said[key] += checks(folder / name, job, folder / "alone.json")
            for check in said[key]:
                print(f"{key}: {_word(check)} {check.name}: {check.saw}", flush=True)
    content = {key: [one._asdict() for one in found] for key, found in said.items()}
    (arguments.out / "checks.json").write_text(json.dumps(content, indent=1) + "\n")
    sys.exit(any(one.holds is False for found in said.values() for one in found))


def _word(check: Check) -> str:
    return "?" if check.holds is None else "ok  " if check.holds else "FAIL"


def attached(job: str, folder: Path, variables: dict[str, str], ranks: int) -> Check:
    """A window of a job that nobody prepared."""
    script = [str(SCRIPT), "--job", job, "--out", str(folder), "--seconds", "25"]
    try:
        alive = folder / "alive"
        begun = two_ranks.job(script, variables, alive, ranks=ranks, patience_s=PATIENCE_S)
        with begun as running:
            line = [sys.executable, "-m", "diagnose", "attach", "--no-report"]
            line += ["-o", str(folder / "attach")]
            done = subprocess.run(line, capture_output=True, text=True, timeout=90, check=False)
            status = running.wait(90)
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        return Check("recorded", False, str(error))
    right = done.returncode == status == 0
    return Check("recorded", right, f"attach {done.returncode}, job {status} {done.stderr[-300:]}")


def started(job: str, folder: Path, variables: dict[str, str], ranks: int) -> Check:
    """A window at a step of a job that ``diagnose run`` starts."""
    windows = folder / "windows"
    line = [sys.executable, "-m", "diagnose", "run", "--at-step", str(AT_STEP)]
    # For the job alone: `diagnose run` has the environment that a person's has.
    given = {**two_ranks.environment(ranks), **variables}
    line += ["-o", str(windows), "--", "env", *(f"{key}={given[key]}" for key in given)]
    line += [*two_ranks.launcher(ranks), str(SCRIPT), "--job", job]
    line += ["--out", str(folder), "--seconds", "25"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=150, check=False)
    except subprocess.TimeoutExpired as error:
        return Check("recorded", False, str(error))
    found = sorted(windows.rglob("recording.json"))
    if done.returncode == 0 and found:
        found[0].parent.rename(folder / "run")
    return Check(
        "recorded",
        done.returncode == 0 and bool(found),
        f"status {done.returncode}, {len(found)} windows {done.stderr[-300:] * (not found)}",
    )


if __name__ == "__main__":
    main()
