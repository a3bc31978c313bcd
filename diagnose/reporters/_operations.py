"""The sheet of the GPU operations that take most time, by name."""

from __future__ import annotations

from diagnose.reporters._sheet import Heading, Sheet
from diagnose.schema import Activity
from diagnose.trace import Table
from diagnose.wording.numbers import percent, scale_for

MOST_NAMES = 12
_CLASSES = {
    Activity.COMPUTE: "compute",
    Activity.COMMUNICATION: "communication",
    Activity.MEMORY: "copy or fill",
}


def operations_sheet(table: Table) -> Sheet:
    """The first rows of ``gpu_operations``. Names stand as the trace has them, uncut."""
    shown = min(len(table), MOST_NAMES)
    scale = scale_for(int(table["kernel_time_ns"].max(initial=0)))
    short = scale_for(int(table["longest_ns"][:shown].max(initial=0)))
    names = table.take(slice(shown)).texts("name")
    rows = [
        (
            names[row] or "",
            _CLASSES[Activity(int(table["activity"][row]))],
            f"{int(table['num_ops'][row]):,}",
            scale.show(int(table["kernel_time_ns"][row])),
            percent(float(table["kernel_time_pct"][row])),
            short.show(round(float(table["mean_ns"][row]))),
            short.show(int(table["longest_ns"][row])),
        )
        for row in range(shown)
    ]
    headings = (
        Heading("name", left=True),
        Heading("class", left=True, spare=1),
        Heading("count", spare=2),
        Heading("time*", scale.unit),
        Heading("share*", "%"),
        Heading("mean", short.unit, spare=2),
        Heading("longest", short.unit, spare=3),
    )
    title = "GPU operations by name, over all GPUs"
    if len(table) > shown:
        title += f": {shown} of {len(table):,}"
    note = (
        "* sums of durations: operations that run at the same time both count, and a collective's "
        "includes waiting for late ranks."
    )
    return Sheet(title, headings, tuple(rows), footnotes=(note,))
