"""The contract of a rule, and what it can answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, NamedTuple, TypeAlias

from diagnose.errors import ExtensionError
from diagnose.findings import Confidence, Cost, Evidence, FindingSeverity, Fix, Where
from diagnose.rules._facts import Facts
from diagnose.rules._needs import Need
from diagnose.rules._page import Page, parse
from diagnose.trace import Gpu

Area = Literal[
    "overlap",
    "contention",
    "messages",
    "ranks",
    "network",
    "host",
    "power",
    "precision",
    "validity",
    "correctness",
    "amd",
]


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """What a rule saw: it becomes a finding. All costs are per step.

    ``sentence`` says what was seen and carries the number; ``where`` is what to look at,
    ``affects`` the GPUs that feel it (empty: those of ``where``, and if that is empty, all).
    """

    sentence: str
    where: Where = field(default_factory=Where)
    affects: tuple[Gpu, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    cost: Cost | None = None
    """Where no change models the fix, the gain is at most this."""
    advice: tuple[Fix, ...] = ()
    caveats: tuple[str, ...] = ()
    """When the advice is wrong."""
    changes: tuple[str, ...] | None = None
    """Instead of the rule's ``changes``: what models the fix of this symptom."""
    no_gain: str = ""
    """Why there is no figure for the gain, where there is neither a change nor a cost."""
    confidence: Confidence | None = None
    """Instead of the rule's."""
    severity: FindingSeverity | None = None
    """Instead of that by the gain: proven faults of results have none."""
    explains: tuple[str, ...] | None = None
    """Instead of the rule's."""
    subject: str = ""
    """What tells this symptom from others of the same rule at the same place: a variable."""


@dataclass(frozen=True)
class Clean:
    """The rule looked and found nothing. ``()`` says the same; this can say what it saw."""

    because: str = ""
    told: bool = False
    """Whether the report says so too: where it matters how far the rule could see."""


@dataclass(frozen=True)
class NotJudged:
    """The rule could not look: why, and how to record what it needs."""

    because: str
    remedy: str = ""


@dataclass(frozen=True)
class NotApplicable:
    """The rule means nothing for this job."""

    because: str = ""


Outcome: TypeAlias = "Iterable[Symptom] | Clean | NotJudged | NotApplicable"
Check: TypeAlias = "Callable[[Facts, Any], Outcome]"


def limit(default: float, origin: str) -> Any:
    """A field of a thresholds dataclass: its default, and in words where that is from."""
    return field(default=default, metadata={"origin": origin})


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Base of each rule's thresholds; by itself: no thresholds.

    Subclasses are frozen, keyword-only dataclasses whose fields are numbers made by ``limit``,
    named with their unit: ``_pct``, ``_us``, ``_ms``, ``_bytes``, ``_mib``, ``_ratio``, ``_mhz``,
    ``_w``, ``_c``, ``_gb_per_s``; counts begin with ``min_num_`` or ``max_num_``.
    """


class Described(NamedTuple):
    """A threshold as it is declared."""

    name: str
    default: float
    origin: str


def described(thresholds: Thresholds) -> tuple[Described, ...]:
    """Name, default and origin of each threshold."""
    return tuple(
        Described(
            one.name,
            one.default if one.default is not MISSING else float("nan"),
            one.metadata.get("origin", ""),
        )
        for one in fields(thresholds)
    )


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule: a module of ``diagnose.rules`` exports one as ``RULE``.

    The id is the module's name in kebab case, and the module's docstring is its page
    (see ``diagnose.rules._page``). ``check(facts, thresholds)`` returns symptoms or one of the
    other outcomes; it reads nothing but the facts. It may stop anywhere with the exception
    that ``Facts.table`` raises for a table that does not exist: then it was not judged.
    """

    check: Check
    area: Area
    confidence: Confidence
    """That the advice holds where the rule fires. ``low``: every finding is a hint."""
    needs: tuple[Need, ...] = ()
    """What the recording must hold; else the rule is not called and is listed as not checked."""
    thresholds: Thresholds = Thresholds()
    changes: tuple[str, ...] = ()
    """As on the command line of ``diagnose whatif``: what models the fix. Applied together."""
    explains: tuple[str, ...] = ()
    """Ids of rules whose findings this one explains: they are folded under it where both
    concern the same GPU and step."""
    at_most: FindingSeverity = "critical"
    """``info`` for facts that are no fault."""

    @property
    def module(self) -> str:
        """The full name of the rule's module."""
        return self.check.__module__

    @property
    def id(self) -> str:
        """As in configuration and on the command line."""
        return self.module.rpartition(".")[2].replace("_", "-")

    @property
    def page(self) -> Page:
        """Its documentation. ExtensionError if a section is missing."""
        try:
            return parse(sys.modules[self.module].__doc__ or "")
        except ValueError as problem:
            raise ExtensionError(
                f"the docstring of {self.module} is no page of a rule: {problem}",
                hint="see diagnose/rules/_page.py for the sections",
            ) from None

    @property
    def title(self) -> str:
        """The first line of its page."""
        return self.page.title


Rules: TypeAlias = "Mapping[str, Rule]"
