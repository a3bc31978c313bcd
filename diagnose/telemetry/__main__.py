"""``python -m diagnose.telemetry``: record sensors from a process of its own.

For recording from within a training script, where NVML must not run in the job, and for
people. Ends after ``--seconds``, at SIGTERM or SIGINT, or when its input is closed: a job
that dies takes it along. Two lines of JSON on the output: one when sampling has begun,
with what is known of the GPUs, one at the end with files and notes.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import stat
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from diagnose import telemetry
from diagnose.errors import DiagnoseError, OutputError
from diagnose.telemetry.pace import INTERVAL_S

_CHECK_EVERY_S = 0.2
_READY_PATIENCE_S = 10


def main(arguments: list[str] | None = None, *, source: telemetry.Source | None = None) -> int:
    """Sample until told to stop. Returns 0, or 2 with a sentence on stderr."""
    options = _options(arguments)
    try:
        opened = telemetry.open_source() if source is None else source
    except DiagnoseError as error:
        return _refuse(error)
    try:
        targets = _targets(opened, options.gpu, options.name, options.output)
        sampler = telemetry.Sampler(opened, targets, interval_s=options.interval_ms / 1000)
        described = [opened.describe(gpu.index) for gpu in opened.gpus()]
        stopping = _Stopping()
        sampler.start()
        sampler.ready.wait(_READY_PATIENCE_S)
        _say({"ready": True, "gpus": described})
        stopping.wait(options.seconds)
        sampled = sampler.stop()
    except DiagnoseError as error:
        return _refuse(error)
    finally:
        opened.close()
    _say({"files": [str(path) for path in sampled.files], "notes": list(sampled.notes)})
    return 0


class _Stopping:
    """Waits for the time, a signal or the end of the input, whatever comes first."""

    def __init__(self) -> None:
        self._asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        try:
            mode = os.fstat(0).st_mode
        except OSError:
            mode = 0
        # /dev/null is at its end from the start: as input it means that there is none.
        self._listens = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(0)

    def wait(self, seconds: float | None) -> None:
        until = None if seconds is None else time.monotonic() + seconds
        while not self._asked and (until is None or time.monotonic() < until):
            left = _CHECK_EVERY_S if until is None else max(0.0, until - time.monotonic())
            self._listen(min(_CHECK_EVERY_S, left))

    def _listen(self, seconds: float) -> None:
        if not self._listens:
            time.sleep(seconds)
            return
        readable, _, _ = select.select([0], [], [], seconds)
        if readable and not os.read(0, 4096):
            self._asked = True

    def _signalled(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._asked = True


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m diagnose.telemetry",
        description="Record power, clocks and counters of GPUs as *.telemetry.csv.",
    )
    parser.add_argument(
        "--gpu",
        action="extend",
        nargs="+",
        default=[],
        metavar="UUID",
        help="UUIDs or numbers of GPUs as nvidia-smi shows them (default: all)",
    )
    parser.add_argument(
        "--name",
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME",
        help="name of the file without .telemetry.csv, for each --gpu in order (default: the UUID)",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="where to write")
    parser.add_argument("--seconds", type=_positive, help="end after this time")
    parser.add_argument(
        "--interval-ms",
        type=_positive,
        default=INTERVAL_S * 1000,
        help="time between two readings, if that is cheap enough (default: %(default)g)",
    )
    options = parser.parse_args(arguments)
    if options.name and len(options.name) != len(options.gpu):
        parser.error("give one --name for each --gpu")
    return options


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number over 0")
    return value


def _targets(
    source: telemetry.Source, gpus: list[str], names: list[str], output: Path
) -> dict[int | str, list[str | os.PathLike[str]]]:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{output}: cannot be made ({error.strerror})", hint="give another folder"
        ) from None
    uuids = {gpu.index: gpu.uuid or f"gpu{gpu.index}" for gpu in source.gpus()}
    keys: list[int | str] = [int(gpu) if gpu.isdecimal() else gpu for gpu in gpus]
    keys = keys or list(uuids)
    labels = names or [uuids.get(key, str(key)) if isinstance(key, int) else key for key in keys]
    targets: dict[int | str, list[str | os.PathLike[str]]] = {}
    for key, label in zip(keys, labels, strict=True):
        path = output / f"{Path(label).name}.telemetry.csv"
        targets.setdefault(key, []).append(path)
    return targets


def _say(content: dict[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps(content) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever asked is gone; the files matter more. Python must not complain at its end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _refuse(error: DiagnoseError) -> int:
    sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
    return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
