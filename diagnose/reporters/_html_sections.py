"""The sections of the page below its head, each from the tables that text and JSON use."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from diagnose.findings import Diagnosis
from diagnose.reporters import Page, _collectives, _timeline
from diagnose.reporters._contention_sheets import balance_sheet, total_sheet
from diagnose.reporters._document import Document
from diagnose.reporters._host_steps import steps_sheet
from diagnose.reporters._html_figures import Drawing, drawn
from diagnose.reporters._html_sheet import folded, table
from diagnose.reporters._html_text import Html, element, prose
from diagnose.reporters._operations import operations_sheet
from diagnose.reporters._places import Places
from diagnose.reporters._power_sheets import class_sheet, gpu_sheet
from diagnose.reporters._rank_sheets import rank_sheet
from diagnose.reporters._replay_sheets import staircase_sheet
from diagnose.reporters._stall_sheets import cause_sheets
from diagnose.trace import Table
from diagnose.wording.numbers import Scale, scale_for

if TYPE_CHECKING:
    from diagnose.plotting.definition import FigureContext


class Section(NamedTuple):
    """A part of the page: its anchor, heading, content and the figures in it."""

    key: str
    title: str
    content: list[Html]
    drawings: list[Drawing]


class Given(NamedTuple):
    """What every section is made from."""

    diagnosis: Diagnosis
    document: Document
    scale: Scale
    places: Places
    context: FigureContext
    page: Page

    def has(self, name: str) -> bool:
        """Whether there is a table of that name with rows."""
        return len(self.diagnosis.tables.get(name, ())) > 0


def sentences(said: Iterable[str], kind: str = "said") -> list[Html]:
    """Sentences as paragraphs."""
    return [element("p", prose(one), class_=kind) for one in said]


def where_time_goes(given: Given) -> Section:
    """The bar of each GPU, and GPUs and steps as tables."""
    diagnosis, scale, places = given.diagnosis, given.scale, given.places
    drawings: list[Drawing] = []
    title = "Where a step's time goes"
    if given.has("step_shares"):
        from diagnose.figures.step_time import FIGURE

        shares = diagnosis.tables["step_shares"]
        number = int(shares["num_steps"].max())
        of = "the only timed step" if number == 1 else f"the mean of {number:,} timed steps"
        reading = f"Each bar is {of} of a GPU; the states exclude each other and fill it exactly."
        drawings = [
            dataclasses.replace(one, title="Time of a step, by GPU", reading=reading)
            for one in drawn(FIGURE, diagnosis.tables, given.context)
        ]
    elif given.has("breakdown"):
        from diagnose.figures.step_time import FIGURE

        title = "Where the window's time goes"
        reading = "No step has a time, so each bar is the whole recorded window of a GPU."
        drawings = [
            dataclasses.replace(one, title="Time of the window, by GPU", reading=reading)
            for one in drawn(FIGURE, diagnosis.tables, given.context)
        ]
    content = [one.box() for one in drawings]
    if given.has("gpus"):
        content.append(table(_timeline.gpus(diagnosis, scale, places)))
    if given.has("steps"):
        content.append(folded("Every step as a table", _timeline.steps(diagnosis, scale, places)))
    host_steps = diagnosis.tables.get("host_steps")
    if diagnosis.trace.on_cpu and host_steps is not None and len(host_steps):
        content.append(table(steps_sheet(diagnosis, host_steps), titled=False))
    if diagnosis.trace.on_cpu:
        title = "Steps on the host"
    return Section("time", title, content, drawings)


def overlap(given: Given) -> Section:
    """How much communication was hidden, step by step, and the collectives."""
    diagnosis = given.diagnosis
    drawings: list[Drawing] = []
    if given.has("steps") and _several_steps(diagnosis.tables["steps"]):
        from diagnose.figures.overlap_by_step import FIGURE

        drawings = drawn(FIGURE, diagnosis.tables, given.context)
    content = [one.box() for one in drawings]
    if given.has("collectives"):
        sheet = _collectives.sizes(diagnosis, given.scale, given.places, unicode=True)
        content.append(folded("Collectives by kind and size", sheet))
    return Section("overlap", "Overlap of communication and compute", content, drawings)


def _several_steps(steps: Table) -> bool:
    """Whether a line can be drawn: communication in two steps of a GPU or more."""
    known = steps.take(steps.known("overlap_pct") & (steps["step_row"] >= 0))
    gpus = zip(known["source"].tolist(), known["device"].tolist(), strict=True)
    return max(Counter(gpus).values(), default=0) > 1


def gains(given: Given) -> Section:
    """From today's step to the bound."""
    stairs = given.diagnosis.tables.get("staircase")
    if stairs is None:
        return Section("gains", "What a change would gain", sentences(given.document.gains), [])
    from diagnose.figures.staircase import FIGURE

    tables = given.diagnosis.tables
    drawings = drawn(FIGURE, tables, given.context) if len(stairs) > 1 else []
    content = [*(one.box() for one in drawings), *sentences(given.document.gains)]
    content.append(folded("The stairs as a table", staircase_sheet(stairs, given.page)))
    return Section("gains", "What a change would gain", content, drawings)


