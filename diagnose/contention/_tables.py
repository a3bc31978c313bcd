"""The tables of ``diagnose.contention``: what a row is and what each column means."""

from __future__ import annotations

from enum import IntEnum

from diagnose.schema import Column, TableSchema


class Verdict(IntEnum):
    """Whether overlap paid."""

    NOTHING_HIDDEN = 0
    """No communication was hidden: there is nothing to gain or lose."""
    WINS = 1
    """The step took less time than without overlap."""
    LOSES = 2
    """Contention cost more than overlap hid."""
    UNDECIDED = 3
    """The interval of the gain holds 0, or too little of the overlapped compute has twins."""
    UNKNOWN = 4
    """What contention cost, or the step time, is not known."""


class Effect(IntEnum):
    """What the interval of one kernel says of it beside communication."""

    UNKNOWN = 0
    """It has no interval: too few occurrences alone or overlapped."""
    NOT_TOLD = 1
    """The interval holds 1."""
    SLOWER = 2
    FASTER = 3
    """It takes less beside communication than alone, beyond chance. That is no contention:
    overlapped, it works on other data or at another state of the clock than its twins."""


class TwinsFrom(IntEnum):
    """Where the kernels that ran alone are from."""

    THIS_RECORDING = 0
    OTHER_RECORDING = 1


class ClockDivided(IntEnum):
    """How changes of the clock were divided out."""

    NOT = 0
    """No telemetry and no drift: figures include changes of the clock."""
    BY_TWINS = 1
    """Slow changes, as kernels that ran alone show them."""
    BY_TELEMETRY = 2
    """As sampled, and slow changes besides."""


_GPU = (
    Column("source", "int64", "index into `Trace.sources`; null: all GPUs", nullable=True),
    Column("device", "int64", "device number within its process", nullable=True),
    Column("rank", "int64", "rank of the source", nullable=True),
)
_ONE_GPU = (
    Column("source", "int32", "index into `Trace.sources`"),
    Column("device", "int32", "device number within its process"),
    Column("rank", "int64", "rank of the source", nullable=True),
)
_PAIRS = (
    Column("num_alone", "int64", "occurrences that ran alone and are twins of these"),
    Column("num_overlapped", "int64", "occurrences that communication ran beside"),
    Column("num_paired", "int64", "of these, with twins: what the figures are made of"),
    Column("overlapped_ns", "int64", "kernel time beside communication, summed", "ns"),
    Column("paired_ns", "int64", "the same of the paired alone", "ns"),
    Column("coverage_pct", "float64", "paired over overlapped time", "%", nullable=True),
)
_SLOWDOWN = (
    Column(
        "slowdown",
        "float64",
        "overlapped time over what the same work takes alone; clock changes divided out; null "
        "where the work beside communication cannot be told from standing still",
        nullable=True,
    ),
    Column("slowdown_low", "float64", "lower end of the 95 % interval", nullable=True),
    Column(
        "slowdown_high",
        "float64",
        "upper end; null where standing still lies within the interval",
        nullable=True,
    ),
    Column(
        "duration_ratio",
        "float64",
        "whole duration of the paired over what they take alone, overlapped or not",
        nullable=True,
    ),
    Column("duration_ratio_low", "float64", "lower end of the 95 % interval", nullable=True),
    Column("duration_ratio_high", "float64", "upper end of the 95 % interval", nullable=True),
    Column(
        "cost_ns", "float64", "time of the paired beyond what they take alone", "ns", nullable=True
    ),
    Column("cost_low_ns", "float64", "lower end of the 95 % interval", "ns", nullable=True),
    Column("cost_high_ns", "float64", "upper end of the 95 % interval", "ns", nullable=True),
)
_CLASS = (
    Column(
        "collective",
        "int32",
        "kind of collective beside; `several`: more than one kind at once; null: unknown or all",
        nullable=True,
        text=True,
    ),
    Column("family", "int32", "family of kernels, as `gemm`; null: all", nullable=True, text=True),
)

