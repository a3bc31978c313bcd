"""Arguments and options that several verbs share."""

from __future__ import annotations

import importlib
import os
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Only(str, Enum):
    """How much of a trace is kept."""

    gpu = "gpu"
    launches = "launches"
    shapes = "shapes"


CheckSync = Annotated[
    bool,
    typer.Option(
        "--check-sync",
        help="Also record what shows missing synchronisation: Python stacks, which memory "
        "operators use, which events streams wait for. Slows the recorded steps several times; "
        "until the job ends each CUDA event and allocation then takes 2 to 3 microseconds more, "
        "as PyTorch's calling back cannot be switched off again.",
    ),
]
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def _import_numpy(paths: list[str]) -> list[str]:
    """Numpy for a verb that reads traces, with one thread of its linear algebra.

    A thread for each core costs more CPU at the start than all that is multiplied here, and
    how many there are decides the last digits of sums: they would differ between machines.
    """
    if "numpy" not in sys.modules and _BLAS_THREADS not in os.environ:
        os.environ[_BLAS_THREADS] = "1"
        try:
            importlib.import_module("numpy")
        finally:
            del os.environ[_BLAS_THREADS]
    return paths


Paths = Annotated[
    list[str],
    typer.Argument(
        callback=_import_numpy,
        metavar="PATH",
        help="Traces: files (.json, .json.gz, .zip), folders, globs, recording folders or URLs.",
        show_default=False,
    ),
]
Classify = Annotated[
    Path | None,
    typer.Option(
        metavar="TOML", help="Extend how kernel names are classified.", show_default=False
    ),
]
OnlyOption = Annotated[
    Only | None,
    typer.Option(
        "--only",
        help="Read less: 'gpu' keeps GPU activities alone and gives no figures per step, "
        "'launches' also calls into the runtime, 'shapes' also the input shapes of kernels.",
        show_default=False,
    ),
]
Rank = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="The rank of a single file that does not say it.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write to a file instead of the terminal.",
        show_default=False,
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        from diagnose import __version__

        typer.echo(f"diagnose {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="Show the traceback of an unexpected error (anywhere on the line)."
        ),
    ] = False,
) -> None:
    """Find out why a distributed GPU training job is slower than it should be.

    Example: diagnose report traces/
    """
    # Both are dealt with elsewhere: see `_print_version` and `diagnose.cli.execute`.
    del version, debug
