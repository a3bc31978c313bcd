"""A job that trains on the CPU and tells the CUDA sanitizer of launches as a GPU would see them.

Each step a side stream writes a tensor and the default stream reads it; with ``RACY`` (1) nothing
orders the two. Knobs: ``STEPS``, ``LAUNCHES`` (0: none, as a job without a GPU), ``FAIL_AT`` (a
step at which it raises), ``LINGER`` (rank 1 starts so many seconds later), ``OPTIMIZES`` (0: it
makes no optimizer step, as inference), ``LEAVE_AT`` (a step at which it calls ``os._exit``),
``HANG`` (the last rank stops in step 2, for ever), ``CHILD`` (it starts a process that stays, and
a worker of multiprocessing; their ids go to ``children``).
"""

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

SIDE, POINTER = 0x1F0, 4096


def knob(name, default):
    return type(default)(os.environ.get(name, default))


def write(handler, tensor):
    operator = "aten::mul.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)"
    handler._handle_kernel_launch(SIDE, set(), {tensor}, {tensor}, operator, {tensor: ["out"]})


def read(handler, tensor):
    operator = "aten::mm(Tensor self, Tensor mat2) -> Tensor"
    handler._handle_kernel_launch(0, {tensor}, set(), set(), operator, {tensor: ["mat2"]})


def main():
    rank = knob("RANK", 0)
    time.sleep(knob("LINGER", 0.0) * rank)
    handler = torch.cuda._sanitizer.cuda_sanitizer.dispatch.event_handler
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if knob("CHILD", 0):
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,))
        worker.daemon = True
        worker.start()
        nothing = subprocess.DEVNULL
        stays = subprocess.Popen(
            ["sleep", "300"], start_new_session=True, stdout=nothing, stderr=nothing
        )
        (Path(os.environ["JOB_DIR"]) / "children").write_text(f"{worker.pid} {stays.pid}")
    for step in range(knob("STEPS", 1000)):
        if step == 1 and knob("HANG", 0) and rank + 1 == knob("WORLD_SIZE", 1):
            time.sleep(300)
        if step == knob("FAIL_AT", -1):
            raise RuntimeError("the job's own mistake")
        if knob("LAUNCHES", 1):
            write(handler, POINTER)
            if not knob("RACY", 1):
                handler._handle_stream_synchronization(SIDE)
            read(handler, POINTER)
            handler._handle_device_synchronization()
        if step == knob("LEAVE_AT", -1):
            os._exit(0)
        model(torch.ones(2, 2)).sum().backward()
        if knob("OPTIMIZES", 1):
            optimizer.step()
        (Path(os.environ["JOB_DIR"]) / f"steps.{rank}").write_text(str(step + 1))
    sys.stdout.write("came to its own end\n")


if __name__ == "__main__":
    main()
