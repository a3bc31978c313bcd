"""How far a search for missing synchronisation could see, in words."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyzers.hazards.coverage import Coverage, coverage
from diagnose.rules._words import counted, who
from diagnose.trace import Trace

_UNSEEN = (
    ("num_launched_before", "launched before the window"),
    ("num_in_graphs", "inside of CUDA graphs"),
    ("num_without_operator", "without an operator (Triton, extensions)"),
    ("num_unknown", "of operators whose tensors are unknown"),
)


def seen(trace: Trace) -> str:
    """What the execution traces tell of all processes together, and what is invisible."""
    found = coverage(trace)
    total, known = _sum(found, "num_gpu_ops"), _sum(found, "num_known")
    parts = [f"Of {total:,} GPU operations {known:,} have known memory"]
    if said := unseen(found, trace):
        parts.append(f"not seen: {said}")
    return f"{'; '.join(parts)}. Uses in other steps than the recorded ones are not seen either."


def known_memory(found: Sequence[Coverage]) -> str:
    """How many GPU operations have known memory."""
    return f"{_sum(found, 'num_known'):,} of {_sum(found, 'num_gpu_ops'):,}"


def unseen(found: Sequence[Coverage], trace: Trace) -> str:
    """What is invisible, or taken for something; empty if nothing is."""
    said = [f"{number:,} {what}" for key, what in _UNSEEN if (number := _sum(found, key)) > 0]
    if waits := _sum(found, "num_unnamed_waits"):
        said.append(f"what {counted(waits, 'wait')} for unknown events may order")
    if operators := _sum(found, "num_without_schema"):
        said.append(f"what {counted(operators, 'operator')} without a schema write in place")
    left = [one.source for one in found if not one.analysed]
    left += sorted({gpu.source for gpu in trace.gpus} - {one.source for one in found})
    if left:
        gpus = tuple(gpu for gpu in trace.gpus if gpu.source in left)
        said.append(f"anything on {who(trace, gpus)}")
    return ", ".join(said)


def _sum(found: Sequence[Coverage], key: str) -> int:
    return sum(getattr(one, key) for one in found)
