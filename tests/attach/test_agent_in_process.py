"""A window recorded by the job's own code: counted by its optimizer, or by explicit marks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAM = """
import json, os, sys, torch
from pathlib import Path
from diagnose.agent.in_process import LocalWindow
import torch.optim.optimizer as hooks
from torch.autograd.profiler import profile as session
folder = Path(sys.argv[1])
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(steps, each=lambda: None):
    for _ in range(steps):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        each()

def begin(name, **arguments):
    window = LocalWindow(str(folder / name), **arguments)
    window.start()
    return window

def show(name, window, reply):
    marks = [mark[0] for mark in reply.get("marks", [])]
    clean = not hooks._global_optimizer_post_hooks and session._prepare_trace is original
    print(json.dumps([name, reply["ok"], reply.get("code"), marks, len(window.marks()), clean]))

train(1)  # torch itself may load its compiler, by then
compiler = "torch._inductor.config" in sys.modules
original = session._prepare_trace
w = begin("optimizer.json", steps=3, warmup=2, metadata={"diagnose": 1})
train(2 + 1 + 3 + 2); show("optimizer", w, w.finish())
new = "torch._inductor.config" in sys.modules and not compiler
print(json.dumps([new, "TORCHINDUCTOR_CACHE_DIR" in os.environ and not compiler]))
w = begin("explicit.json", steps=2, warmup=0, explicit=True)
train(5, w.step); show("explicit", w, w.finish())
w = begin("switch.json", steps=2)
train(5, w.step); show("switch", w, w.finish())
w = begin("none.json", steps=2, warmup=0)
for _ in range(4): model(torch.ones(2, 8)); w.step()
show("none", w, w.finish())
w = begin("early.json", steps=9); train(4); show("early", w, w.finish())
w = begin("never.json", steps=9); show("never", w, w.finish())
w = begin("missing/trace.json"); train(6); show("unwritable", w, w.finish())
with torch.profiler.profile() as own:
    w = begin("busy.json"); train(6); show("busy", w, w.finish())
w = begin("taken.json", steps=50); train(8)
with torch.profiler.profile() as own: train(2)
show("taken", w, w.finish())
w = begin("twice.json", steps=1, warmup=0); train(4); w.finish(); show("twice", w, w.finish())
for wrong in ({"steps": 0}, {"warmup": -1}, {"options": {"colour": True}}):
    try: LocalWindow(str(folder / "x"), **wrong)
    except ValueError as error: print(json.dumps([str(error)]))
print(json.dumps(w.environment()["torch"] == torch.__version__))
print(json.dumps(sorted(path.name for path in folder.iterdir())))
"""


def test_in_process(tmp_path: Path, root: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        cwd=root,
        env={k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    # The start is mark 1; two steps of warmup and one to prepare, then three: marks 4 to 7.
    options = "shapes, stacks, memory, sync_events, all_threads, modules"
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        # name, ok, code, marks of the window, all marks (with the start), nothing left
        ["optimizer", True, None, [4, 5, 6, 7], 9, True],
        [False, False],  # torch's own way to prepare would load its compiler
        ["explicit", True, None, [2, 3, 4], 6, True],
        # The optimizer ended the first step too, and got the profile ready: one step sooner.
        ["switch", True, None, [2, 3, 4], 6, True],
        ["none", True, None, [2, 3, 4], 5, True],
        ["early", False, "aborted", [], 5, True],
        ["never", False, "no-steps", [], 1, True],
        ["unwritable", False, "output", [], 0, True],
        ["busy", False, "profiler-busy", [], 0, True],
        ["taken", False, "job-profiler", [], 11, True],
        ["twice", False, "internal", [], 5, True],
        ["steps must be 1 or more, warmup 0 or more"],
        ["steps must be 1 or more, warmup 0 or more"],
        [f"options are true or false: {options}"],
        True,
        ["explicit.json", "none.json", "optimizer.json", "switch.json", "twice.json"],
    ]
    trace = json.loads((folder / "optimizer.json").read_text())
    assert trace["diagnose"] == 1
    operators = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "cpu_op"]
    assert operators.count("aten::addmm") == 3


COMPILED = """
import json, sys, torch
from torch._dynamo.utils import counters
from diagnose.agent.in_process import LocalWindow
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.compile(backend="eager")
def step():
    optimizer.step()

def train(steps):
    for _ in range(steps):
        model(torch.ones(2, 8)).sum().backward()
        step()
    return counters["frames"]["total"], sum(counters["graph_break"].values())

compiled = train(4)
window = LocalWindow(sys.argv[1])
window.start()
same = train(8) == compiled
print(json.dumps([compiled[0] > 0, same, window.finish()["ok"], train(3) == compiled]))
"""


def test_a_compiled_optimizer_step_is_not_compiled_anew(tmp_path: Path, root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, str(tmp_path / "trace.json")],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True, True, True, True]
