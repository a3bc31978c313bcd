"""The tables of ``diagnose contention`` for people."""

from __future__ import annotations

import numpy as np

from diagnose.contention._tables import Effect, Verdict
from diagnose.contention.balance import LEAST_COVERAGE_PCT
from diagnose.findings import Diagnosis
from diagnose.name_patterns import function_name
from diagnose.reporters import Page
from diagnose.reporters._contention_sentences import (
    balance_scale,
    few_twins,
    interval,
    total_scale,
)
from diagnose.reporters._places import Places
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.schema import NULL
from diagnose.trace import Table
from diagnose.wording.numbers import ABSENT, Scale, percent, rate, scale_for, size
from diagnose.wording.plain import plain, shorten_middle

_NAME_WIDTH = 40
_SHAPE_WIDTH = 34
_MOST_KERNELS = 20
_MOST_ROWS = 24
_VERDICTS = {
    Verdict.NOTHING_HIDDEN: "nothing hidden",
    Verdict.WINS: "wins",
    Verdict.LOSES: "LOSES",
    Verdict.UNDECIDED: "undecided",
    Verdict.UNKNOWN: "unknown",
}
_FEW_TWINS = "undecided*"
_EFFECTS = {
    Effect.UNKNOWN: ABSENT,
    Effect.NOT_TOLD: "not told",
    Effect.SLOWER: "slower",
    Effect.FASTER: "faster*",
}
_FASTER = (
    " * faster beside communication than alone: no contention. Overlapped, the kernel works on "
    "other data or at another clock than its twins."
)
_BESIDE = (
    "while beside: time beside communication over what the same work takes alone. whole: whole "
    "durations over what the kernels take alone, which also holds where the effect outlasts the "
    "overlap. In brackets 95 % intervals. rests on: overlapped compute that has twins."
)


def _time(scale: Scale, nanoseconds: float) -> str:
    return ABSENT if np.isnan(nanoseconds) else scale.show(round(nanoseconds))


def _slow(table: Table, row: int, name: str) -> str:
    """``1.60 [1.52 to 1.70]``; the bound without an estimate; in brackets without an interval."""
    value, low, high = (float(table[f"{name}{end}"][row]) for end in ("", "_low", "_high"))
    if np.isnan(value):
        return f"{rate(low)} or more" if low > 1 else ABSENT
    return f"({rate(value)})" if np.isnan(low) else f"{rate(value)} [{interval(low, high)}]"


def _label(table: Table, row: int, column: str, absent: str, page: Page) -> str:
    code = int(table[column][row])
    if code < 0:
        return absent
    return plain(table.strings[code], _NAME_WIDTH, unicode=page.unicode)


def total_sheet(diagnosis: Diagnosis, by: str, page: Page) -> Sheet:
    """By kind of collective or family of kernels."""
    table = diagnosis.tables[by]
    scale = total_scale(diagnosis.tables["contention"])
    rows = [
        (
            _label(table, row, by, "unknown", page),
            scale.show(int(table["overlapped_ns"][row])),
            f"{int(table['num_paired'][row]):,} of {int(table['num_overlapped'][row]):,}",
            percent(float(table["coverage_pct"][row])),
            _slow(table, row, "slowdown"),
            _slow(table, row, "duration_ratio"),
            _time(scale, float(table["cost_ns"][row])),
            _time(scale, float(table["cost_per_step_ns"][row])),
            _time(scale, float(table["estimated_ns"][row])),
        )
        for row in range(len(table))
    ]
    first = "beside" if by == "collective" else "kernels"
    headings = (
        Heading(first, left=True),
        Heading("time beside", scale.unit, spare=2),
        Heading("paired", spare=3),
        Heading("rests on", "%"),
        Heading("while beside", "x"),
        Heading("whole", "x"),
        Heading("cost", scale.unit),
        Heading("per step", scale.unit, spare=1),
        Heading("all*", scale.unit, spare=1),
    )
    what = "kind of collective" if by == "collective" else "family of kernels"
    note = "* the cost if what has no twin lost as much as what has."
    return Sheet(
        f"Compute beside communication, by {what}",
        headings,
        tuple(rows),
        footnotes=(_BESIDE, note),
    )


