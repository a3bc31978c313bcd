"""``diagnose check-sync`` around real jobs, whose launches a CPU makes up for the sanitizer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

JOBS = Path(__file__).resolve().parent / "jobs"
TORCHRUN = (*("-m", "torch.distributed.run", "--standalone"), "--nproc-per-node=2")


def line_of(call: str) -> int:
    """Of ``handler._handle_kernel_launch`` in the function that the job calls."""
    lines = (JOBS / "races.py").read_text().splitlines()
    return next(at for at, line in enumerate(lines, 1) if line.strip().startswith(call))


# The launch itself is a line of `write` and `read`, the innermost that is not torch's.
WRITE = line_of("handler._handle_kernel_launch(SIDE")
READ = line_of("handler._handle_kernel_launch(0")


# Patience is shortened, as nobody wants to wait a minute here.
HASTY = (
    "import sys; from diagnose.cli import _sanitized_job as job, main\n"
    "job._LINGERS_S, job._LATE_S, job._LEFTOVER_S = 10, 10, 1\n"
    "main(sys.argv[1:])"
)


def start(
    folder: Path, *options: str, job: tuple[str, ...] = (str(JOBS / "races.py"),), **knobs: str
) -> subprocess.Popen[str]:
    sockets = folder / "s"
    sockets.mkdir(mode=0o700, exist_ok=True)
    (folder / "tmp").mkdir(exist_ok=True)
    environ = {"JOB_DIR": str(folder), "DIAGNOSE_DIR": str(sockets), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", HASTY, "check-sync", *options, "--", sys.executable, *job]
    return subprocess.Popen(
        command,
        env={**os.environ, **environ, "TMPDIR": str(folder / "tmp"), **knobs},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def check(folder: Path, *options: str, **knobs: object) -> subprocess.CompletedProcess[str]:
    """Its output; nothing of the job or of the check is left behind."""
    process = start(folder, *options, **knobs)  # type: ignore[arg-type]
    return ended(process, folder)


def ended(process: subprocess.Popen[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert not [path for path in (folder / "tmp").iterdir() if "diagnose" in path.name]
    assert "diagnose/" not in err  # nor a traceback of ours
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_race_is_a_finding_and_the_job_goes_on_for_the_steps(tmp_path: Path) -> None:
    ran = check(tmp_path, "--steps", "4", "--fail-on", "warning")
    assert ran.returncode == 1, ran.stderr
    assert "critical  missing-stream-sync" in ran.stdout
    flat = " ".join(ran.stdout.split())
    assert (
        "aten::mm on stream 0 reads what aten::mul on stream 0x1f0 writes, and nothing orders "
        f"them (races.py:{READ} after races.py:{WRITE})."
    ) in flat
    assert "times seen 4; in steps 1-4" in flat
    assert "Watched 4 steps" in flat
    assert "came to its own end" not in ran.stdout
    # The fourth step is over for the optimizer, and the job was ended in it.
    assert (tmp_path / "steps.0").read_text() == "3"
    assert "Traceback" not in ran.stderr


def test_a_job_in_order_has_no_findings(tmp_path: Path) -> None:
    ran = check(tmp_path, "--format", "json", RACY="0")
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said["findings"] == []
    [process] = said["processes"]
    # Two launches a step.
    assert (process["num_steps"], process["num_operators"], process["ended"]) == (3, 6, "steps")


def test_two_ranks_wait_for_each_other_and_end_well(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    job = (*TORCHRUN, str(JOBS / "races.py"))
    ran = check(tmp_path, "-o", str(out), job=job, LINGER="2")
    assert ran.returncode == 0, ran.stderr
    said = json.loads(out.read_text())
    assert [(one["rank"], one["num_steps"]) for one in said["processes"]] == [(0, 3), (1, 3)]
    [found] = said["findings"]
    evidence = {one["key"]: one["value"] for one in found["evidence"]}
    assert evidence["ranks"] == "0-1"
    assert evidence["num_seen"] == 6
    assert "Signal" not in ran.stderr


def test_a_job_that_ends_earlier_is_reported_as_far_as_it_went(tmp_path: Path) -> None:
    ran = check(tmp_path, "--steps", "9", STEPS="2")
    assert ran.returncode == 0
    assert "came to its own end" in ran.stdout
    assert "Watched 2 steps" in ran.stdout
    ran = check(tmp_path, "--steps", "9", STEPS="2", RACY="0")
    assert ran.returncode == 0
    assert "No missing synchronisation in 2 steps" in ran.stdout


def test_a_job_that_fails_keeps_its_findings_and_is_no_clean_bill(tmp_path: Path) -> None:
    ran = check(tmp_path, "--steps", "9", "--fail-on", "critical", FAIL_AT="2")
    assert ran.returncode == 1
    assert "Watched 2 steps" in ran.stdout
    ran = check(tmp_path, "--steps", "9", FAIL_AT="2")
    assert ran.returncode == 2
    assert "Watched 2 steps" in ran.stdout
    assert "after 2 of 9 steps; missing synchronisation was seen until then" in ran.stderr
    ran = check(tmp_path, "--steps", "9", FAIL_AT="2", RACY="0")
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert "error: the job ended with status 1 after 2 of 9 steps" in ran.stderr


def test_without_a_gpu_it_says_so_after_one_step(tmp_path: Path) -> None:
    ran = check(tmp_path, LAUNCHES="0", CUDA_VISIBLE_DEVICES="")
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: this machine has no GPU that PyTorch can use")
    assert "Traceback" not in ran.stderr
    assert not (tmp_path / "steps.0").exists()


def test_a_command_that_is_no_training(tmp_path: Path) -> None:
    ran = check(tmp_path, job=("-c", "pass"))
    assert ran.returncode == 2
    assert "no process of the job reported what it did" in ran.stderr
    ran = check(tmp_path, job=("/there/is/no/such.py",))
    assert ran.returncode == 2
    command = [sys.executable, "-m", "diagnose", "check-sync", "--", "/no/such/command"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert "cannot be started" in ran.stderr


def test_workers_of_a_data_loader_are_not_ended_by_the_sanitizer(tmp_path: Path) -> None:
    """By itself it asks CUDA at each operator, also in forks, where CUDA cannot be used."""
    script = tmp_path / "loads.py"
    script.write_text(
        "import torch\n"
        "data = torch.utils.data.TensorDataset(torch.arange(8.0))\n"
        "loader = torch.utils.data.DataLoader(data, 4, num_workers=2)\n"
        "print(sum(x.sum().item() for x, in loader))\n"
    )
    ran = check(tmp_path, job=(str(script),), CUDA_VISIBLE_DEVICES="")
    assert "28.0" in ran.stdout
    assert ran.returncode == 2
    assert "no GPU that PyTorch can use" in ran.stderr


def test_without_steps_the_time_ends_it(tmp_path: Path) -> None:
    ran = check(tmp_path, "--seconds", "2", OPTIMIZES="0", STEPS="100000000")
    assert ran.returncode == 0, ran.stderr
    flat = " ".join(ran.stdout.split())
    assert " operators with tensors on a GPU of one process; no step ended." in flat
    assert "less than the 3 steps wanted: the time was over (--seconds)." in flat
    assert "reads what aten::mul" in flat


def test_a_job_that_leaves_without_a_word_is_reported_as_far_as_it_went(tmp_path: Path) -> None:
    ran = check(tmp_path, LEAVE_AT="0", OPTIMIZES="0")
    assert ran.returncode == 0, ran.stderr
    flat = " ".join(ran.stdout.split())
    assert "reads what aten::mul" in flat
    assert "Watched at least 1 operator with tensors on a GPU of one process" in flat
    assert "wanted: the job ended." in flat


def test_a_rank_that_hangs_is_ended_after_the_others(tmp_path: Path) -> None:
    job = (*TORCHRUN, str(JOBS / "races.py"))
    out = tmp_path / "found.json"
    began = time.monotonic()
    ran = check(tmp_path, "-o", str(out), "--seconds", "40", job=job, HANG="1")
    assert time.monotonic() - began < 100
    assert "the job does not end by itself: it is ended" in ran.stderr
    assert ran.returncode == 0, ran.stderr
    said = json.loads(out.read_text())
    ends = [(one["rank"], one["num_steps"], one["ended"]) for one in said["processes"]]
    assert ends[0] == (0, 3, "steps")
    assert ends[1][:2] == (1, 1)
    assert said["num_steps_wanted"] == 3
    [found] = said["findings"]
    assert {one["key"]: one["value"] for one in found["evidence"]}["ranks"] == "0-1"


def test_what_the_job_has_started_is_gone_with_it(tmp_path: Path) -> None:
    ran = check(tmp_path, CHILD="1")
    assert ran.returncode == 0, ran.stderr
    assert [runs(int(pid)) for pid in (tmp_path / "children").read_text().split()] == [False] * 2


def test_a_job_that_ends_by_itself_keeps_what_it_has_started(tmp_path: Path) -> None:
    check(tmp_path, CHILD="1", STEPS="2")
    worker, stays = map(int, (tmp_path / "children").read_text().split())
    try:
        assert (runs(worker), runs(stays)) == (False, True)
    finally:
        os.kill(stays, signal.SIGKILL)


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 2, "the job ended with status 143")],
)
def test_a_signal_ends_the_job_and_keeps_what_was_found(
    tmp_path: Path, number: int, status: int, said: str
) -> None:
    process = start(tmp_path, "--steps", "100000000", STEPS="100000000")
    deadline = time.monotonic() + 60
    while not (tmp_path / "steps.0").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.5)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    assert said in err
    assert "reads what aten::mul" in " ".join(out.split())
    assert not [path for path in (tmp_path / "tmp").iterdir() if "diagnose" in path.name]


def test_a_file_that_cannot_be_written_is_refused_before_the_job_starts(tmp_path: Path) -> None:
    ran = check(tmp_path, "-o", str(tmp_path / "none" / "x.json"))
    assert ran.returncode == 2
    assert "cannot write" in ran.stderr
    assert not (tmp_path / "steps.0").exists()


QUERIES = """
import sys, types
import torch
import torch.cuda._sanitizer as csan
from diagnose.agent import sanitizer_repairs
handler = csan.EventHandler()
sys.modules["torch.cuda.streams"] = types.SimpleNamespace(
    Event=type("Event", (), {"cuda_event": 9, "query": lambda one: one.done}),
    Stream=type("Stream", (), {"cuda_stream": 7, "query": lambda one: one.done}))
