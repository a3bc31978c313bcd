"""Power, energy, clocks and temperature: what each class of time, each step, each GPU drew.

Telemetry is tied to the trace by unix time. A physical GPU counts once, however many
ranks share it. Everything is measured in *refreshes* of a sensor, not in rows. A figure
has an interval, or is absent with its reason: `docs/power.md` says how each is made.
"""

from __future__ import annotations

from diagnose.analysis import Analyzer
from diagnose.analyzers.power.classes import power_classes
from diagnose.analyzers.power.clock_reasons import clock_reasons
from diagnose.analyzers.power.steps import power_steps
from diagnose.analyzers.power.summary import power_summary
from diagnose.analyzers.power.tables import (
    CLOCK_REASONS,
    POWER_CLASSES,
    POWER_STEPS,
    POWER_SUMMARY,
)
from diagnose.schema import Detail

ANALYZERS = (
    Analyzer("power_summary", Detail.GPU, POWER_SUMMARY, power_summary),
    Analyzer("power_classes", Detail.GPU, POWER_CLASSES, power_classes),
    Analyzer("power_steps", Detail.LAUNCHES, POWER_STEPS, power_steps),
    Analyzer("clock_reasons", Detail.GPU, CLOCK_REASONS, clock_reasons),
)