def kernel_sheet(diagnosis: Diagnosis, page: Page) -> Sheet:
    """The kernels that lost most."""
    table, places = diagnosis.tables["kernel"], Places(diagnosis.trace, unicode=page.unicode)
    shown = range(min(len(table), _MOST_KERNELS))
    scale, short = total_scale(diagnosis.tables["contention"]), scale_for(0)
    rows = [
        (
            *places.cells(int(table["source"][row]), int(table["device"][row])),
            _kernel(table, row, page),
            _shape(table, row, page),
            f"{int(table['num_alone'][row]):,}/{int(table['num_paired'][row]):,}",
            _time(short, float(table["alone_ns"][row])),
            _time(short, float(table["overlapped_duration_ns"][row])),
            percent(float(table["overlapped_share_pct"][row])),
            _slow(table, row, "slowdown"),
            _EFFECTS[Effect(int(table["effect"][row]))],
            _time(scale, float(table["cost_ns"][row])),
        )
        for row in shown
    ]
    headings = (
        *places.headings,
        Heading("kernel", left=True),
        Heading("shapes", left=True, spare=3),
        Heading("alone/paired"),
        Heading("alone", short.unit),
        Heading("beside", short.unit),
        Heading("share", "%", spare=2),
        Heading("while beside", "x"),
        Heading("it is", left=True),
        Heading("cost", scale.unit),
    )
    title = "Kernels beside communication, those that lost most first"
    if len(table) > len(rows):
        title += f": {len(rows)} of {len(table):,}, --format csv has all"
    note = (
        "alone, beside: median durations. share: of their time beside communication. In round "
        "brackets: fewer than three occurrences, no interval. not told: the interval holds 1."
    )
    if (table["effect"][: len(rows)] == Effect.FASTER).any():
        note += _FASTER
    return Sheet(title, headings, tuple(rows), footnotes=(note, *places.footnotes))


def _kernel(table: Table, row: int, page: Page) -> str:
    """The function's own name: without template arguments and parameters."""
    name = table.strings[int(table["name"][row])]
    own = function_name(name).rpartition("::")[2]
    return shorten_middle(own or name, _NAME_WIDTH, unicode=page.unicode)


def _shape(table: Table, row: int, page: Page) -> str:
    code = int(table["shapes"][row])
    if code < 0:
        code = int(table["launch_shape"][row])
    text = ABSENT if code < 0 else table.strings[code]
    return plain(text, _SHAPE_WIDTH, unicode=page.unicode)


def balance_sheet(diagnosis: Diagnosis, page: Page, *, steps: bool) -> Sheet:
    """What overlap gained, per GPU, or per GPU and step."""
    whole, places = diagnosis.tables["balance"], Places(diagnosis.trace, unicode=page.unicode)
    table = whole.take((whole["step_row"] >= 0) == steps)
    scale = balance_scale(table)
    few = few_twins(table)
    rows = [
        (
            *places.cells(int(table["source"][row]), int(table["device"][row])),
            *((places.step(int(table["step_row"][row])),) if steps else ()),
            scale.show(int(table["step_ns"][row])),
            _time(scale, float(table["serial_ns"][row])),
            _time(scale, float(table["ideal_ns"][row])),
            scale.show(int(table["hidden_ns"][row])),
            _time(scale, float(table["contention_ns"][row])),
            _gain(table, row, scale),
            percent(float(table["eaten_pct"][row])),
            percent(float(table["coverage_pct"][row])),
            _FEW_TWINS if few[row] else _VERDICTS[Verdict(int(table["verdict"][row]))],
        )
        for row in range(min(len(table), _MOST_ROWS))
    ]
    headings = (
        *places.headings,
        *((Heading("step", left=True),) if steps else ()),
        Heading("as it was", scale.unit),
        Heading("serial", scale.unit),
        Heading("ideal", scale.unit, spare=2),
        Heading("hidden", scale.unit, spare=3),
        Heading("contention", scale.unit, spare=1),
        Heading("gain", scale.unit),
        Heading("eaten", "%"),
        Heading("rests on", "%", spare=2),
        Heading("overlap", left=True),
    )
    title = "What overlap gained per step" if steps else "What overlap gained over the window"
    if len(table) > len(rows):
        title += f": {len(rows)} of {len(table):,} rows, --format json has all"
    note = _note(table)
    if few[: len(rows)].any():
        note += (
            f" * the gain does not reach 0, but less than {LEAST_COVERAGE_PCT:.0f} % of the "
            "overlapped compute has twins: what the rest lost is a guess."
        )
    return Sheet(title, headings, tuple(rows), footnotes=(note, *places.footnotes))


