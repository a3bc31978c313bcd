"""What a diagnosis is: the trace, the tables made of it, and what was found.

A rule returns *symptoms* (``diagnose.rules``); the engine makes *findings* of them: with the
severity, the gain and what it explains. Reporters draw findings and compute nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from diagnose.analysis import Unavailable
from diagnose.trace import Gpu, Note, Table, Trace

FindingSeverity = Literal["hint", "info", "warning", "critical"]
Confidence = Literal["low", "medium", "high"]
GainBasis = Literal["replay", "upper bound", "none"]
Verdict = Literal["good", "usable with care", "not to be trusted"]

SEVERITIES: tuple[FindingSeverity, ...] = ("hint", "info", "warning", "critical")
"""From least to gravest."""

FILE_LEFT_OUT = frozenset(
    {
        "empty-file",
        "not-a-trace",
        "truncated",
        "too-large",
        "bomb",
        "not-found",
        "input",
        "internal",
    }
)
"""Notes on a file that gave nothing or only a part: the other files' numbers stand."""

_UNITS: Mapping[str, str] = {
    "_gb_per_s": "GB/s",
    "_mib_s": "MiB/s",
    "_bytes": "bytes",
    "_ratio": "times",
    "_mib": "MiB",
    "_pct": "%",
    "_mhz": "MHz",
    "_ns": "ns",
    "_us": "us",
    "_ms": "ms",
    "_w": "W",
    "_c": "C",
    "_j": "J",
    "_s": "s",
}


def unit_of(key: str) -> str:
    """The unit that a key's last part names; empty for counts (``num_...``) and texts."""
    return next((unit for suffix, unit in _UNITS.items() if key.endswith(suffix)), "")


class Span(NamedTuple):
    """A stretch of time to open in a timeline, on the clock of its source."""

    source: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True)
