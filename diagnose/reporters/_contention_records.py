"""What overlap costs, as machines read it."""

from __future__ import annotations

from collections.abc import Mapping

from diagnose.contention._tables import ClockDivided, Effect, TwinsFrom, Verdict
from diagnose.findings import Diagnosis
from diagnose.reporters._records import Record, places, records, step_names
from diagnose.trace import Table

_PAIRS = {
    "num_alone": "num_alone",
    "num_overlapped": "num_overlapped",
    "num_paired": "num_paired",
    "overlapped_ns": "beside_us",
    "paired_ns": "paired_us",
    "coverage_pct": "coverage_pct",
}
_SLOWDOWN = {
    "slowdown": "slowdown",
    "slowdown_low": "slowdown_low",
    "slowdown_high": "slowdown_high",
    "duration_ratio": "duration_ratio",
    "duration_ratio_low": "duration_ratio_low",
    "duration_ratio_high": "duration_ratio_high",
}
_COST = {"cost_ns": "cost_us", "cost_low_ns": "cost_low_us", "cost_high_ns": "cost_high_us"}
_TOTALS = {
    **_PAIRS,
    **_SLOWDOWN,
    "uncorrected_slowdown": "uncorrected_slowdown",
    **_COST,
    "estimated_ns": "estimated_cost_us",
    "num_steps": "num_steps",
    "cost_per_step_ns": "cost_per_step_us",
}
_KERNEL = {
    "name": "kernel",
    "launch_shape": "launch_shape",
    "shapes": "shapes",
    "family": "family",
    "alone_ns": "alone_us",
    "overlapped_duration_ns": "overlapped_us",
    "overlapped_share_pct": "overlapped_share_pct",
    **_PAIRS,
    **_SLOWDOWN,
    **_COST,
}
_BASIS = {
    "num_kernels": "num_kernels",
    "overlapped_ns": "beside_us",
    "paired_ns": "paired_us",
    "touched_ns": "touched_us",
    "no_twin_ns": "no_twin_us",
    "crowded_ns": "crowded_us",
    "disagree_ns": "disagree_us",
    "outlier_ns": "outlier_us",
    "unclear_ns": "unclear_us",
    "other_company_ns": "other_company_us",
    "coverage_pct": "coverage_pct",
    "clock_span_pct": "clock_span_pct",
    "sample_interval_ns": "sample_interval_us",
    "drift_pct": "drift_pct",
    "alone_ratio": "alone_ratio",
}
_BALANCE = {
    "step_ns": "step_us",
    "hidden_ns": "hidden_us",
    "contention_ns": "contention_us",
    "contention_low_ns": "contention_low_us",
    "contention_high_ns": "contention_high_us",
    "measured_ns": "measured_us",
    "coverage_pct": "coverage_pct",
    "ideal_ns": "ideal_us",
    "serial_ns": "serial_us",
    "serial_measured": "serial_measured",
    "gain_ns": "gain_us",
    "gain_low_ns": "gain_low_us",
    "gain_high_ns": "gain_high_us",
    "eaten_pct": "eaten_pct",
}
_CAUSES = {
    "collective": "collective",
    "num_blocks": "num_blocks",
    "num_multiprocessors": "num_multiprocessors",
    "multiprocessors_pct": "multiprocessors_pct",
    "num_paired": "num_paired",
    "coverage_pct": "coverage_pct",
    **_SLOWDOWN,
    "uncorrected_slowdown": "uncorrected_slowdown",
    "clock_pct": "clock_pct",
    "unattributed_pct": "unattributed_pct",
    "dram_alone_pct": "dram_alone_pct",
    "dram_overlapped_pct": "dram_overlapped_pct",
}
_COMMUNICATION = {
    "collective": "collective",
    "bytes": "bytes",
    "num_alone": "num_alone",
    "num_overlapped": "num_overlapped",
    "num_paired": "num_paired",
    "overlapped_ns": "beside_us",
    "coverage_pct": "coverage_pct",
    "alone_ns": "alone_us",
    "overlapped_transfer_ns": "overlapped_us",
    **_SLOWDOWN,
}


def document(diagnosis: Diagnosis, by: str, alone: str | None) -> Record:
    """Everything; ``rows`` by what was asked for."""
    tables = diagnosis.tables
    missing = diagnosis.unavailable.get("communication")
    reverse = tables.get("communication")
    return {
        "by": by,
        "alone": alone,
        "summary": summary(diagnosis),
        "rows": rows(diagnosis, by),
        "windows": windows(diagnosis),
        "gpus": basis_rows(diagnosis),
        "causes": records(tables["causes"], _CAUSES),
        "communication": None if reverse is None else records(reverse, _COMMUNICATION),
        "communication_missing": None if missing is None else missing.because,
    }


def summary(diagnosis: Diagnosis) -> Record:
    """All compute beside communication, on all GPUs."""
    return records(diagnosis.tables["contention"], _TOTALS)[0]


def windows(diagnosis: Diagnosis) -> list[Record]:
    """A record a GPU: what overlap gained over the window."""
    return _balance(diagnosis, steps=False)


def rows(diagnosis: Diagnosis, by: str) -> list[Record]:
    """A record a kind of collective, family, kernel, or GPU and step."""
    if by == "step":
        return _balance(diagnosis, steps=True)
    table = diagnosis.tables[by]
    if by == "kernel":
        effects = [Effect(effect).name.lower() for effect in table["effect"].tolist()]
        placed = zip(_placed(diagnosis, table, _KERNEL), effects, strict=True)
        return [{**record, "effect": effect} for record, effect in placed]
    return records(table, {by: by, **_TOTALS})


def _placed(diagnosis: Diagnosis, table: Table, keys: Mapping[str, str]) -> list[Record]:
    pairs = zip(places(diagnosis.trace, table), records(table, keys), strict=True)
    return [{**place, **record} for place, record in pairs]


def _balance(diagnosis: Diagnosis, *, steps: bool) -> list[Record]:
    table = diagnosis.tables["balance"]
    table = table.take((table["step_row"] >= 0) == steps)
    columns = zip(
        places(diagnosis.trace, table),
        step_names(diagnosis.trace, table),
        records(table, _BALANCE),
        table["verdict"].tolist(),
        strict=True,
    )
    return [
        {
            **place,
            **({"step": step} if steps else {}),
            **record,
            "verdict": Verdict(verdict).name.lower(),
        }
        for place, step, record, verdict in columns
    ]


def basis_rows(diagnosis: Diagnosis) -> list[Record]:
    """A record a GPU: how the figures were made."""
    table = diagnosis.tables["basis"]
    columns = zip(
        _placed(diagnosis, table, _BASIS),
        table["twins_from"].tolist(),
        table["clock"].tolist(),
        strict=True,
    )
    return [
        {
            **record,
            "twins_from": TwinsFrom(twins).name.lower(),
            "clock": ClockDivided(clock).name.lower(),
        }
        for record, twins, clock in columns
    ]
