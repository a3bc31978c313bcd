"""What is known of advice that goes around and of environment variables: ``known.toml``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VERDICTS = ("right", "half right", "depends", "no source", "wrong")
STATUSES = ("documented", "deprecated", "historical", "source only", "not found")


class Folklore(NamedTuple):
    """A piece of advice that goes around, and what is known of it."""

    claim: str
    verdict: str
    """One of ``VERDICTS``."""
    answer: str
    rules: tuple[str, ...]
    """Ids of the rules that look at it."""


class Variable(NamedTuple):
    """An environment variable. ``not found``: nothing reads it."""

    name: str
    status: str
    """One of ``STATUSES``."""
    answer: str
    default: str = ""


@cache
def folklore() -> tuple[Folklore, ...]:
    """All pieces of advice, in the order of the file."""
    return tuple(
        Folklore(one["claim"], one["verdict"], one["answer"], tuple(one["rules"]))
        for one in _content()["folklore"]
    )


@cache
def variables() -> Mapping[str, Variable]:
    """Every variable by name."""
    return {one["name"]: Variable(**one) for one in _content()["variable"]}


@cache
def _content() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("known.toml").read_text("utf-8"))