sanitizer_repairs.tell_of_queries(handler)
streams = sys.modules["torch.cuda.streams"]
for kind in (streams.Event, streams.Stream):
    for done in (False, True):
        one = kind()
        one.done = done
        handler._handle_kernel_launch(7, set(), {4096}, set(), "write", {4096: []})
        handler._handle_event_record(9, 7)
        one.query()
        print(len(handler._handle_kernel_launch(0, {4096}, set(), set(), "read", {4096: []})))
"""


def test_the_sanitizer_takes_a_true_query_for_an_order() -> None:
    """Its only false alarm in the gallery of an H200, `event_not_polled` when repaired."""
    ran = subprocess.run(
        [sys.executable, "-c", QUERIES], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout.split() == ["1", "0", "1", "0"], ran.stderr


WRAPPED = """
import types
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from diagnose.agent import sanitizer_repairs
torch.cuda.is_initialized = lambda: True
torch.cuda.is_current_stream_capturing = lambda: False
seen = []

def checked(mode, func, types, args=(), kwargs=None):
    seen.append((str(func), [type(one).__name__ for one in args]))
    return func(*args, **(kwargs or {}))

class Mode(TorchDispatchMode):
    __torch_dispatch__ = sanitizer_repairs.where_cuda_runs(checked)

class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(func(*(getattr(one, "inner", one) for one in args), **(kwargs or {})))

