"""A job under one power limit after another, with the old limits back whatever happens.

Nothing here decides to change a limit: a person does, by a flag, as root. See
``guard`` for how the old limits come back, ``docs/power.md`` for what is promised.
"""

from __future__ import annotations

from diagnose.power_sweep.guard import LimitGuard
from diagnose.power_sweep.plan import Plan, plan
from diagnose.power_sweep.results import CapRun, Measured
from diagnose.power_sweep.sweep import Outcome, sweep

__all__ = ["CapRun", "LimitGuard", "Measured", "Outcome", "Plan", "plan", "sweep"]
