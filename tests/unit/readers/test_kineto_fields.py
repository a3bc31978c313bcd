"""Which field of an event becomes which column, in every spelling met so far."""

from __future__ import annotations

from typing import Any

import pytest

from diagnose.readers.raw import GROUPS
from diagnose.schema import NULL, Detail, Kind
from tests.unit.readers.kineto_texts import (
    as_kineto,
    call,
    codes,
    dumps,
    kernel,
    operator,
    process,
    read,
    table,
)


def one(event: dict[str, Any], group: str) -> dict[str, Any]:
    found = table(read(as_kineto([event])), group)
    assert all(len(values) == 1 for values in found.values())
    return {name: values[0] for name, values in found.items()}


def test_a_kernel() -> None:
    event = kernel(3, grid=[132, 1, 1], block=[384, 1, 1], **{"graph node id": 12})
    assert one(event, "gpu") == {
        "order": 0,
        "process": "0",
        "device": 0,
        "stream": 7,
        "start_ns": 5277830926300125,
        "end_ns": 5277830926310125,
        "kind": Kind.KERNEL,
        "name": "kernel_3",
        "launch_shape": "grid [132, 1, 1] block [384, 1, 1]",
        "correlation": 3,
        "external_id": 13,
        "bytes": NULL,
        "graph_node": 12,
        "from_device": NULL,
        "to_device": NULL,
    }
    assert one(kernel(3, **{"graph node id": 0}), "gpu")["graph_node"] == NULL


def test_a_host_operator() -> None:
    assert one(operator(2), "host") == {
        "order": 0,
        "thread": "42/43",
        "start_ns": 5277830926200001,
        "end_ns": 5277830926205251,
        "category": "cpu_op",
        "name": "aten::mm",
        "external_id": 12,
        "sequence": 2,
        "shapes": "[[4, 8], []]",
    }


def test_a_wait() -> None:
    args = {
        "External id": 44,
        "cuda_sync_kind": "Stream Wait Event",
        "stream": 20,
        "correlation": 28077,
        "device": 1,
        "wait_on_stream": 7,
        "wait_on_cuda_event_record_corr_id": 905,
        "wait_on_cuda_event_id": 825,
    }
    event = kernel(0) | {"cat": "cuda_sync", "name": "Stream Wait Event", "args": args}
    found = one(event, "syncs")
    assert found | {"order": 0} == {
        "order": 0,
        "device": 1,
        "stream": 20,
        "start_ns": 5277830926000125,
        "end_ns": 5277830926010125,
        "sync_kind": "Stream Wait Event",
        "correlation": 28077,
        "event_id": 825,
        "event_stream": 7,
        "event_correlation": 905,
    }
    unknown = {key: -1 if isinstance(value, int) else value for key, value in args.items()}
    found = one(event | {"args": unknown, "pid": 3}, "syncs")
    assert found["device"] == 3
    for column in ("stream", "correlation", "event_id", "event_stream", "event_correlation"):
        assert found[column] == NULL
    unsigned = one(event | {"args": args | {"stream": 4294967295}}, "syncs")
    assert unsigned["stream"] == NULL


def test_a_collective_on_the_gpu_and_on_the_host() -> None:
    args = {
        "Collective name": "_allgather_base",
        "In msg nelems": 10,
        "Out msg nelems": 20,
        "dtype": "BFloat16",
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "Seq": 5,
        "Src Rank": 1,
        "Dst Rank": 0,
        "Input Tensors start": "[[4096, 8192]]",
        "Output Tensors start": "[[12288]]",
    }
    host = operator(1, "record_param_comms") | {"args": args}
    plain = kernel(2)
    raw = read(as_kineto([plain, kernel(4, **args), host]), Detail.GPU)
    assert table(raw, "collectives") == {
        "order": [1, 2],
        "on_gpu": [True, False],
        "name": ["_allgather_base"] * 2,
        "in_elements": [10, 10],
        "out_elements": [20, 20],
        "dtype": ["BFloat16"] * 2,
        "group": ["0"] * 2,
        "group_size": [2, 2],
        "group_ranks": ["[0, 1]"] * 2,
        "sequence": [5, 5],
        "source_rank": [1, 1],
        "destination_rank": [0, 0],
        "in_addresses": ["[[4096, 8192]]"] * 2,
        "out_addresses": ["[[12288]]"] * 2,
    } | {"order": sorted(table(raw, "collectives")["order"])}
    on_gpu = dict(zip(raw.collectives["order"].tolist(), raw.collectives["on_gpu"], strict=True))
    assert on_gpu == {1: True, 2: False}


