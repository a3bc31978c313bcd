"""The example notebook runs, every figure of it comes out, and it is kept without outputs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NEEDS = ("nbclient", "ipykernel")
PLOTLY = "application/vnd.plotly.v1+json"
# In a process of its own: the warnings of Jupyter's packages are not ours.
RUN = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
resources = {"metadata": {"path": sys.argv[2]}}
NotebookClient(notebook, timeout=60, kernel_name="python3", resources=resources).execute()
nbformat.write(notebook, sys.argv[3])
"""


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_notebook_is_kept_without_outputs(root: Path) -> None:
    notebook = root / "examples/notebook.ipynb"
    code = [cell for cell in _read(notebook)["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    assert notebook.stat().st_size < 20_000


def test_the_notebook_runs_and_draws(root: Path, tmp_path: Path) -> None:
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"{' and '.join(missing)} not installed: pip install -e '.[dev]'")
    path = tmp_path / "executed.ipynb"
    folder = root / "examples"
    where = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))
    settings = {
        "PYTHONPATH": where,
        "PLOTLY_RENDERER": "plotly_mimetype",
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
    }
    run = subprocess.run(
        [sys.executable, "-c", RUN, str(folder / "notebook.ipynb"), str(folder), str(path)],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    cells = [cell for cell in _read(path)["cells"] if cell["cell_type"] == "code"]
    asked = 0
    for cell in cells:
        kinds = {kind for output in cell["outputs"] for kind in output.get("data", ())}
        assert kinds, cell["source"]
        if ".plot(" in "".join(cell["source"]):
            asked += 1
            assert PLOTLY in kinds, cell["source"]
            [figure] = [output["data"][PLOTLY] for output in cell["outputs"]]
            assert figure["data"]
    assert asked == 6