def _note(table: Table) -> str:
    if len(table) and table["serial_measured"].any():
        return (
            "serial: median step of the recording without overlap; gain: serial less the time as "
            "it was, in brackets over the range of that recording's steps. eaten: contention over "
            "serial less ideal."
        )
    return (
        "ideal: without contention. serial: ideal + hidden communication, which counts as long as "
        "it took beside compute (so the gain is an upper bound). gain: serial less the time as it "
        "was. eaten: contention over the gain of ideal overlap."
    )


def _gain(table: Table, row: int, scale: Scale) -> str:
    value, low, high = (
        float(table[name][row]) for name in ("gain_ns", "gain_low_ns", "gain_high_ns")
    )
    shown = _time(scale, value)
    if np.isnan(low):
        return shown
    return f"{shown} [{_time(scale, low)} to {_time(scale, high)}]"


def causes_sheet(diagnosis: Diagnosis, page: Page) -> Sheet:
    """What the slowdown goes with."""
    table = diagnosis.tables["causes"]
    rows = [
        (
            _label(table, row, "collective", "unknown", page),
            _number(table, row, "num_blocks"),
            _number(table, row, "num_multiprocessors"),
            percent(float(table["multiprocessors_pct"][row])),
            _slow(table, row, "slowdown"),
            _slow(table, row, "duration_ratio"),
            percent(float(table["dram_alone_pct"][row])),
            percent(float(table["dram_overlapped_pct"][row])),
            percent(float(table["clock_pct"][row])),
            percent(float(table["unattributed_pct"][row])),
        )
        for row in range(min(len(table), _MOST_ROWS))
    ]
    headings = (
        Heading("beside", left=True),
        Heading("blocks"),
        Heading("of SMs", spare=1),
        Heading("share", "%"),
        Heading("while beside", "x"),
        Heading("whole", "x", spare=2),
        Heading("DRAM alone", "%", spare=3),
        Heading("DRAM both", "%", spare=3),
        Heading("by clock", "%"),
        Heading("unattributed", "%"),
    )
    note = (
        "blocks of the communication kernel, and the most multiprocessors they can be on: a fact "
        "beside the slowdown, no part of it. by clock: part of the slowdown (in logarithms) that "
        "goes with lower clocks. Multiprocessors, L2, memory bandwidth and power cannot be told "
        "apart beside one collective: unattributed."
    )
    return Sheet("What the slowdown goes with", headings, tuple(rows), footnotes=(note,))


def _number(table: Table, row: int, column: str) -> str:
    value = int(table[column][row])
    return ABSENT if value == NULL else f"{value:,}"


def communication_sheet(diagnosis: Diagnosis, page: Page) -> Sheet:
    """The reverse."""
    table, short = diagnosis.tables["communication"], scale_for(0)
    rows = [
        (
            _label(table, row, "collective", "unknown", page),
            size(int(table["bytes"][row])) if table["bytes"][row] != NULL else "all",
            f"{int(table['num_alone'][row]):,}/{int(table['num_paired'][row]):,}",
            _time(short, float(table["alone_ns"][row])),
            _time(short, float(table["overlapped_transfer_ns"][row])),
            _slow(table, row, "slowdown"),
            _slow(table, row, "duration_ratio"),
        )
        for row in range(min(len(table), _MOST_ROWS))
    ]
    headings = (
        Heading("collective", left=True),
        Heading("size"),
        Heading("alone/paired"),
        Heading("alone", short.unit),
        Heading("beside", short.unit),
        Heading("while beside", "x"),
        Heading("whole", "x", spare=2),
    )
    note = "alone, beside: median transfers, without waiting for late ranks."
    return Sheet("Communication beside compute", headings, tuple(rows), footnotes=(note,))
