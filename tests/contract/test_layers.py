"""The layers of docs/architecture.md hold, and the contracts that hold them can fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def _lint(folder: Path, *contracts: str) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    arguments = [word for contract in contracts for word in ("--contract", contract)]
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache", *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """A copy of the two packages and their contracts, to be broken."""
    for package in ("diagnose", "dashboard"):
        shutil.copytree(root / package, tmp_path / package, ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copy(root / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_contract_is_kept(root: Path) -> None:
    result = _lint(root)
    assert result.returncode == 0, result.stdout
    assert "0 broken" in result.stdout


@pytest.mark.parametrize(
    ("contract", "module", "line"),
    [
        ("layers", "diagnose/errors.py", "import diagnose.trace"),
        ("layers", "diagnose/readers/upwards.py", "import diagnose.recording"),
        ("layers", "diagnose/new_and_unplaced.py", ""),
        ("dashboard", "diagnose/errors.py", "import dashboard"),
        ("torch", "diagnose/trace.py", "import torch"),
        ("nvml", "diagnose/trace.py", "import pynvml"),
        ("hta", "diagnose/trace.py", "import hta"),
        ("mcp", "diagnose/cli/mcp.py", "import mcp.server"),
        ("layers", "diagnose/assistant/tools.py", "import diagnose.cli.report"),
        ("dash", "diagnose/trace.py", "import dash"),
        ("plotly", "diagnose/trace.py", "def late():\n    import plotly"),
        ("verbs", "diagnose/cli/info.py", "import diagnose.cli.report"),
        ("reporters", "diagnose/reporters/markdown.py", "import diagnose.reporters.text"),
        ("views", "dashboard/views/power.py", "import dashboard.views.ranks"),
    ],
)
def test_breaking_a_contract_is_noticed(copy: Path, contract: str, module: str, line: str) -> None:
    with (copy / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    result = _lint(copy, contract)
    assert result.returncode != 0
    assert "BROKEN" in result.stdout


@pytest.mark.parametrize(
    ("contract", "module", "line"),
    [
        ("torch", "diagnose/agent/window.py", "import torch"),
        ("nvml", "diagnose/telemetry/nvml.py", "import pynvml"),
        ("plotly", "diagnose/figures/bars.py", "import plotly.graph_objects"),
        ("hta", "diagnose/readers/hta.py", "import hta.common"),
        ("mcp", "diagnose/assistant/server.py", "import mcp.server.stdio"),
    ],
)
def test_the_one_place_that_may(copy: Path, contract: str, module: str, line: str) -> None:
    path = copy / module
    path.parent.mkdir(exist_ok=True)
    (path.parent / "__init__.py").touch()
    path.write_text(f"{line}\n", encoding="utf-8")
    result = _lint(copy, contract)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("contract", "package", "constant"),
    [
        ("verbs", "diagnose/cli", "COMMAND"),
        ("reporters", "diagnose/reporters", "REPORTER"),
        ("views", "dashboard/views", "VIEW"),
    ],
)
def test_contract_lists_every_sibling(
    root: Path, contract: str, package: str, constant: str
) -> None:
    """Independence is declared module by module, so a new one must not be forgotten."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    [listed] = [entry["modules"] for entry in contracts if entry["id"] == contract]
    there = [
        f"{package.replace('/', '.')}.{path.stem}"
        for path in sorted((root / package).glob("*.py"))
        if f"\n{constant}" in path.read_text(encoding="utf-8")
    ]
    assert there, f"no module of {package} exports {constant}"
    assert sorted(listed) == there
