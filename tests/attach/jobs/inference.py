"""One process that only runs a model forward: no optimizer, no process group, never a step.

Writes ``pid.0`` and a line per pass to ``loss.0`` in ``JOB_DIR``. Ends after a file ``stop``
appears there, or by its own alarm after ``LIFETIME`` seconds.
"""

import os
import signal
import threading
import time
from pathlib import Path

import torch


def main():
    signal.alarm(int(os.environ.get("LIFETIME", "120")))
    folder = Path(os.environ["JOB_DIR"])
    torch.set_num_threads(1)
    # As in any server: a thread that waits for something to do.
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    x = torch.randn(16, 64)
    passes = 0
    (folder / "pid.0").write_text(str(os.getpid()))
    with open(folder / "loss.0", "w", buffering=1) as log, torch.inference_mode():
        while not (folder / "stop").exists():
            log.write(f"{passes} {model(x).sum().item().hex()}\n")
            passes += 1
            time.sleep(0.005)
    (folder / "done.0").write_text("ok")


if __name__ == "__main__":
    main()