CONTENTION = TableSchema(
    "contention",
    "the compute beside one kind of collective, of one family, of one GPU, or all",
    (
        *_GPU,
        *_CLASS,
        *_PAIRS,
        *_SLOWDOWN,
        Column(
            "uncorrected_slowdown",
            "float64",
            "the slowdown with clock changes in it",
            nullable=True,
        ),
        Column(
            "estimated_ns",
            "float64",
            "cost of all, the unpaired at the rate of the paired of their kind of collective",
            "ns",
            nullable=True,
        ),
        Column("num_steps", "int64", "steps of GPUs that the cost per step is a mean over"),
        Column(
            "cost_per_step_ns",
            "float64",
            "cost of the paired that were launched in steps, over their number",
            "ns",
            nullable=True,
        ),
    ),
)

CONTENTION_KERNELS = TableSchema(
    "contention_kernels",
    "one kernel on one GPU (name, launch shape, input shapes) that ran beside communication",
    (
        *_ONE_GPU,
        Column("name", "int32", "name as written in the file", text=True),
        Column("launch_shape", "int32", "grid and block as written", nullable=True, text=True),
        Column("shapes", "int32", "input shapes of its operator", nullable=True, text=True),
        Column("family", "int32", "family of kernels, as `gemm`", text=True),
        *_PAIRS,
        Column("alone_ns", "float64", "median duration of its twins", "ns", nullable=True),
        Column(
            "overlapped_duration_ns",
            "float64",
            "median duration of the paired",
            "ns",
            nullable=True,
        ),
        Column(
            "overlapped_share_pct",
            "float64",
            "share of their time that the overlapped spent beside communication",
            "%",
        ),
        *_SLOWDOWN,
        Column("effect", "int8", "what the interval says: slower or not", choices=Effect),
    ),
)

CONTENTION_BASIS = TableSchema(
    "contention_basis",
    "how the figures of one GPU were made: what became of its overlapped compute",
    (
        *_ONE_GPU,
        Column("num_kernels", "int64", "compute kernels"),
        Column("overlapped_ns", "int64", "their time beside communication, summed", "ns"),
        Column("paired_ns", "int64", "of it: kernels with twins", "ns"),
        Column(
            "touched_ns", "int64", "of it: kernels touched so little that they count as alone", "ns"
        ),
        Column("no_twin_ns", "int64", "of it: the same kernel never ran alone", "ns"),
        Column("crowded_ns", "int64", "of it: other compute ran beside it as well", "ns"),
        Column("disagree_ns", "int64", "of it: twins too different to be the same work", "ns"),
        Column("outlier_ns", "int64", "of it: far from all others of the kernel", "ns"),
        Column("unclear_ns", "int64", "of it: input shapes unknown, several possible", "ns"),
        Column(
            "other_company_ns",
            "int64",
            "of it: another rank on the same GPU computed beside it, not beside its twins, or the "
            "reverse",
            "ns",
        ),
        Column("coverage_pct", "float64", "paired over overlapped time", "%", nullable=True),
        Column("twins_from", "int8", "which recording ran alone", choices=TwinsFrom),
        Column("clock", "int8", "how clock changes were divided out", choices=ClockDivided),
        Column(
            "clock_span_pct",
            "float64",
            "highest over lowest sampled clock at a kernel, less 1",
            "%",
            nullable=True,
        ),
        Column("sample_interval_ns", "float64", "median time between samples", "ns", nullable=True),
        Column(
            "drift_pct", "float64", "slow change that was divided out, highest over lowest", "%"
        ),
        Column(
            "alone_ratio",
            "float64",
            "kernels that ran alone in both recordings: median of this one's duration over the "
            "other's; what differs from 1 is not contention, but in the figures",
            nullable=True,
        ),
    ),
)