one, plain = Wrapper(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
with Mode():
    both = one * one
    plain.detach()
print(both.inner.tolist(), seen)
"""


def test_of_a_tensor_that_wraps_others_theirs_are_checked() -> None:
    """As of the DTensors of FSDP2, which have no memory of their own."""
    ran = subprocess.run(
        [sys.executable, "-c", WRAPPED], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout.strip() == (
        "[1.0, 1.0] [('aten.mul.Tensor', ['Tensor', 'Tensor']), "
        "('aten.detach.default', ['Parameter'])]"
    ), ran.stderr


EMPTY = """
import torch
import torch.cuda._sanitizer as csan
from torch._subclasses.fake_tensor import FakeTensorMode
from diagnose.agent import sanitizer_repairs

class Handler(csan.ArgumentHandler):
    def _handle_argument(self, value, is_write, metadata_only, name=None, is_output=False):
        seen.append(name)

Handler._handle_argument = sanitizer_repairs.of_memory(Handler._handle_argument)
with FakeTensorMode():
    fake = torch.ones(2)
schema = torch.ops.aten.cat.default._schema
for values in ([torch.ones(0), torch.ones(2)], [torch.ones(0)], [fake]):
    seen = []
    Handler().parse_inputs(schema, (values, 0), {}, is_factory=False)
    print(*seen)
"""


def test_tensors_without_memory_race_with_nothing() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", EMPTY],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # A number is no tensor, and handed on.
    assert ran.stdout.splitlines() == ["tensors dim", "dim", "dim"], ran.stderr
