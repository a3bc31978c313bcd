"""The cooperative way in, in real Pythons with a made-up torch: when there is a thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

LAUNCH = Path(__file__).resolve().parents[3] / "diagnose" / "agent" / "launch"

# As much of torch as the agent touches until a window is asked for.
FAKE_TORCH = {
    "torch/__init__.py": """
__version__ = "2.99"
from torch import optim, cuda, distributed
""",
    "torch/optim/__init__.py": "from torch.optim.optimizer import Optimizer\n",
    "torch/optim/optimizer.py": """
hooks = {}
class Handle:
    def __init__(self, number): self.number = number
    def remove(self): hooks.pop(self.number)
def register_optimizer_step_post_hook(hook):
    hooks[len(hooks)] = hook
    return Handle(len(hooks) - 1)
class Optimizer:
    param_groups = []
    @staticmethod
    def profile_hook_step(function):
        def wrapper(self): function(self)
        return wrapper
    def step(self):
        for hook in hooks.values(): hook(self, (), {})
""",
    "torch/cuda/__init__.py": """
queued = []
def _lazy_call(call): queued.append(call)
def is_initialized(): return False
def init():
    for call in queued: call()
""",
    "torch/distributed/__init__.py": """
from torch.distributed.distributed_c10d import init_process_group
def is_available(): return False
""",
    "torch/distributed/distributed_c10d.py": """
def init_process_group(backend, *, rank=0):
    '''Starts it.'''
    return (backend, rank)
""",
}

REPORT = """
import json, os, sys, threading
def report():
    folder = os.environ["DIAGNOSE_DIR"]
    print(json.dumps({
        "threads": [t.name for t in threading.enumerate() if t.name.startswith("diagnose")],
        "sockets": [n.split(".")[0] == str(os.getpid()) for n in os.listdir(folder)],
        "agent": sorted(n for n in sys.modules if n.startswith("_diagnose_agent")),
        "diagnose": "diagnose" in sys.modules,
    }), flush=True)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name, text in {**FAKE_TORCH, "report.py": REPORT}.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "s").mkdir(mode=0o700)
    return tmp_path / "site"


