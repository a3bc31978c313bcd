"""``import diagnose`` is cheap, and a report does not load what it does not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"numpy", "pandas", "torch", "plotly", "dash", "rich", "typer", "msgspec", "isal", "fsspec"}


def modules_after(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nsys.stderr.write(' '.join(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return set(run.stderr.split())


def test_importing_the_package_loads_nothing_else():
    loaded = modules_after("import diagnose")
    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.startswith("diagnose")} == {"diagnose"}
    # `typing` is all it needs of the standard library.
    assert len(loaded - modules_after("import typing")) < 5


def test_help_loads_no_data_library():
    run = "from diagnose.cli import execute; assert execute(['report', '--help']) == 0"
    loaded = modules_after(run)
    assert loaded & (HEAVY - {"typer", "rich"}) == set()


@pytest.mark.parametrize("arguments", [["report"], ["overlap"], ["overlap", "--by", "step"]])
def test_a_report_loads_neither_pandas_nor_a_plotting_library(recordings, arguments):
    line = [*arguments, str(recordings / "healthy")]
    loaded = modules_after(f"from diagnose.cli import execute; assert execute({line!r}) == 0")
    assert loaded & {"pandas", "torch", "plotly", "dash", "dashboard"} == set()
    assert "numpy" in loaded
