"""The gallery: which programs there are, and what is planted in each."""

from __future__ import annotations

from benchmarks.gpu.hazards.program import Program
from benchmarks.gpu.hazards.programs import collectives, events, memory, streams, training

RAW, WAR, WAW = "read-after-write", "write-after-read", "write-after-write"
MUL, FILL, MM, COPY = "aten::mul", "aten::fill_", "aten::mm", "aten::copy_"
DEFAULT_WAITS = "torch.cuda.current_stream().wait_stream(side)"

GALLERY = (
    Program(
        streams.consumer_does_not_wait, RAW, f"{MUL} on producer", f"{MM} on consumer",
        "consumer.wait_stream(producer)", True,
    ),
    Program(
        streams.input_not_ready, RAW, f"{MUL} on default", f"{MM} on side",
        "side.wait_stream(torch.cuda.current_stream())", True,
    ),
    Program(
        streams.output_used_too_early, RAW,
        f"{MM} on side", f"{MUL} on default", DEFAULT_WAITS, True
    ),
    Program(
        memory.freed_without_record_stream, "reuse", f"{MUL} on side", f"{FILL} on default",
        "batch.record_stream(side)", False,
    ),
    Program(
        streams.overwritten_while_read, WAR,
        f"{MM} on side", f"{FILL} on default", DEFAULT_WAITS, True
    ),
    Program(streams.two_writers, WAW, f"{MUL} on side", f"{FILL} on default", DEFAULT_WAITS, True),
    Program(
        events.event_recorded_too_early, RAW, f"{MUL} on side", f"{MUL} on default",
        "event.record(side) behind the kernel", True,
    ),
    Program(
        events.event_waited_by_wrong_stream, RAW, f"{MUL} on producer", f"{MUL} on consumer",
        "consumer.wait_event(event)", True,
    ),
    Program(
        streams.wait_missing_every_second_step, RAW, f"{MUL} on side", f"{MUL} on default",
        DEFAULT_WAITS, True, racy_steps=(1, 3),
    ),
    Program(
        collectives.update_beside_reduction, RAW,
        "aten::mul_ on communication", "aten::add_ on default",
        "torch.cuda.current_stream().wait_stream(communication)", True,
    ),
    Program(
        collectives.update_beside_all_gather, WAR, "c10d::_allgather_base_ on NCCL's",
        "aten::add_ on default", "Work.wait()", False, distributed=True,
    ),
    Program(
        collectives.reduction_read_before_wait, RAW,
        "c10d::allreduce_ on NCCL's", f"{MUL} on default",
        "Work.wait()", False, distributed=True,
    ),
    Program(
        events.one_buffer_too_few, WAR, "aten::add_ on default", f"{MUL} on side",
        "a second buffer, or side.wait_event(consumed[chunk - 1])", True,
    ),
    Program(
        memory.pinned_overwritten_by_host, WAR,
        f"{COPY} (to the GPU) on default", f"{FILL} on host",
        "event.synchronize()", False, "host",
    ),
    Program(
        memory.host_reads_before_sync, RAW, f"{COPY} (to the host) on default", f"{COPY} on host",
        "torch.cuda.current_stream().synchronize()", False, "host",
    ),
    Program(
        memory.prefetch_without_wait, RAW, f"{COPY} (to the GPU) on side", f"{MUL} on default",
        DEFAULT_WAITS, True,
    ),
    Program(
        streams.graph_beside_eager, WAR, "cudaGraphLaunch on side", f"{FILL} on default",
        DEFAULT_WAITS, False, "no",
    ),
    Program(
        memory.overlapping_views, RAW, f"{MUL} on side", f"{MUL} on default", DEFAULT_WAITS, False
    ),
    Program(
        streams.broken_chain, RAW, f"{MUL} on writer", f"{MUL} on reader",
        "between.wait_stream(writer)", True,
    ),
    Program(
        events.event_not_polled, RAW, f"{MUL} on side", f"{MUL} on default",
        "event.synchronize()", True,
    ),
    Program(
        training.training_with_prefetch, RAW,
        f"{COPY} (to the GPU) on side", "aten::div on default",
        DEFAULT_WAITS, True, distributed=True,
    ),
)  # fmt: skip
