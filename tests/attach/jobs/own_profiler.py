"""One process that trains and runs its own scheduled torch.profiler again and again.

For each of its windows one line, the number of operators in its trace, goes to ``windows.0``
in ``JOB_DIR``: all lines must be equal, whoever attaches meanwhile. Ends after a file ``stop``
appears there, or by its own alarm after ``LIFETIME`` seconds.
"""

import json
import os
import signal
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule


def main():
    signal.alarm(int(os.environ.get("LIFETIME", "120")))
    folder = Path(os.environ["JOB_DIR"])
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(16, 64)

    def step():
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.002)

    step()
    (folder / "pid.0").write_text(str(os.getpid()))
    with open(folder / "windows.0", "w", buffering=1) as log:
        while not (folder / "stop").exists():
            for _ in range(37):
                step()
            plan = schedule(wait=2, warmup=2, active=3, repeat=1)
            with profile(activities=[ProfilerActivity.CPU], schedule=plan) as profiler:
                for _ in range(9):
                    step()
                    profiler.step()
            trace = folder / "own.json"
            profiler.export_chrome_trace(str(trace))
            events = json.loads(trace.read_text())["traceEvents"]
            log.write(f"{sum(event.get('cat') == 'cpu_op' for event in events)}\n")
    (folder / "done.0").write_text("ok")


if __name__ == "__main__":
    main()
