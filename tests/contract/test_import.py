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


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_small_question_loads_only_the_analyses_that_it_needs(recordings, form):
    line = ["overlap", str(recordings / "healthy"), "--format", form]
    loaded = modules_after(f"from diagnose.cli import execute; assert execute({line!r}) == 0")
    assert "diagnose.timeline" in loaded
    others = ("diagnose.replay", "diagnose.contention", "diagnose.rules", "diagnose.telemetry")
    assert not [name for name in loaded if name.startswith(others)]
    verbs = {name for name in loaded if name.startswith("diagnose.cli.") and "._" not in name}
    assert verbs == {"diagnose.cli.overlap"}


def test_numpy_starts_one_thread_and_the_environment_stays_as_it_was(recordings):
    line = ["overlap", str(recordings / "healthy")]
    loaded = modules_after(
        "import os, threading\n"
        "from diagnose.cli import execute\n"
        f"assert execute({line!r}) == 0\n"
        "assert 'OPENBLAS_NUM_THREADS' not in os.environ\n"
        "assert len(os.listdir('/proc/self/task')) == threading.active_count(), 'more threads'"
    )
    assert "numpy" in loaded
