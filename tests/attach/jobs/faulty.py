"""One process that trains while parts of PyTorch are made to fail, as the test asks for.

The name of a fault in the file ``fault`` of ``JOB_DIR`` takes effect behind the next step, an
empty file ends it; what is in effect is written to ``fault.active``. A line per step goes to
``loss.0``. Ends after a file ``stop`` appears, or by its own alarm after ``LIFETIME`` seconds.
"""

import os
import signal
import time
from pathlib import Path

import torch
import torch.profiler
from torch.autograd.profiler import profile as session


class InjectedError(Exception):
    """What the broken parts raise."""


def broken(*args, **kwargs):
    raise InjectedError("injected")


def broken_for_steps(original):
    """Only for the ranges of the agent: the job's optimizer uses such ranges too."""

    def enter(self):
        return broken() if self.name.startswith("ProfilerStep") else original(self)

    return enter


class Interrupt(BaseException):
    """What the job's signal handler raises, as Control-C does."""


def interrupting(original):
    def start(self):
        original(self)
        raise Interrupt

    return start


def losing(original):
    """A second session is begun and ended without the guard noticing: ours is lost."""

    def start(self):
        original(self)
        config = self.config(create_trace_id=True)
        torch._C._autograd._prepare_profiler(config, self.kineto_activities)

    return start


RANGE = torch.autograd.profiler.record_function
KIND = torch.profiler._KinetoProfile
OBSERVER = torch.profiler.ExecutionTraceObserver
FAULTS = {
    "observer": (OBSERVER, "start", broken),
    "no observer": (OBSERVER, "register_callback", broken),
    "annotations": (torch.cuda, "is_initialized", broken),
    "create": (KIND, "__init__", broken),
    "prepare": (session, "_prepare_trace", broken),
    "start": (KIND, "start_trace", broken),
    "stop": (KIND, "stop_trace", broken),
    "export": (KIND, "export_chrome_trace", broken),
    "metadata": (KIND, "add_metadata_json", broken),
    "range": (RANGE, "__enter__", broken_for_steps(RANGE.__enter__)),
    "lost": (session, "_start_trace", losing(session._start_trace)),
    "interrupt": (session, "_start_trace", interrupting(session._start_trace)),
}


def main():
    signal.alarm(int(os.environ.get("LIFETIME", "120")))
    folder = Path(os.environ["JOB_DIR"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(16, 64)
    active, step, originals = "", 0, {}
    with open(folder / "loss.0", "w", buffering=1) as log:
        while not (folder / "stop").exists():
            loss = model(x).pow(2).mean()
            loss.backward()
            try:
                optimizer.step()
            except Interrupt:
                (folder / "interrupted").touch()
            optimizer.zero_grad()
            log.write(f"{step} {loss.item().hex()}\n")
            step += 1
            time.sleep(0.004)
            wanted = (folder / "fault").read_text() if (folder / "fault").exists() else ""
            if wanted != active:
                if active:
                    owner, name, _ = FAULTS[active]
                    setattr(owner, name, originals[active])
                if wanted:
                    owner, name, replacement = FAULTS[wanted]
                    originals[wanted] = vars(owner)[name]
                    setattr(owner, name, replacement)
                active = wanted
                (folder / "fault.active").write_text(active)
            if step == 1:
                (folder / "fault.active").write_text("")
                (folder / "pid.0").write_text(str(os.getpid()))
    (folder / "done.0").write_text("ok")


if __name__ == "__main__":
    main()
