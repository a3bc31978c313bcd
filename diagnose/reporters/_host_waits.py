"""Host calls that waited for the GPU, grouped by call, operator and line of the user's code."""

from __future__ import annotations

from typing import NamedTuple

from diagnose.findings import Diagnosis
from diagnose.reporters import Page
from diagnose.reporters._records import Record, microseconds_raw
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.wording.numbers import ABSENT, scale_for
from diagnose.wording.plain import plain

_MOST = 8
_NAME_WIDTH = 40


class _Site(NamedTuple):
    call: str
    operator: str | None
    line: str | None


class _Sum(NamedTuple):
    number: int = 0
    waited_ns: int = 0
    idle_ns: int = 0


def _sites(diagnosis: Diagnosis) -> list[tuple[_Site, _Sum]]:
    """By the idle time that they caused, then by the time the host waited."""
    table, trace = diagnosis.tables["host_waits"], diagnosis.trace
    names = trace.host_ops["name"]

    def text(row: int) -> str | None:
        return trace.strings[int(names[row])] if row >= 0 else None

    columns = ("name", "outer_op_row", "python_row", "length_ns", "idle_ns")
    found: dict[_Site, list[int]] = {}
    for name, outer, line, length, idle in zip(
        *(table[column].tolist() for column in columns), strict=True
    ):
        site = _Site(trace.strings[name], text(outer), text(line))
        total = found.setdefault(site, [0, 0, 0])
        for at, value in enumerate((1, length, idle)):
            total[at] += value
    rows = [(site, _Sum(*total)) for site, total in found.items()]
    return sorted(rows, key=lambda row: (-row[1].idle_ns, -row[1].waited_ns, str(row[0])))


def wait_records(diagnosis: Diagnosis) -> list[Record] | None:
    """A record a site over all ranks; None where the calls were not recorded."""
    if "host_waits" not in diagnosis.tables:
        return None
    return [
        {
            "call": site.call,
            "operator": site.operator,
            "line": site.line,
            "num_calls": total.number,
            "waited_us": microseconds_raw(total.waited_ns),
            "idle_us": microseconds_raw(total.idle_ns),
        }
        for site, total in _sites(diagnosis)
    ]


def wait_sheet(diagnosis: Diagnosis, page: Page) -> Sheet | None:
    """The sites that caused most idle time; None without any."""
    if not len(diagnosis.tables.get("host_waits", ())):
        return None
    sites = _sites(diagnosis)
    shown = sites[:_MOST]
    scale = scale_for(max(total.waited_ns for _, total in shown))
    lines = any(site.line for site, _ in shown)

    def name(text: str | None) -> str:
        return ABSENT if text is None else plain(text, _NAME_WIDTH, unicode=page.unicode)

    rows = [
        (
            name(site.call),
            name(site.operator),
            *([name(site.line)] if lines else []),
            f"{total.number:,}",
            scale.show(total.waited_ns),
            scale.show(total.idle_ns),
        )
        for site, total in shown
    ]
    headings = (
        Heading("call", left=True),
        Heading("operator", left=True),
        *([Heading("line", left=True)] if lines else []),
        Heading("count"),
        Heading("waited", scale.unit),
        Heading("idle GPU*", scale.unit),
    )
    title = "Host calls that waited for the GPU, all ranks"
    if len(sites) > len(shown):
        title += f": {len(shown)} of {len(sites):,} places"
    notes = [
        "* the loss: idle time that followed from the wait. Waiting alone costs nothing while the "
        "GPU has work queued."
    ]
    if not lines:
        notes.append("Record with_stack=True to see the line of code.")
    return Sheet(title, headings, tuple(rows), footnotes=tuple(notes))