@pytest.mark.parametrize(
    ("category", "group", "kind"),
    [
        ("kernel", "gpu", Kind.KERNEL),
        ("Kernel", "gpu", Kind.KERNEL),
        ("gpu_memcpy", "gpu", Kind.MEMCPY),
        ("Memcpy", "gpu", Kind.MEMCPY),
        ("gpu_memset", "gpu", Kind.MEMSET),
        ("Memset", "gpu", Kind.MEMSET),
        ("cuda_runtime", "calls", None),
        ("cuda_driver", "calls", None),
        ("hip_runtime", "calls", None),
        ("xpu_runtime", "calls", None),
        ("privateuse1_runtime", "calls", None),
        ("Runtime", "calls", None),
        ("cuda_sync", "syncs", None),
        ("cpu_op", "host", None),
        ("Operator", "host", None),
        ("user_annotation", "host", None),
        ("python_function", "host", None),
        ("overhead", "host", None),
        ("something_new", None, None),
        ("concurrent_kernel", "gpu", Kind.KERNEL),
        ("privateuse1_kernel", "gpu", Kind.KERNEL),
        ("cuda_kernel", "gpu", Kind.KERNEL),
        ("hip_memcpy", "gpu", Kind.MEMCPY),
        ("xpu_memset", "gpu", Kind.MEMSET),
        ("gpu_user_annotation", None, None),
        ("cuda_event", None, None),
    ],
)
def test_categories(category: str, group: str | None, kind: Kind | None) -> None:
    raw = read(as_kineto([kernel(0) | {"cat": category}]))
    filled = [name for name in GROUPS if len(getattr(raw, name)["order"])]
    assert filled == ([group] if group else [])
    assert raw.num_events == 1
    if kind is not None:
        assert raw.gpu["kind"].tolist() == [kind]


@pytest.mark.parametrize("phase", ["s", "t", "f", "C", "i", "b", "n", "e", "M", ""])
def test_only_complete_events_and_pairs_are_work(phase: str) -> None:
    raw = read(as_kineto([kernel(1), kernel(0) | {"ph": phase}]))
    assert table(raw, "gpu")["name"] == ["kernel_1"]
    assert raw.num_events == 2


@pytest.mark.parametrize("key", ["external id", "External Id"])
def test_older_spellings_of_the_external_id(key: str) -> None:
    event = kernel(0) | {"args": {"device": 0, "stream": 7, key: 99}}
    assert one(event, "gpu")["external_id"] == 99


def test_peer_copies_and_tracks_tell_the_device() -> None:
    peer = kernel(0) | {"cat": "gpu_memcpy", "pid": 3, "tid": "stream 9"}
    peer["args"] = {"fromDevice": 3, "inDevice": 3, "toDevice": 5, "bytes": 64}
    assert {
        key: one(peer, "gpu")[key]
        for key in ("device", "from_device", "to_device", "stream", "bytes")
    } == {"device": 3, "from_device": 3, "to_device": 5, "stream": 9, "bytes": 64}
    bare = kernel(0) | {"pid": 2, "tid": "compute", "args": {}}
    assert one(bare, "gpu")["device"] == 2
    assert one(bare, "gpu")["stream"] == NULL
    assert one(bare | {"pid": 4242}, "gpu")["device"] == NULL  # a process, no device
    raw = read(as_kineto([bare | {"pid": 4242}, *process(4242, "GPU 6")]))
    assert raw.gpu["device"].tolist() == [6]
    assert raw.process_names == {"4242": "python3 | GPU 6"}


