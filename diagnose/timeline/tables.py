"""The two tables of ``diagnose.timeline``: what a row is and what each column means."""

from __future__ import annotations

from diagnose.schema import Column, TableSchema

_GPU = (
    Column("source", "int32", "index into `Trace.sources`"),
    Column("device", "int32", "device number within its process"),
    Column("rank", "int64", "rank of the source", nullable=True),
)

OVERLAP = TableSchema(
    "overlap",
    "one GPU, or one step, stream, process group or kind of collective on one GPU",
    (
        *_GPU,
        Column("step_row", "int64", "row of `steps`; unknown: launched in no step", nullable=True),
        Column("stream", "int64", "stream number", nullable=True),
        Column("group", "int32", "process group name", nullable=True, text=True),
        Column("collective", "int32", "kind of collective", nullable=True, text=True),
        Column("num_ops", "int64", "kernels, copies and fills of this row"),
        Column("compute_ns", "int64", "union of the row's compute", "ns"),
        Column("communication_ns", "int64", "union of the row's communication", "ns"),
        Column("memory_ns", "int64", "union of the row's copies and fills", "ns"),
        Column(
            "overlapped_ns",
            "int64",
            "the row's communication while any compute runs on the same GPU",
            "ns",
        ),
        Column(
            "exposed_communication_ns",
            "int64",
            "the row's communication while nothing computes; includes waiting for late ranks",
            "ns",
        ),
        Column(
            "overlap_pct",
            "float64",
            "overlapped over communication; absent without communication",
            "%",
            nullable=True,
        ),
        Column(
            "overlap_of_compute_pct",
            "float64",
            "the row's compute beside any communication on the same GPU, over the row's compute",
            "%",
            nullable=True,
        ),
        Column("uncertain_ns", "int64", "union of the ops whose class is likely, not known", "ns"),
        Column("kernel_time_ns", "int64", "sum of durations; may exceed `busy_ns`", "ns"),
        Column("busy_ns", "int64", "union of all the row's ops", "ns"),
        Column("window_ns", "int64", "first start to last end; per GPU only", "ns", nullable=True),
        Column(
            "idle_ns",
            "int64",
            "time in which the GPU runs nothing: of the window, or of the step's time",
            "ns",
            nullable=True,
        ),
        Column(
            "step_ns",
            "int64",
            "last end of the step's work - the same of the previous step",
            "ns",
            nullable=True,
        ),
    ),
)

_MEAN = "mean over the steps with work on this GPU"

STEP_SUMMARY = TableSchema(
    "step_summary",
    "the steps of one GPU",
    (
        *_GPU,
        Column("num_steps", "int64", "step marks of the process"),
        Column("num_steps_covered", "int64", "steps with work on this GPU"),
        Column("num_steps_timed", "int64", "steps whose time is known"),
        Column("mean_step_ns", "float64", "mean of the known step times", "ns", nullable=True),
        Column("median_step_ns", "float64", "median of the known step times", "ns", nullable=True),
        Column("min_step_ns", "int64", "shortest known step time", "ns", nullable=True),
        Column("max_step_ns", "int64", "longest known step time", "ns", nullable=True),
        Column("mean_idle_ns", "float64", "mean over the steps with a time", "ns", nullable=True),
        Column("mean_compute_ns", "float64", _MEAN, "ns", nullable=True),
        Column("mean_communication_ns", "float64", _MEAN, "ns", nullable=True),
        Column("mean_memory_ns", "float64", _MEAN, "ns", nullable=True),
        Column("mean_overlapped_ns", "float64", _MEAN, "ns", nullable=True),
        Column(
            "mean_exposed_communication_ns",
            "float64",
            _MEAN + "; includes waiting for late ranks",
            "ns",
            nullable=True,
        ),
        Column("unassigned_ops", "int64", "ops that were launched in no step"),
        Column("unassigned_busy_ns", "int64", "union of those ops", "ns"),
    ),
)
