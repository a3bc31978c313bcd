"""What the agent's hook costs where nothing is recorded: ``python -m benchmarks.gpu.idle_hook``.

Needs no GPU. One rank of a gloo job, so that the sequence number of its group is read as in a
real one. Prints the least, the median and the greatest of 20 rounds of 100,000 calls, of the
agent's function alone and of an optimizer step with and without it.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import timeit
from collections.abc import Callable

import torch
import torch.distributed as dist

from diagnose.agent.steps import StepClock

ROUNDS, CALLS = 20, 100_000
STEPS = 2_000


def main() -> None:
    """Measure the function alone, then what it adds to a step."""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", f"file://{folder}/store", rank=0, world_size=1)
        dist.barrier()
        weight = torch.nn.Parameter(torch.zeros(1))
        weight.grad = torch.zeros(1)
        optimizer = torch.optim.SGD([weight], lr=0.0, foreach=False)
        clock = StepClock()
        clock.hook(optimizer, (), {})
        assert clock.ring[-1][1] is not None, "no sequence number was read"
        print(json.dumps({"alone_us": rounds(lambda: clock.hook(optimizer, (), {}), CALLS)}))
        # The two in turns, so that what else the machine does meets both.
        without: list[float] = []
        hooked: list[float] = []
        for _ in range(ROUNDS):
            without.append(each_us(optimizer.step, STEPS))
            handle = optimizer.register_step_post_hook(clock.hook)
            hooked.append(each_us(optimizer.step, STEPS))
            handle.remove()
        added = [with_it - bare for with_it, bare in zip(hooked, without, strict=True)]
        print(json.dumps({"added_to_a_step_us": summary(added)}))
        dist.destroy_process_group()


def rounds(call: Callable[[], object], number: int) -> dict[str, float]:
    """Many rounds of ``number`` calls, in microseconds a call."""
    return summary([each_us(call, number) for _ in range(ROUNDS)])


def each_us(call: Callable[[], object], number: int) -> float:
    """The mean of ``number`` calls."""
    return timeit.timeit(call, number=number) / number * 1e6


def summary(values: list[float]) -> dict[str, float]:
    """The least, the median and the greatest."""
    return {
        "least": round(min(values), 3),
        "median": round(statistics.median(values), 3),
        "most": round(max(values), 3),
    }


if __name__ == "__main__":
    main()
