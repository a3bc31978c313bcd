"""A job of one process that never ends by itself; a step sleeps 10 ms per OMP_NUM_THREADS."""

import os
import signal
import time

import torch
from torch import nn


def main():
    signal.alarm(60)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01 * int(os.environ["OMP_NUM_THREADS"]))


if __name__ == "__main__":
    main()