class Where:
    """What a finding is about. Empty: all that was recorded."""

    gpus: tuple[Gpu, ...] = ()
    streams: tuple[int, ...] = ()
    steps: tuple[str, ...] = ()
    """Names of steps."""
    spans: tuple[Span, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The known ranks of the GPUs, ascending."""
        return tuple(sorted({gpu.rank for gpu in self.gpus if gpu.rank is not None}))


@dataclass(frozen=True)
class Evidence:
    """One number (or name) that a finding rests on.

    ``key`` is stable and ends in the unit (``exposed_ns``, ``idle_pct``; counts begin with
    ``num_``); ``label`` is for people. ``threshold`` names the threshold that it was held against.
    """

    key: str
    label: str
    value: float | str
    threshold: str | None = None

    @property
    def unit(self) -> str:
        """As ``ns`` or ``%``; empty for counts and texts."""
        return unit_of(self.key)


class Threshold(NamedTuple):
    """A threshold as applied: its name ends in its unit, ``origin`` says where it is from."""

    name: str
    value: float
    default: float
    origin: str


class Cost(NamedTuple):
    """What a symptom costs of a step, as measured; not what its fix would gain."""

    per_step_ns: float
    basis: str
    """How it was measured: a noun phrase, as ``GPU idle that begins inside of the waits``."""
    is_upper_bound: bool = True


class Fix(NamedTuple):
    """One step of the advice; ``code`` is the exact line, argument or variable."""

    text: str
    code: str = ""


class Gain(NamedTuple):
    """What the fix would save of a step.

    ``replay``: a range, from replaying the recording under ``changes``. ``upper bound``: at most
    ``high_ns``, the rest unknown. ``none``: no figure, ``reason`` says why. ``reason`` also says
    why there is a bound only. Gains of several findings overlap and are never added.
    """

    basis: GainBasis
    reason: str = ""
    changes: tuple[str, ...] = ()
    low_ns: float | None = None
    likely_ns: float | None = None
    high_ns: float | None = None
    step_ns: float | None = None
    """The step time that shares are of; of a replay: without the profiler."""
    per: Literal["step", "window"] = "step"
    """``window``: no step has a time, and the window counts as one."""

    def pct(self, ns: float | None) -> float | None:
        """One of the figures as a share of the step, in percent."""
        return None if ns is None or not self.step_ns else 100 * ns / self.step_ns


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem, with its evidence and what to do. ``sentence`` carries the number."""

    rule: str
    title: str
    severity: FindingSeverity
    confidence: Confidence
    sentence: str
    key: str
    """The same for the same problem in another recording: the rule and where, without times."""
    where: Where = field(default_factory=Where)
    evidence: tuple[Evidence, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    """Those that the evidence names."""
    cost: Cost | None = None
    gain: Gain = field(default_factory=lambda: Gain("none"))
    advice: tuple[Fix, ...] = ()
    caveats: tuple[str, ...] = ()
    """When the advice is wrong."""
    folded: tuple[Finding, ...] = ()
    """Findings that this one explains."""

    def threshold(self, evidence: Evidence) -> Threshold | None:
        """The threshold that a piece of evidence was held against."""
        return next((one for one in self.thresholds if one.name == evidence.threshold), None)

    def everything(self) -> Iterator[Finding]:
        """It and all that it explains."""
        yield self
        for one in self.folded:
            yield from one.everything()


class NotChecked(NamedTuple):
    """A rule that could not be judged, why, and how to record what it needs."""

    rule: str
    title: str
    because: str
    remedy: str = ""


class Seen(NamedTuple):
    """What a rule that found nothing has to say of how it looked."""

    rule: str
    sentence: str


class Headline(NamedTuple):
    """Where the time of a step went: means over GPUs and steps (the window where none is timed)."""

    num_gpus: int
    num_steps: int
    """Timed steps of a GPU, at most; 0: shares are of the window."""
    step_ns: float
    compute_pct: float
    """Compute, alone or beside communication."""
    exposed_pct: float
    """Communication with no compute beside it; includes waiting for late ranks."""
    copies_pct: float
    idle_pct: float
    hidden_pct: float | None
    """Of communication; None: there is none."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What came of the rules that gave no finding, and what findings are held against."""

    not_checked: tuple[NotChecked, ...] = ()
    failed: tuple[NotChecked, ...] = ()
    """Rules that crashed: a defect of this package."""
    clean: tuple[str, ...] = ()
    """Ids of rules that looked and found nothing."""
    seen: tuple[Seen, ...] = ()
    """Of some of them: how far they could see."""
    not_applicable: tuple[str, ...] = ()
    """Ids of rules that mean nothing for this job, as those for AMD on NVIDIA."""
    accepted: tuple[Finding, ...] = ()
    """Findings that the baseline holds."""
    num_unmatched: int = 0
    """Entries of the baseline that match no finding: cured, or of another job."""
    headline: Headline | None = None
    left_out: tuple[str, ...] = ()
    """Ids of rules that the command line or the settings left out."""
    settings: str = ""
    """The file that thresholds or the choice of rules were taken from; empty: the defaults."""


class Quality(NamedTuple):
    """Whether the numbers can be believed, and the notes that say why not."""

    verdict: Verdict
    reasons: tuple[Note, ...]


@dataclass(frozen=True)
class Diagnosis:
    """Everything a reporter or view draws; it computes nothing itself.

    ``tables`` holds the results by the name under which they were asked for
    (see ``diagnose.engine.REPORT``), ``unavailable`` why the others are missing.
    """

    trace: Trace
    tables: Mapping[str, Table] = field(default_factory=dict)
    unavailable: Mapping[str, Unavailable] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    """By the time that their fix saves, most first."""
    checked: Checked | None = None
    """None: no rule was run."""

    @property
    def quality(self) -> Quality:
        """The verdict that the notes add up to.

        An error is a number that cannot be right; a warning one that may be off,
        or a file that is missing from the picture. A job on the CPU has no numbers of
        GPUs that could be wrong.
        """
        reasons = tuple(note for note in self.trace.notes if note.severity != "info")
        wrong = any(n.severity == "error" and n.code not in FILE_LEFT_OUT for n in reasons)
        if wrong or not (self.trace.gpus or self.trace.on_cpu):
            return Quality("not to be trusted", reasons)
        return Quality("usable with care" if reasons else "good", reasons)
