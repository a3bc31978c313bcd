"""What the tables of power do not say: sharing, sensors, what is absent, where a cap would hurt."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from diagnose.analyzers.power.cap import BEGINS_PCT
from diagnose.findings import Diagnosis
from diagnose.schema import NULL
from diagnose.trace import Table
from diagnose.wording.numbers import ABSENT, counted, percent

_MOST_SENTENCES = 8
_TEXTS = ("why", "shared_by", "caution", "sensor", "step_energy_why", "cap_why")


def number(value: float, decimals: int = 0) -> str:
    """A figure with so many decimals; ``-`` if it is null."""
    return ABSENT if math.isnan(value) else f"{value:,.{decimals}f}"


def interval(low: float, high: float, decimals: int = 0) -> str:
    """``637 to 707``; ``-`` if it is null."""
    if math.isnan(low) or math.isnan(high):
        return ABSENT
    return f"{low:,.{decimals}f} to {high:,.{decimals}f}"


def getter(table: Table, row: int) -> Any:
    """The figures of a row by name."""
    return lambda name: float(table[name][row])


def sentences(diagnosis: Diagnosis) -> Iterator[str]:
    """A sentence or some for each GPU."""
    table = diagnosis.tables["summary"]
    for row in range(min(len(table), _MOST_SENTENCES)):
        source = diagnosis.trace.sources[int(table["source"][row])]
        said = list(_of_gpu(table, row))
        if said:
            label = f"{source.label}, GPU {int(table['device'][row])}"
            yield f"{label}: {' '.join(said)}"
    if len(table) > _MOST_SENTENCES:
        rest = len(table) - _MOST_SENTENCES
        yield f"And {counted(rest, 'more GPU')}: --format json has what is said of each."


def _of_gpu(table: Table, row: int) -> Iterator[str]:
    get = getter(table, row)
    texts = {name: table.texts(name)[row] for name in _TEXTS}
    if texts["why"]:
        yield f"No power: {texts['why']}."
        return
    if int(table["num_ranks"][row]) > 1:
        yield (
            f"{int(table['num_ranks'][row])} ranks share this GPU (same {texts['shared_by']}); it "
            "counts once."
        )
    if texts["caution"]:
        yield f"{_capital(texts['caution'])}."
    if texts["sensor"]:
        number = int(table["num_refreshes"][row])
        yield (
            f"Power is from {texts['sensor']}: {counted(number, 'new value')}, one every "
            f"{get('refresh_ns') / 1e6:.0f} ms{_fitted(get)}."
        )
    if texts["step_energy_why"]:
        yield f"No energy of a step: {texts['step_energy_why']}."
    yield from _clock(get)
    capped = int(table["power_capped_ns"][row])
    window = int(table["window_ns"][row])
    yield from _cap(get, 0.0 if capped == NULL else 100 * capped / window, texts["cap_why"])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _clock(get: Any) -> Iterator[str]:
    swing, frequency, nyquist = (
        get("clock_swing_mhz"),
        get("clock_frequency_hz"),
        get("clock_nyquist_hz"),
    )
    if math.isnan(swing) or swing == 0:
        return
    said = f"The clock swings by {swing:,.0f} MHz (5th to 95th percentile)"
    if math.isnan(frequency):
        yield f"{said}, at no frequency that its refreshes show (up to {nyquist:.1f} Hz)."
        return
    yield (
        f"{said}, at {frequency:.2f} Hz, or faster and folded there: its refreshes show nothing "
        f"above {nyquist:.1f} Hz."
    )


def _fitted(get: Any) -> str:
    if math.isnan(get("lag_ns")):
        return ""
    watched = f"the mean of {get('watched_ns') / 1e6:.0f} ms"
    return f", each {watched} and {get('lag_ns') / 1e6:.0f} ms late (fitted)"


def _cap(get: Any, capped_pct: float, why: str | None) -> Iterator[str]:
    limit = get("limit_w")
    if capped_pct > 0 and not math.isnan(limit):
        yield (
            f"The present limit of {limit:,.0f} W lowered clocks for {percent(capped_pct)} % of "
            "the window."
        )
    if why:
        yield f"No estimate of where a cap would hurt: {why}."
        return
    begins = get("cap_begins_w")
    if math.isnan(begins):
        return
    low_to_high = interval(get("cap_begins_low_w"), get("cap_begins_high_w"))
    yield (
        f"A power limit under {begins:,.0f} W ({low_to_high}) would act in {BEGINS_PCT:.0f} % of "
        f"the refreshes, one under {get('cap_half_w'):,.0f} W in half of them: quantiles of the "
        "power drawn; what a limit then costs, only `diagnose power-sweep` measures."
    )