def costs(given: Given) -> Section:
    """What overlap costs the compute beside it, and power."""
    diagnosis = given.diagnosis
    content = sentences(given.document.costs)
    drawings: list[Drawing] = []
    sheets = []
    if given.has("collective"):
        from diagnose.figures import slowdown

        drawings += drawn(slowdown.FIGURE, diagnosis.tables, given.context)
        sheets.append(total_sheet(diagnosis, "collective", given.page))
    if given.has("balance"):
        sheets.append(balance_sheet(diagnosis, given.page, steps=False))
    if given.has("classes"):
        from diagnose.figures import power_by_class

        drawings += drawn(power_by_class.FIGURE, diagnosis.tables, given.context)
    if drawings:
        content.append(element("div", *(one.box() for one in drawings), class_="beside"))
    if sheets:
        content.append(folded("What overlap costs, as tables", *sheets))
    if given.has("power"):
        of_power = [gpu_sheet(diagnosis.tables["power"], given.places)]
        if given.has("classes"):
            of_power.append(class_sheet(diagnosis, given.places))
        content.append(folded("Power, energy and clocks, as tables", *of_power))
    return Section("costs", "What overlap and a step cost", content, drawings)


def ranks(given: Given) -> Section:
    """Who is late and who waits."""
    content = sentences(given.document.across)
    drawings: list[Drawing] = []
    if given.has("ranks"):
        from diagnose.figures.rank_waits import FIGURE

        compared = given.diagnosis.tables["ranks"]
        drawings = drawn(FIGURE, given.diagnosis.tables, given.context)
        content += [one.box() for one in drawings]
        most = int(max(compared["busy_ns"].max(), compared["wait_ns"].max()))
        sheet = rank_sheet(compared, scale_for(most), given.places)
        content.append(folded("Ranks as a table", sheet))
    return Section("ranks", "Across ranks", content, drawings)


def stalls(given: Given) -> Section:
    """Why the GPUs stood still."""
    if not given.has("sites"):
        return Section("stalls", "Why GPUs stood still", [], [])
    from diagnose.figures.idle_causes import FIGURE

    drawings = drawn(FIGURE, given.diagnosis.tables, given.context)
    sheets = list(cause_sheets(given.diagnosis, given.page))
    content = [*(one.box() for one in drawings), folded("Causes as tables", *sheets)]
    return Section("stalls", "Why GPUs stood still", content, drawings)


def operations(given: Given) -> Section:
    """The kernels, copies and fills that take most time."""
    content = []
    if given.has("operations"):
        content.append(table(operations_sheet(given.diagnosis.tables["operations"]), titled=False))
    return Section("operations", "GPU operations that take most time", content, [])


def sections(given: Given) -> Iterator[Section]:
    """All of these that have content, in the order of the page."""
    for make in (where_time_goes, overlap, gains, costs, ranks, stalls, operations):
        made = make(given)
        if made.content:
            yield made