def run(
    site: Path, code: str, env: Mapping[str, str] | None = None, flags: tuple[str, ...] = ()
) -> list[Any]:
    """What a program printed as JSON lines; it must end well and print nothing else."""
    path = os.pathsep.join([str(LAUNCH), str(site)])
    own = {"PYTHONPATH": path, "DIAGNOSE_AGENT": "1", "DIAGNOSE_DIR": str(site.parent / "s")}
    done = subprocess.run(
        [sys.executable, "-W", "error", *flags, "-c", code],
        env={**os.environ, **own, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_nothing_happens_without_torch(site: Path) -> None:
    (state,) = run(site, "from report import report; report()")
    assert state["threads"] == []
    assert state["sockets"] == []
    assert state["agent"] == ["_diagnose_agent", "_diagnose_agent.autoload"]


def test_thread_and_socket_come_with_the_first_step(site: Path) -> None:
    code = """
from report import report
import torch
report()
optimizer = torch.optim.Optimizer()
optimizer.step()
report()
optimizer.step()
report()
import _diagnose_agent.server
print(_diagnose_agent.server.running().clock.step)
"""
    before, first, second, steps = run(site, code)
    assert (before["threads"], before["sockets"]) == ([], [])
    assert (first["threads"], first["sockets"]) == (["diagnose-agent"], [True])
    assert second == first
    assert first["diagnose"] is False
    assert steps == 2
    assert list((site.parent / "s").iterdir()) == []  # the file went at exit


@pytest.mark.parametrize(
    "sign",
    [
        "assert torch.distributed.init_process_group('nccl', rank=3) == ('nccl', 3)",
        "torch.cuda.init()",
    ],
)
def test_a_process_without_optimizer_is_reachable_too(site: Path, sign: str) -> None:
    code = f"from report import report\nimport torch\nreport()\n{sign}\n{sign}\nreport()"
    before, after = run(site, code)
    assert before["threads"] == []
    assert (after["threads"], after["sockets"]) == (["diagnose-agent"], [True])


def test_what_is_wrapped_looks_as_before(site: Path) -> None:
    code = """
import inspect, json, torch
from torch.distributed import init_process_group as init
import torch.optim.optimizer as module
changed = "exec_module" in vars(module.__loader__)
print(json.dumps([init.__doc__, str(inspect.signature(init)), changed]))
print(json.dumps(type(module.__spec__.loader).__name__))
"""
    assert run(site, code) == [["Starts it.", "(backend, *, rank=0)", False], "SourceFileLoader"]


@pytest.mark.parametrize("value", ["0", "", "yes"])
def test_only_where_it_is_asked_for(site: Path, value: str) -> None:
    code = "from report import report\nimport torch\ntorch.optim.Optimizer().step()\nreport()"
    (state,) = run(site, code, {"DIAGNOSE_AGENT": value})
    assert (state["threads"], state["agent"]) == ([], [])


@pytest.mark.parametrize("flags", [("-I",), ("-S",)])
def test_isolated_python_runs_without_it(site: Path, flags: tuple[str, ...]) -> None:
    assert run(site, "print(1)", flags=flags) == [1]


def test_an_agent_that_cannot_work_harms_nobody(site: Path) -> None:
    (site.parent / "s").chmod(0o755)
    code = """
from report import report
import torch
torch.distributed.init_process_group("gloo")
torch.optim.Optimizer().step()
report()
"""
    (state,) = run(site, code)
    assert (state["threads"], state["sockets"]) == ([], [])


def test_the_sites_own_sitecustomize_is_run(site: Path) -> None:
    (site / "sitecustomize.py").write_text("import builtins\nbuiltins.mark = __name__, __file__\n")
    code = """
import json, sys
import sitecustomize
ours = [entry for entry in sys.path if "launch" in entry]
print(json.dumps([*mark, sitecustomize.__file__ == mark[1], ours]))
"""
    expected = ["sitecustomize", str(site / "sitecustomize.py"), True, []]
    assert run(site, code) == [expected]
    assert run(site, code, {"DIAGNOSE_AGENT": "0"}) == [expected]


def test_a_forked_child_starts_over(site: Path) -> None:
    code = """
import json, os, warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of a fork beside threads
from report import report
import torch, torch.optim.optimizer as module
optimizer = torch.optim.Optimizer()
optimizer.step(); optimizer.step()
pid = os.fork()
if pid == 0:
    import _diagnose_agent.server as server
    report()
    print(server.running().clock.step, flush=True)
    torch.optim.Optimizer().step()
    report()
    print(json.dumps([server.running().clock.step, len(module.hooks)]), flush=True)
    raise SystemExit
assert os.waitpid(pid, 0)[1] == 0
optimizer.step()
report()
import _diagnose_agent.server as server
print(server.running().clock.step)
"""
    child, none, opened, one, parent, three = run(site, code)
    assert (child["threads"], none) == ([], 0)
    assert (opened["threads"], sorted(opened["sockets"])) == (["diagnose-agent"], [False, True])
    assert one == [1, 1]
    assert (parent["threads"], parent["sockets"], three) == (["diagnose-agent"], [True], 3)


def test_spawned_helpers_get_no_thread(site: Path) -> None:
    (site / "helper.py").write_text(
        "import torch, report\ndef work(_): report.report(); return torch.__version__\n"
    )
    (site / "main.py").write_text(
        """
import multiprocessing, torch, helper
if __name__ == "__main__":
    torch.optim.Optimizer().step()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(helper.work, [1]) == ["2.99"]
        pool.close()
        pool.join()
"""
    )
    code = f"import runpy; runpy.run_path({str(site / 'main.py')!r}, run_name='__main__')"
    (state,) = run(site, code)
    assert (state["threads"], state["sockets"]) == ([], [False])
