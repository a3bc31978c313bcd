"""How each figure of the page is defined, in a sentence; the documentation says it at length."""

from __future__ import annotations

from diagnose.reporters._html_text import Html, element, prose, text

DEFINITIONS: tuple[tuple[str, str], ...] = (
    (
        "step time",
        "From the last GPU work launched in the step before to the last launched in this one. The "
        "first step of a window has none.",
    ),
    (
        "compute, communication",
        "Time in which at least one kernel of that kind runs: the length of a union. Time on the "
        "wall counts once, however many kernels share it.",
    ),
    (
        "hidden (overlapped)",
        "Communication while anything computes on the same GPU. Its share is of communication; "
        "without communication there is none, which is not 0 %.",
    ),
    (
        "exposed communication",
        "Communication while nothing computes. It includes waiting for late ranks, so it is an "
        "upper bound of what communication itself costs.",
    ),
    ("copies only", "Copies and fills with neither compute nor communication beside them."),
    ("idle", "Time in which the GPU runs nothing."),
    (
        "where a step's time goes",
        "The states exclude each other and fill the time exactly. They belong to time; the figures "
        "of the tables belong to the step that launched the work, whenever it ran.",
    ),
    (
        "gain",
        "The recording executed anew with the change, without the profiler: least, likely, most. "
        "An upper bound is named so. Gains overlap and are never added: the stairs show changes "
        "applied together.",
    ),
    (
        "severity",
        "From the least the change gains: critical from 10 % of the step, warning from 3 %, else "
        "info. What is not certain is a hint.",
    ),
    (
        "time beside communication",
        "The same kernels beside communication and alone in this recording, paired by name and "
        "shape; the interval is 95 %.",
    ),
)


def definitions() -> Html:
    """The list of definitions."""
    entries = [
        element("div", element("dt", text(term)), element("dd", prose(meaning)))
        for term, meaning in DEFINITIONS
    ]
    return element("dl", *entries, class_="definitions")
