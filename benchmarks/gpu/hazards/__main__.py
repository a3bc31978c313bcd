"""A gallery of races, run on one GPU: ``python -m benchmarks.gpu.hazards --out DIR``.

Per program ``DIR/NAME/{racy,repaired}`` gets a profile and an execution trace of the same three
steps, ``DIR/NAME/result.json`` what was planted and what came out, ``sanitizer.txt`` what torch's
sanitizer said of two steps in a process of their own. ``--pack DIR --into DIR2`` puts all of it
into a tar file. ``HAZARDS_DRY=1`` runs it on the CPU, to test it: only gloo races there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TWINS = ("racy", "repaired")
MAX_TEXT = 20_000
"""Bytes kept of what a process wrote."""


class Runner:
    """Starts the processes, within the time given for all of them together."""

    def __init__(self, out: Path, seconds: float, timeout: float, stacks: bool) -> None:
        self._out = out
        self._begin = time.monotonic()
        self._end = self._begin + seconds
        self._timeout = timeout
        self._stacks = stacks
        self._lock = out / "gpu.lock"
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        line = f"{time.monotonic() - self._begin:6.1f} s  {line}"
        self.lines.append(line)
        print(line, flush=True)
        with open(self._out / "log.txt", "a") as file:
            file.write(line + "\n")

    def warm(self) -> None:
        """Read torch from the disk once, outside of any program's time."""
        left = max(1.0, self._end - time.monotonic())
        status, _ = _ended([sys.executable, "-c", "import torch, torch.profiler"], {}, left)
        self.log(f"torch imported, status {status}")

    def record(self, name: str) -> None:
        command = ["--one", name, "--lock", str(self._lock), "--out", str(self._out)]
        if not self._stacks:
            command.append("--no-stacks")
        status, text = self._run(f"record {name}", command, {})
        (self._out / name).mkdir(exist_ok=True)
        (self._out / name / "process.txt").write_text(text[-MAX_TEXT:])
        result = _result(self._out / name / "result.json")
        if status is None or status != 0 or not result:
            self.log(f"record {name}: status {status}; {_last(text)}")
            return
        for twin in TWINS:
            facts = result[twin]
            wrong = "".join("x" if one else "." for one in facts["differs"])
            errors = " ".join(str(facts[key]) for key in facts if key.endswith("_error"))
            self.log(
                f"record {name} {twin}: wrong {wrong}, {facts.get('trace_bytes')} + "
                f"{facts.get('execution_trace_bytes')} B, {facts['seconds']} s {errors}"
            )

    def sanitize(self, name: str, twin: str) -> None:
        variables = {"TORCH_CUDA_SANITIZER": "1"}
        command = ["--sanitize", name, twin, "--out", str(self._out)]
        status, text = self._run(f"sanitize {name} {twin}", command, variables)
        folder = self._out / name / twin
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sanitizer.txt").write_text(text[-MAX_TEXT:])
        found = text.count("CSAN detected a possible data race")
        content = {"status": status, "races": found}
        (folder / "sanitizer.json").write_text(json.dumps(content) + "\n")
        self.log(f"sanitize {name} {twin}: status {status}, races {found}")

    def _run(
        self, label: str, arguments: list[str], variables: dict[str, str]
    ) -> tuple[int | None, str]:
        left = min(self._timeout, self._end - time.monotonic())
        if left < 3:
            return None, f"{label}: not run, the time was over\n"
        return _ended([sys.executable, "-m", __package__, *arguments], variables, left)


def _ended(command: list[str], variables: dict[str, str], timeout: float) -> tuple[int | None, str]:
    """Exit status (None: killed after the time) and all that was written."""
    places = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    environment = {**os.environ, **places, **variables}
    try:
        done = subprocess.run(
            command,
            env=environment,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return None, (error.stdout or b"").decode(errors="replace") + f"\nkilled: {timeout:.0f} s\n"
    return done.returncode, done.stdout.decode(errors="replace")


def _result(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "nothing was written"


def pack(folder: Path, into: Path) -> Path:
    """Put all files into one tar file: a megabyte or two."""
    into.mkdir(parents=True, exist_ok=True)
    made = into / "hazards.tar.gz"
    with tarfile.open(made, "w:gz", compresslevel=6) as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != "gpu.lock":
                tar.add(path, str(path.relative_to(folder)))
    return made


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hazards", description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--timeout", type=float, default=40, help="seconds for one process")
    parser.add_argument("--workers", type=int, default=3, help="processes at a time")
    parser.add_argument("--sanitizers", type=int, default=6, help="the same, under the sanitizer")
    parser.add_argument("--no-stacks", action="store_true")
    parser.add_argument("--no-sanitizer", action="store_true")
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--into", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--lock", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--sanitize", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def _child(options: argparse.Namespace) -> None:
    from benchmarks.gpu.hazards import recorder

    status = 1
    try:
        if options.one:
            stacks = not options.no_stacks
            status = recorder.record(options.one, options.out, options.lock, stacks)
        else:
            status = recorder.sanitize(*options.sanitize)
    except BaseException:  # noqa: BLE001 - whoever started it reads why
        traceback.print_exc()
    recorder.leave(status)


def _all(options: argparse.Namespace) -> None:
    from benchmarks.gpu.hazards.gallery import GALLERY

    names = [program.name for program in GALLERY]
    if options.only:
        chosen = options.only.split(",")
        unknown = set(chosen) - set(names)
        if unknown:
            sys.exit(f"hazards: no program {', '.join(sorted(unknown))}; there are {names}")
        names = [name for name in names if name in chosen]
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    runner = Runner(out, options.seconds, options.timeout, not options.no_stacks)
    runner.warm()
    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(runner.record, names))
    if not options.no_sanitizer:
        with ThreadPoolExecutor(options.sanitizers) as pool:
            pairs = [(name, twin) for name in names for twin in TWINS]
            list(pool.map(lambda pair: runner.sanitize(*pair), pairs))
    runner.log("done")


def main() -> None:
    """Run what the command line asks for."""
    options = _options()
    if options.one or options.sanitize:
        _child(options)
    if not options.out and not options.pack:
        sys.exit("hazards: name --out DIR, or --pack DIR with --into DIR2")
    if options.out:
        _all(options)
    if options.pack:
        made = pack(options.pack, options.into or options.pack)
        print(made, made.stat().st_size)


if __name__ == "__main__":
    main()