OVERLAP_BALANCE = TableSchema(
    "overlap_balance",
    "one GPU in one step, or in the whole window: what overlap gained and contention ate",
    (
        *_ONE_GPU,
        Column("step_row", "int64", "row of `steps`; unknown for the whole window", nullable=True),
        Column(
            "step_ns", "int64", "time as it was: of the step, or the window", "ns", nullable=True
        ),
        Column("hidden_ns", "int64", "communication beside which the GPU computed", "ns"),
        Column(
            "contention_ns",
            "float64",
            "extra compute time: measured for the paired, at their rate for the rest",
            "ns",
            nullable=True,
        ),
        Column("contention_low_ns", "float64", "lower end of its interval", "ns", nullable=True),
        Column("contention_high_ns", "float64", "upper end of its interval", "ns", nullable=True),
        Column("measured_ns", "float64", "of it: measured on paired kernels", "ns", nullable=True),
        Column("coverage_pct", "float64", "paired over overlapped kernel time", "%", nullable=True),
        Column("ideal_ns", "float64", "the time less contention", "ns", nullable=True),
        Column(
            "serial_ns",
            "float64",
            "ideal + hidden communication, or the median step of the recording without overlap",
            "ns",
            nullable=True,
        ),
        Column("serial_measured", "bool", "whether the latter"),
        Column("gain_ns", "float64", "serial less the time as it was", "ns", nullable=True),
        Column("gain_low_ns", "float64", "lower end of its interval", "ns", nullable=True),
        Column("gain_high_ns", "float64", "upper end of its interval", "ns", nullable=True),
        Column(
            "eaten_pct",
            "float64",
            "contention over what ideal overlap would gain (serial less ideal)",
            "%",
            nullable=True,
        ),
        Column("verdict", "int8", "whether overlap paid", choices=Verdict),
    ),
)

COMMUNICATION_SLOWDOWN = TableSchema(
    "communication_slowdown",
    "the collectives of one kind and size that moved bytes while compute ran",
    (
        Column("collective", "int32", "kind of collective", nullable=True, text=True),
        Column("bytes", "int64", "message size; null: all sizes", "bytes", nullable=True),
        Column("num_alone", "int64", "collectives beside no compute, twins of these"),
        Column("num_overlapped", "int64", "collectives that compute ran beside"),
        Column("num_paired", "int64", "of these, with twins"),
        Column("overlapped_ns", "int64", "transfer time beside compute, summed", "ns"),
        Column("coverage_pct", "float64", "paired over overlapped time", "%", nullable=True),
        Column("alone_ns", "float64", "median transfer of the twins", "ns", nullable=True),
        Column(
            "overlapped_transfer_ns",
            "float64",
            "median transfer of the paired",
            "ns",
            nullable=True,
        ),
        *_SLOWDOWN[:6],
    ),
)

CONTENTION_CAUSES = TableSchema(
    "contention_causes",
    "compute beside collectives of one kind and number of blocks: what the slowdown goes with",
    (
        Column("collective", "int32", "kind of collective", nullable=True, text=True),
        Column("num_blocks", "int64", "blocks of the communication kernel", nullable=True),
        Column("num_multiprocessors", "int64", "of the GPU, as the process saw it", nullable=True),
        Column(
            "multiprocessors_pct",
            "float64",
            "most multiprocessors that its blocks can be on, over all: a fact, not a share of the "
            "slowdown",
            "%",
            nullable=True,
        ),
        *_PAIRS[2:],
        *_SLOWDOWN[:6],
        Column("uncorrected_slowdown", "float64", "with clock changes in it", nullable=True),
        Column(
            "clock_pct",
            "float64",
            "share of the (uncorrected, logarithmic) slowdown that goes with lower clocks",
            "%",
            nullable=True,
        ),
        Column("unattributed_pct", "float64", "the rest", "%", nullable=True),
        Column(
            "dram_alone_pct",
            "float64",
            "memory bandwidth in use while compute ran alone",
            "%",
            nullable=True,
        ),
        Column(
            "dram_overlapped_pct",
            "float64",
            "memory bandwidth in use while both ran",
            "%",
            nullable=True,
        ),
    ),
)
