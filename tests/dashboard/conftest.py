"""What the tests of the dashboard share: a small recording, an application with its client."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dash
import pytest
from flask.testing import FlaskClient

from dashboard.address import Address
from dashboard.app import create_app
from dashboard.library import Library
from dashboard.security import Guard
from dashboard.shown import Shown
from dashboard.view import Visit
from diagnose.plotting.palette import LIGHT
from diagnose.recording import load
from tests.builder import TraceBuilder

SHIPPED = ("data_stall", "healthy", "host_sync", "launch_bound", "pageable_copy", "straggler")
TOKEN = "a-token-that-only-tests-know"
PORT = 8050


def write_known(folder: Path) -> Path:
    """One rank of which all is known, in microseconds.

    =========  =========  =======
    stream 7   gemm_a     100-200
    stream 7   gemm_b     300-400
    stream 20  all-reduce 350-600
    stream 7   gemm_c     700-900
    =========  =========  =======
    """
    folder.mkdir(parents=True)
    builder = TraceBuilder(rank=0, world_size=1).step(1, 0, 500).step(2, 500, 500)
    builder.kernel("gemm_a", 100, 100, launch=10)
    builder.kernel("gemm_b", 300, 100, launch=30)
    builder.collective("allreduce", 350, 250, launch=40)
    builder.kernel("gemm_c", 700, 200, launch=510)
    builder.write(folder)
    return folder


@pytest.fixture(scope="session")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_known(tmp_path_factory.mktemp("known") / "known")


@pytest.fixture(scope="session")
def known_shown(known: Path) -> Shown:
    return Shown("known", "known", load([str(known)]).trace)


class Asked:
    """An application as a browser talks to it: with the cookie, and callbacks by an output."""

    def __init__(self, app: dash.Dash) -> None:
        self.app = app
        self.client: FlaskClient = app.server.test_client()
        self.client.set_cookie(f"diagnose-{PORT}", TOKEN, domain="127.0.0.1")

    def get(self, path: str, **headers: str) -> Any:
        return self.client.get(path, headers=_named(headers), base_url=f"http://127.0.0.1:{PORT}")

    def callback(self, output: str, values: Mapping[str, Any], changed: str, **headers: str) -> Any:
        """The answer of the callback that has an output; ``values`` by ``id.property``."""
        [found] = [
            one for one in self.app._callback_list if output in one["output"] and _has(one, changed)
        ]
        body = {
            "output": found["output"],
            "outputs": _outputs(found["output"]),
            "inputs": [_filled(one, values) for one in found["inputs"]],
            "state": [_filled(one, values) for one in found["state"]],
            "changedPropIds": [changed],
        }
        return self.client.post(
            "/_dash-update-component",
            json=body,
            headers=_named(headers),
            base_url=f"http://127.0.0.1:{PORT}",
        )


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def _has(callback: Mapping[str, Any], changed: str) -> bool:
    return any(f"{one['id']}.{one['property']}" == changed for one in callback["inputs"])


def _outputs(output: str) -> Any:
    parts = output.strip(".").split("...") if output.startswith("..") else [output]
    made = [dict(zip(("id", "property"), one.rsplit(".", 1), strict=True)) for one in parts]
    return made if output.startswith("..") else made[0]


def _filled(given: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    key = f"{given['id']}.{given['property']}"
    return {"id": given["id"], "property": given["property"], "value": values.get(key)}


@pytest.fixture(scope="session")
def library(known: Path) -> Library:
    return Library([str(known)])


@pytest.fixture(scope="session")
def asked(library: Library) -> Asked:
    """An application of these recordings, to be asked."""
    return Asked(create_app(library, Guard(token=TOKEN, port=PORT)))


def on_cpu(folder: Path) -> None:
    """A job without a GPU: host operations alone."""
    builder = TraceBuilder(rank=0, world_size=1).step(1, 0, 500).step(2, 500, 500)
    builder.operator("aten::mm", 100, 50)
    builder.operator("aten::mm", 600, 50)
    builder.write(folder)


def no_steps(folder: Path) -> None:
    """A job on one GPU whose loop calls no ``profiler.step()``."""
    builder = TraceBuilder(rank=0, world_size=1)
    builder.kernel("gemm_a", 100, 100, launch=10)
    builder.collective("allreduce", 150, 100, launch=20)
    builder.write(folder)


UNTRUSTED = "<img src=x onerror=alert(1)></script><script>alert(1)</script>%{x} $1$ \u202egpj"
"""Markup, the end of a script, what plotly and MathJax fill in, and a turn of direction."""


def untrusted(folder: Path) -> None:
    """A job whose kernels, groups and operators are named to do harm."""
    builder = TraceBuilder(rank=0, world_size=1)
    for step in range(4):
        at = 1000 * step
        builder.step(step, at, 1000)
        builder.operator(UNTRUSTED, at + 5, 4)
        for place in range(3):
            alone, beside = at + 100 + 100 * place, at + 500 + 100 * place
            builder.kernel(UNTRUSTED, alone, 40, launch=at + 10 + place)
            builder.collective("allreduce", beside, 60, launch=at + 20 + place, group=UNTRUSTED)
            builder.kernel(UNTRUSTED, beside, 60, launch=at + 30 + place)
    builder.write(folder)


@pytest.fixture(scope="session")
def recorded(root: Path, cases: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder with every recording that these tests look at, by its name."""
    made = tmp_path_factory.mktemp("all")
    for name in SHIPPED:
        (made / name).symlink_to(root / "examples" / "recordings" / name)
    write_known(made / "known")
    write_known(made / "copied")
    for name, write in (("on-cpu", on_cpu), ("no-steps", no_steps), ("untrusted", untrusted)):
        (made / name).mkdir()
        write(made / name)
    for name, file in (
        ("hostile", cases / "ui-hostile-names" / "rank0.json"),
        ("no-events", cases / "parse-no-gpu-work" / "no-events.json"),
    ):
        (made / name).mkdir()
        shutil.copy(file, made / name)
    return made


@pytest.fixture(scope="session")
def visit(recorded: Path) -> Callable[..., Visit]:
    """What a page is drawn for; a recording is loaded once."""
    library = Library([str(recorded)])
    loaded: dict[str, Shown] = {}

    def made(name: str, page: str = "", **given: Any) -> Visit:
        if name not in loaded:
            loaded[name] = Shown(name, name, load([str(recorded / name)]).trace)
        return Visit(loaded[name], Address(page=page, recording=name, **given), LIGHT, library)

    return made
