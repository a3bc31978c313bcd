"""What every test shares: where the data are, and reproducible Hypothesis runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# The same examples on every machine: a red build can be repeated. HYPOTHESIS_PROFILE=explore
# draws fresh ones, for a search that may find something new.
settings.register_profile("default", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def recordings() -> Path:
    """The folder of the shipped recordings. Read only: tests copy what they change."""
    return ROOT / "examples" / "recordings"


@pytest.fixture(scope="session")
def cases() -> Path:
    """The folder of the cases. Read only."""
    return ROOT / "tests" / "cases" / "data"
