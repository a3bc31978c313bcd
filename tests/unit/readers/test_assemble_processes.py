"""Files into which a tool merged the traces of several processes."""

from __future__ import annotations

from diagnose.findings import Diagnosis
from diagnose.names import Classifier
from diagnose.readers.assemble import Origin, assemble_file, join
from diagnose.readers.raw import empty
from diagnose.schema import Detail
from diagnose.trace import Trace
from tests.builder import TraceBuilder

KERNELS = {"first": 20, "second": 30}


def merged(
    hosts: tuple[str, str], tracks: tuple[str, str], names: tuple[str, str] | None = None
) -> TraceBuilder:
    """Two ranks of two kernels whose ids repeat; the second's kernels lie 3 us later."""
    builder = TraceBuilder(rank=0, world_size=2)
    for index, (host, track) in enumerate(zip(hosts, tracks, strict=True)):
        if names:
            builder.process(host, names[index])
        builder.pid = host
        builder.step(7, index, 100)
        for correlation, (name, at) in enumerate(KERNELS.items(), 1):
            builder.call("cudaLaunchKernel", at - 10 + index, correlation=correlation)
            start = at + 3 * index
            builder.kernel(f"{name} {index}", start, 5, correlation=correlation, pid=track)
        builder.call("cudaStreamSynchronize", 50 + index, correlation=9)
        builder.sync("Stream Sync", 50 + index, 5, correlation=9)
    return builder


def assembled(builder: TraceBuilder, detail: Detail = Detail.ALL) -> Trace:
    raw = builder.raw("rank0.json")
    if detail < Detail.LAUNCHES:
        raw.calls, raw.syncs = empty("calls"), empty("syncs")
    return join(assemble_file(raw, Origin(), Classifier.load(), detail))


def codes(trace: Trace) -> set[str]:
    return {note.code for note in trace.notes} - {"few-steps"}


def test_tracks_of_one_device_are_gpus_of_the_processes_that_launched_on_them() -> None:
    trace = assembled(merged(("100", "200"), ("0", "7000")))
    # Neither the file's own rank nor its name can be right for both.
    assert [(s.rank, s.process) for s in trace.sources] == [(None, "0, 100"), (None, "200, 7000")]
    assert trace.gpu_ops.texts("name") == ["first 0", "second 0", "first 1", "second 1"]
    starts = trace.launches["start_ns"][trace.gpu_ops["launch_row"]] - 5_000_000_000
    assert starts.tolist() == [10_000, 20_000, 11_000, 21_000]
    assert trace.gpu_ops["step_row"].tolist() == [0, 0, 1, 1]
    assert trace.syncs["source"].tolist() == [0, 1]
    assert codes(trace) == {"rank-unknown"}
    assert [source.label for source in trace.sources] == [
        "rank0.json (process 0, 100)",
        "rank0.json (process 200, 7000)",
    ]


def test_named_processes_own_the_tracks_that_show_their_work() -> None:
    names = ("python rank 4", "python rank 5")
    trace = assembled(merged(("100", "200"), ("0", "7000"), names))
    assert [(gpu.rank, gpu.device) for gpu in trace.gpus] == [(4, 0), (5, 0)]
    assert trace.gpu_ops.texts("name") == ["first 0", "second 0", "first 1", "second 1"]
    assert codes(trace) == set()


def test_several_processes_on_one_track_cannot_be_told_apart() -> None:
    trace = assembled(merged(("100", "200"), ("0", "0")))
    assert len(trace.sources) == 1
    assert "processes-share-gpu" in codes(trace)
    assert Diagnosis(trace).quality.verdict == "not to be trusted"
    names = ("python rank 4", "python rank 5")
    named = assembled(merged(("100", "200"), ("0", "0"), names))
    assert Diagnosis(named).quality.verdict == "not to be trusted"
    assert "no-gpu-events" not in codes(named)  # it was recorded, but whose it is is unknown


def test_without_calls_tracks_of_one_device_are_still_separate_gpus() -> None:
    trace = assembled(merged(("100", "200"), ("0", "7000")), Detail.GPU)
    assert len(trace.gpus) == 2
    assert trace.gpu_ops.texts("name") == ["first 0", "second 0", "first 1", "second 1"]


def test_ids_that_point_at_both_processes_leave_the_track_to_itself() -> None:
    builder = merged(("100", "200"), ("0", "7000"))
    # As a tool that sorts by time writes it: the two ranks alternate.
    builder.events.sort(key=lambda event: (event["cat"] != "cuda_runtime", event["ts"]))
    trace = assembled(builder)
    assert len(trace.gpus) == 2
    assert {"process-unclear"} <= codes(trace)
    assert "no-gpu-events" not in codes(trace)


def test_two_devices_of_one_process_are_one_source() -> None:
    builder = TraceBuilder(rank=3)
    for device in (0, 1):
        builder.kernel("gemm", 10, 5, launch=device, device=device)
    trace = assembled(builder)
    assert [(gpu.source, gpu.rank, gpu.device) for gpu in trace.gpus] == [(0, 3, 0), (0, 3, 1)]
