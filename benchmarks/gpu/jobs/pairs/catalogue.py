"""Which pairs there are, and in which processes they run. Needs no torch.

A pair is one job twice: with a behaviour that costs time (``before``) and with that
repaired (``after``). Their builders, named as the pairs, are in `single.py`, `copies.py`,
`host_work.py`, `data_parallel.py`, `replicas.py` and `sharded.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SIDES = ("before", "after")


@dataclass(frozen=True)
class Pair:
    """What is repaired between ``before`` and ``after``, in words, and how it is recorded."""

    name: str
    change: str
    world: int = 1
    steps: Mapping[str, int] = field(default_factory=lambda: {"before": 4, "after": 3})
    """Traced steps."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables with which ``before`` runs: its sides are processes of their own."""
    sides: tuple[str, ...] = SIDES


@dataclass(frozen=True)
class Group:
    """Pairs measured by the same processes, one after the other.

    With an environment only ``before`` of a pair that needs it; without, only ``after`` of that.
    """

    name: str
    pairs: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def world(self) -> int:
        return BY_NAME[self.pairs[0]].world

    def sides(self, name: str) -> tuple[str, ...]:
        """The sides of a pair that these processes measure."""
        if BY_NAME[name].environment:
            return ("before",) if self.environment else ("after",)
        return BY_NAME[name].sides


PAIRS = (
    Pair("graph_gpt", "forward, backward, optimizer and zero_grad replayed as one CUDA graph"),
    Pair("graph_mlp", "forward, backward, optimizer and zero_grad replayed as one CUDA graph"),
    Pair("sync_item", "no .item() after each layer"),
    Pair("sync_small", "no nonzero() and .item() after each layer"),
    Pair("stall_sleep", "the host no longer sleeps before a step"),
    Pair("stall_hidden", "the host no longer sleeps before a step; its lead hid the sleep"),
    Pair("stall_loader", "DataLoader: num_workers 4, prefetch_factor 4, instead of num_workers 0"),
    Pair("pageable_small", "64 MiB a step from pinned memory, non_blocking"),
    Pair("pageable_big", "512 MiB a step from pinned memory, non_blocking"),
    Pair("churn", "no torch.cuda.empty_cache() in each step"),
    Pair("fp32_gemm", "float32 matrix products in TF32; how much faster these kernels became is "
         "in the two recordings"),
    Pair("unfused_optimizer", "AdamW(fused=True) instead of foreach=False, fused=False"),
    Pair("prefetch_copy", "the pinned copy on a stream of its own, a step ahead"),
    Pair("copy_and_item", "64 MiB a step from pinned memory, non_blocking; and no .item() after "
         "each layer"),
    Pair("launch_blocking", "CUDA_LAUNCH_BLOCKING not set",
         environment={"CUDA_LAUNCH_BLOCKING": "1"}),
    Pair("power_heavy", "none: 20 s of matrix products of width 8192", sides=("before",)),
    Pair("straggler", "rank 1 no longer does extra matrix products", 2),
    Pair("straggler_host", "rank 1 no longer sleeps 8 ms in each step", 2),
    Pair("serial_all_reduce", "DistributedDataParallel instead of an all-reduce per parameter "
         "on the compute stream after backward", 2),
    Pair("tiny_buckets", "bucket_cap_mb 25 instead of 0.05", 2),
    Pair("giant_bucket", "bucket_cap_mb 25 instead of 4000", 2),
    Pair("accumulate_sync", "no_sync() in the first three of four micro-steps", 2),
    Pair("find_unused", "find_unused_parameters=False", 2),
    Pair("gc_pause", "no gc.collect() over many objects in each step of each rank", 2),
    Pair("gc_pause_rank0", "no gc.collect() over many objects in every third step of rank 0", 2,
         {"before": 6, "after": 3}),
    Pair("sync_ddp", "no .item() after each layer", 2),
    Pair("fsdp_no_prefetch", "fully_shard with its own prefetching, forward and backward", 2),
    Pair("wide_gradients", "bf16_compress_hook instead of float32 gradients", 2),
    Pair("low_bandwidth", "NCCL_MAX_CTAS not set", 2, environment={"NCCL_MAX_CTAS": "1"}),
    Pair("checkpoint", "no torch.save() of model and optimizer after every fifth step",
         steps={"before": 7, "after": 3}),
    Pair("pinned_in_step", "page-locked memory made once instead of in each step"),
    Pair("recompile", "one graph for all lengths of sequences instead of one for each",
         steps={"before": 5, "after": 3}),
    Pair("missing_sync", "the optimizer waits for the stream that averages the gradients", 2),
    Pair("buffer_broadcast", "broadcast_buffers=False", 2),
    Pair("fsdp_late_gathers", "fully_shard with its own prefetching, forward and backward", 2),
    Pair("fsdp_regather", "reshard_after_forward=False", 2),
    Pair("small_buffers", "NCCL_BUFFSIZE not set", 2, environment={"NCCL_BUFFSIZE": "65536"}),
    Pair("one_queue", "CUDA_DEVICE_MAX_CONNECTIONS not set", 2,
         environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
    Pair("left_variables", "variables for debugging, and of old versions, not set", 2,
         environment={"TORCH_NCCL_NAN_CHECK": "1", "NCCL_NVLS_ENABLE": "0",
                      "CUDA_DEVICE_MAX_CONNECTIONS": "1", "TORCH_NCCL_ENABLE_TIMING": "1",
                      "NCCL_HIGH_PRIORITY": "1"}),
)  # fmt: skip
BY_NAME = {pair.name: pair for pair in PAIRS}


def _before(name: str) -> Group:
    return Group(f"{name}-before", (name,), BY_NAME[name].environment)


# Most valuable first: time may run out. The one with forked workers leads its group, so that
# no profiler has run when they are forked.
GROUPS = (
    Group("hosts", ("stall_loader", "graph_gpt", "pageable_small", "stall_sleep", "sync_small")),
    Group("ranks", ("straggler", "accumulate_sync", "tiny_buckets", "gc_pause", "straggler_host")),
    Group("kernels", ("unfused_optimizer", "launch_blocking", "fp32_gemm", "prefetch_copy")),
    Group("gradients", ("fsdp_no_prefetch", "low_bandwidth", "serial_all_reduce")),
    _before("launch_blocking"),
    _before("low_bandwidth"),
    Group("mixed", ("copy_and_item", "graph_mlp", "churn", "pageable_big")),
    Group("pauses", ("find_unused", "wide_gradients", "sync_ddp", "gc_pause_rank0")),
    Group("power", ("power_heavy",)),
    Group("controls", ("sync_item", "stall_hidden")),
    Group("buckets", ("giant_bucket",)),
    Group("orders", ("missing_sync", "buffer_broadcast", "one_queue", "small_buffers")),
    _before("one_queue"),
    _before("small_buffers"),
    Group("loops", ("checkpoint", "pinned_in_step")),
    Group("units", ("fsdp_late_gathers", "fsdp_regather")),
    _before("left_variables"),
    Group("variables", ("left_variables",)),
    Group("compiler", ("recompile",)),
)
