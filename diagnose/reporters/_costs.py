"""What overlap and a step cost, in up to four lines of a report; `diagnose contention`, `power`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from diagnose.contention._tables import Verdict
from diagnose.findings import Diagnosis
from diagnose.reporters._contention_sentences import (
    NOT_TOLD,
    clock_words,
    interval,
    undecided_because,
)
from diagnose.reporters._records import Record
from diagnose.trace import Table
from diagnose.wording.numbers import counted, percent, rate, scale_for

_COSTS = frozenset({"contention", "balance", "power"})
_NAMES = {Verdict.WINS: "wins", Verdict.LOSES: "loses", Verdict.UNDECIDED: "undecided"}


def absent_costs(diagnosis: Diagnosis) -> frozenset[str]:
    """Tables of which people are not told that they are missing: most recordings lack them.

    Not those whose analysis failed.
    """
    absent = {name: diagnosis.unavailable.get(name) for name in _COSTS}
    failed = {
        name for name, why in absent.items() if why and why.because.startswith("the analysis")
    }
    return _COSTS - failed


def cost_sentences(diagnosis: Diagnosis) -> Iterator[str]:
    """How much slower compute is beside communication, whether overlap paid, energy of a step."""
    contention = diagnosis.tables.get("contention")
    if contention is not None:
        yield _slowdown(contention)
    balance = diagnosis.tables.get("balance")
    if balance is not None:
        yield from _balance(balance)
    power = diagnosis.tables.get("power")
    if power is not None:
        yield from _energy(diagnosis, power)


def _slowdown(total: Table) -> str:
    def interval_of(name: str) -> str:
        return interval(float(total[f"{name}_low"][0]), float(total[f"{name}_high"][0]))

    name = "duration_ratio" if math.isnan(float(total["slowdown"][0])) else "slowdown"
    what = "Compute takes" if name == "slowdown" else "Kernels beside communication take"
    said = f"{what} {rate(float(total[name][0]))} times as long"
    at, as_they_were = clock_words(total)
    said += f" beside communication{at}" if name == "slowdown" else " in all"
    bounds = interval_of(name)
    shown = f"95 %: {bounds}; " if bounds != "-" else ""
    shown += f"{as_they_were}; " if as_they_were else ""
    low, high = (float(total[f"{name}_{end}"][0]) for end in ("low", "high"))
    doubt = NOT_TOLD if low <= 1 <= high else ""
    coverage = percent(float(total["coverage_pct"][0]))
    return f"{said} ({shown}seen on {coverage} % of it){doubt}."


def _balance(balance: Table) -> Iterator[str]:
    windows = balance.take(balance["step_row"] < 0)
    verdicts = np.bincount(windows["verdict"], minlength=len(Verdict)).tolist()
    said = {name: verdicts[verdict] for verdict, name in _NAMES.items() if verdicts[verdict]}
    known = windows.take(windows.known("gain_ns") & (windows["hidden_ns"] > 0))
    if not said or not len(known):
        return
    total = sum(said.values())
    names = [f"{name} on {number:,}" for name, number in said.items()]
    words = next(iter(said)) if len(said) == 1 else f"{', '.join(names)} of {counted(total, 'GPU')}"
    scale = scale_for(int(windows["step_ns"].max()))
    gain = _range([scale.show(round(value)) for value in sorted(known["gain_ns"].tolist())])
    limit = "" if bool(known["serial_measured"].all()) else " at most"
    eaten = known["eaten_pct"][known.known("eaten_pct")].tolist()
    ate = f", {_range([percent(v) for v in sorted(eaten)])} % eaten by contention" if eaten else ""
    why = undecided_because(windows)
    yield f"Overlap {words}: gain {gain} {scale.unit} a window{limit}{ate}{why and f' ({why})'}."


def _energy(diagnosis: Diagnosis, power: Table) -> Iterator[str]:
    known = power.take(power.known("step_energy_j"))
    if len(known):
        middle = [f"{value:.1f}" for value in sorted(known["step_energy_j"].tolist())]
        low, high = known["step_energy_low_j"].min(), known["step_energy_high_j"].max()
        where = _where(diagnosis, known)
        yield f"Energy of a step: {_range(middle)} J ({low:.1f} to {high:.1f}) on {where}."
    rest = power.take(~power.known("step_energy_j"))
    if len(rest):
        whys = [
            one or other
            for one, other in zip(rest.texts("why"), rest.texts("step_energy_why"), strict=True)
        ]
        where = f" on {_where(diagnosis, rest)}" if len(known) else ""
        yield f"Energy of a step{where}: unknown; {whys[0]}."


def _where(diagnosis: Diagnosis, table: Table) -> str:
    if len(table) > 1:
        return counted(len(table), "GPU")
    label = diagnosis.trace.sources[int(table["source"][0])].label
    shared = int(table["num_ranks"][0])
    return f"the GPU of {label}" + (f" ({shared} ranks share it)" if shared > 1 else "")


def _range(ordered: list[str]) -> str:
    """``least to most``; one figure where they read the same."""
    first, last = ordered[0], ordered[-1]
    return first if first == last else f"{first} to {last}"


def cost_records(diagnosis: Diagnosis) -> Record:
    """The keys ``contention``, ``overlap_balance`` and ``power`` of a report's JSON."""
    from diagnose.reporters._contention_records import summary, windows
    from diagnose.reporters._power_records import gpu_rows

    return {
        "contention": summary(diagnosis) if "contention" in diagnosis.tables else None,
        "overlap_balance": windows(diagnosis) if "balance" in diagnosis.tables else [],
        "power": gpu_rows(diagnosis, "power") if "power" in diagnosis.tables else [],
    }
