"""The tables of ``diagnose.replay``: what a row is and what each column means."""

from __future__ import annotations

from typing import Any

from diagnose.replay.prediction import Prediction
from diagnose.schema import Column, TableSchema

CUT_SHORT = "The search ended early to stay quick; `diagnose whatif` goes on."
"""A remark on the last stair of a search that was cut short."""
_OF_A_STEP = "of a step of the slowest GPU"


def _range(name: str, meaning: str) -> tuple[Column, ...]:
    """Three columns: least, likely and most. ``name_ns`` is the likely one."""
    ends = (("_low_ns", "least of it"), ("_ns", "likely"), ("_high_ns", "most of it"))
    return tuple(
        Column(name + suffix, "float64", f"{meaning}: {end}", "ns", nullable=True)
        for suffix, end in ends
    )


_PREDICTION = (
    Column("changes", "int32", "all changes applied, one a line", nullable=True, text=True),
    Column("titles", "int32", "the same in words, one a line", nullable=True, text=True),
    Column("num_steps", "int64", "steps of the recording that were replayed"),
    Column("measured_step_ns", "float64", "mean time as recorded, " + _OF_A_STEP, "ns", True),
    Column("replayed_step_ns", "float64", "the same, replayed with nothing changed", "ns", True),
    Column("repeated_step_ns", "float64", "the same, repeated until it settles", "ns", True),
    Column("fidelity_pct", "float64", "replayed over measured, less 100 %", "%", nullable=True),
    Column("unexplained_pct", "float64", "pauses without a known cause on the path", "%", True),
    *_range("now", "step time without the profiler"),
    *_range("then", "step time after the changes, without the profiler"),
    *_range("gain", "what the changes save of a step, negative: what they cost"),
    Column("basis", "int32", "how the profiler's cost was found", "", True, True),
    Column("remarks", "int32", "what was assumed or could not be done", "", True, True),
)

REPLAY = TableSchema("replay", "one prediction of the step time under changes", _PREDICTION)

STAIRCASE = TableSchema(
    "staircase",
    "one stair: the changes of the rows above and one more, all applied together",
    (
        Column("place", "int64", "0: nothing added; then by gain; the bound comes last"),
        Column("change", "int32", "what this row adds, one a line", nullable=True, text=True),
        Column("title", "int32", "the same in words, one a line", nullable=True, text=True),
        Column("is_bound", "bool", "whether it is out of reach: the most there is to gain"),
        *_range("added_gain", "what this row saves beyond the row before"),
        *_PREDICTION,
    ),
    order=("place",),
)


def row_of(prediction: Prediction) -> dict[str, Any]:
    """A prediction under the names of the columns; NaN is absent."""
    row: dict[str, Any] = {
        "changes": lines([change.label for change in prediction.changes]),
        "titles": lines([change.title for change in prediction.changes]),
        "num_steps": prediction.num_steps,
        "measured_step_ns": prediction.measured_step_ns,
        "replayed_step_ns": prediction.replayed_step_ns,
        "repeated_step_ns": prediction.repeated_step_ns,
        "fidelity_pct": prediction.fidelity_pct,
        "unexplained_pct": prediction.unexplained_pct,
        "basis": lines(prediction.basis),
        "remarks": lines(prediction.remarks),
    }
    for name in ("now", "then", "gain"):
        row |= columns_of(name, getattr(prediction, name))
    return row


def columns_of(name: str, values: tuple[float, float, float]) -> dict[str, float]:
    """A range under the names of its three columns."""
    return dict(zip((f"{name}_low_ns", f"{name}_ns", f"{name}_high_ns"), values, strict=True))


def lines(texts: list[str] | tuple[str, ...]) -> str | None:
    """Texts as one, a line each; None for no text. Untrusted line ends become spaces."""
    return "\n".join(" ".join(text.splitlines()) for text in texts) or None