@pytest.mark.parametrize(
    ("changes", "column", "expected", "unreadable"),
    [
        ({"correlation": "77"}, "correlation", 77, 0),
        ({"correlation": 77.0}, "correlation", 77, 0),
        ({"correlation": 77.5}, "correlation", NULL, 1),
        ({"correlation": None}, "correlation", NULL, 0),
        ({"correlation": "x"}, "correlation", NULL, 1),
        ({"correlation": 1 << 64}, "correlation", NULL, 1),
        ({"correlation": 1 << 63}, "correlation", NULL, 1),
        ({"correlation": (1 << 63) - 1}, "correlation", (1 << 63) - 1, 0),
        ({"stream": "12"}, "stream", 12, 0),
        ({"device": "1"}, "device", 1, 0),
        ({"device": 1.0}, "device", 1, 0),
        ({"External id": [1]}, "external_id", NULL, 1),
        ({"dtype": 5}, "stream", 7, 0),
        ({"grid": "odd"}, "launch_shape", "grid odd", 0),
        ({"Collective name": None}, "stream", 7, 0),
    ],
)
def test_values_of_an_unexpected_type(
    changes: dict[str, Any], column: str, expected: Any, unreadable: int
) -> None:
    event = kernel(0, **changes)
    raw = read(as_kineto([kernel(1), event, kernel(2)]))
    assert table(raw, "gpu")["name"] == ["kernel_1", "kernel_0", "kernel_2"]
    assert table(raw, "gpu")[column][1] == expected
    assert codes(raw) == ({"value-unreadable": unreadable} if unreadable else {})


@pytest.mark.parametrize(
    ("changes", "column", "expected"),
    [
        ({"name": None}, "name", "(no name)"),
        ({"name": 5}, "name", "5"),
        ({"pid": "Spans", "tid": "Profiler"}, "thread", "Spans/Profiler"),
        ({"pid": 42.0}, "thread", "42/43"),
        ({"pid": None}, "thread", "/43"),
        ({"ts": "5277830926000.5"}, "start_ns", 5277830926000500),
        ({"args": None}, "sequence", NULL),
        ({"args": [1]}, "sequence", NULL),
        ({"args": "x"}, "sequence", NULL),
    ],
)
def test_event_fields_of_an_unexpected_type(
    changes: dict[str, Any], column: str, expected: Any
) -> None:
    assert one(operator(1) | changes, "host")[column] == expected


def test_absolute_times_keep_every_nanosecond() -> None:
    events = [kernel(i, f"1733059200000000.{i:03}", "0.001") for i in range(20)]
    raw = read(as_kineto(events))
    assert raw.gpu["start_ns"].tolist() == [1733059200000000000 + i for i in range(20)]
    assert (raw.gpu["end_ns"] - raw.gpu["start_ns"]).tolist() == [1] * 20


def test_texts_are_stored_once() -> None:
    raw = read(as_kineto([call(i) for i in range(50)] + [operator(i) for i in range(50)]))
    assert len(raw.strings) == len(set(raw.strings))
    assert sorted(raw.strings) == [
        "42/43",
        "[[4, 8], []]",
        "aten::mm",
        "cpu_op",
        "cudaLaunchKernel",
    ]


def test_columns_have_the_documented_types() -> None:
    for text in (as_kineto([kernel(0), operator(1), call(2)]), dumps([]).encode()):
        raw = read(text)
        for group, columns in GROUPS.items():
            found = {name: str(column.dtype) for name, column in getattr(raw, group).items()}
            assert found == dict(columns)


@pytest.mark.parametrize("detail", list(Detail))
def test_work_of_an_unknown_category_is_told(detail: Detail) -> None:
    """With a device and a stream it may be GPU work; without, it is the host's."""
    odd = [kernel(i) | {"cat": "npu_task"} for i in range(3)]
    host = operator(5, "load", "data_loader")
    raw = read(as_kineto([kernel(7), *odd, host, kernel(8) | {"cat": "dsp"}]), detail)
    assert table(raw, "gpu")["name"] == ["kernel_7"]
    assert len(raw.host["order"]) == (detail == Detail.ALL)
    assert codes(raw) == {"unknown-category": 4}
    assert "'npu_task': 3, 'dsp': 1" in raw.notes[0].sentence


@pytest.mark.parametrize("detail", list(Detail))
@pytest.mark.parametrize("category", ["cuda_kernel", "hip_kernel", "hip_memcpy", "xpu_kernel"])
def test_work_by_another_spelling_counts_at_every_level(category: str, detail: Detail) -> None:
    raw = read(as_kineto([kernel(7) | {"cat": category}, call(1), kernel(8)]), detail)
    assert table(raw, "gpu")["name"] == ["kernel_7", "kernel_8"]
