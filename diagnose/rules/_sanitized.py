"""Findings from the races that PyTorch's CUDA sanitizer reports: proof, beside a rule's hint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from diagnose.findings import Evidence, Finding, Fix, Gain, Where
from diagnose.readers.sanitizer import Race, Use, innermost
from diagnose.rules._words import runs
from diagnose.trace import Gpu

RULE_ID = "missing-stream-sync"
TITLE = "Nothing orders two uses of the same memory"

NOT_SEEN = (
    "memory that the allocator gives away again without record_stream",
    "what NCCL does on its own streams",
    "accesses of the host to pinned memory",
    "kernels of CUDA graphs, Triton and extensions",
    "threads that the job starts itself",
    "views that begin elsewhere in the same memory",
)
"""What the sanitizer is blind to: missed on an H200, but for Triton, extensions and threads, which
follow from how it works: it sees what goes through PyTorch's dispatcher on a thread that has it."""

_MOST_FRAMES = 4
_VERBS = {
    (False, True): ("reads", "writes"),
    (True, False): ("overwrites", "reads"),
    (True, True): ("overwrites", "writes"),
}
_KINDS = {
    (False, True): "read after write",
    (True, False): "write after read",
    (True, True): "write after write",
}


def findings(races: Iterable[Race], pids: Sequence[int] = ()) -> tuple[Finding, ...]:
    """One finding for each pair of operators at the same lines, most often seen first.

    Ranks and streams of the same role are put together: handles differ between processes.
    ``pids``: the process of each source of the trace that findings point into.
    """
    sources = {pid: source for source, pid in enumerate(pids)}
    groups: dict[tuple[object, ...], list[Race]] = {}
    for race in races:
        groups.setdefault(_same(race), []).append(race)
    ordered = sorted(groups.values(), key=lambda group: -sum(one.count for one in group))
    return tuple(_finding(group, sources) for group in ordered)


def _same(race: Race) -> tuple[object, ...]:
    uses = (race.second, race.first)
    return tuple((use.operator, use.writes, use.own, use.stream == 0) for use in uses)


def _finding(races: Sequence[Race], sources: Mapping[int, int]) -> Finding:
    race = races[0]
    second, first = race.second, race.first
    does, did = _VERBS.get((second.writes, first.writes), ("uses", "uses"))
    doubtful = _is_collective(first)
    return Finding(
        rule=RULE_ID,
        title=TITLE,
        severity="warning" if doubtful else "critical",
        confidence="medium" if doubtful else "high",
        sentence=(
            f"{second.name} on {_stream(second)} {does} what {first.name} on {_stream(first)} "
            f"{did}, and nothing orders them ({_place(second)} after {_place(first)})."
        ),
        key=f"{RULE_ID}@{_subject(second)} after {_subject(first)}",
        where=Where(gpus=_gpus(races, sources)),
        evidence=tuple(_evidence(races)),
        gain=Gain("none", "it is about right results, not about time"),
        advice=tuple(_advice(second, first)),
        caveats=tuple(_caveats(doubtful=doubtful)),
    )


def _caveats(*, doubtful: bool) -> Iterable[str]:
    if doubtful:
        yield (
            "The sanitizer takes a collective for work of the stream that it was started on: "
            "where another stream waits for it by work.wait(), the order is there."
        )
    yield (
        "The sanitizer is not told of query() of a torch.Event: where the host polls one until it "
        "is true before the second access, the order is there (torch.cuda.Event is known)."
    )
    yield "Do not use torch.cuda.synchronize() for this: it hides the race and costs overlap."


def _is_collective(use: Use) -> bool:
    return use.name.startswith(("c10d::", "_c10d_functional"))


def _subject(use: Use) -> str:
    """As ``aten::mm in train.py:step``: without numbers, which change with the program."""
    frame = use.own
    return use.name if frame is None else f"{use.name} in {frame.name}:{frame.function}"


def _stream(use: Use) -> str:
    return f"stream {use.stream:#x}" if use.stream else "stream 0"


def _place(use: Use) -> str:
    return "no line of Python" if use.own is None else use.own.place


def _gpus(races: Sequence[Race], sources: Mapping[int, int]) -> tuple[Gpu, ...]:
    found = {
        Gpu(sources[race.pid], race.device, race.rank)
        for race in races
        if race.pid is not None and race.pid in sources and race.device is not None
    }
    return tuple(sorted(found, key=lambda gpu: (gpu.source, gpu.device)))


def _evidence(races: Sequence[Race]) -> Iterable[Evidence]:
    race = races[0]
    second, first = race.second, race.first
    yield Evidence("kind", "kind", _KINDS.get((second.writes, first.writes), "unordered"))
    for key, label, use in (("first", "earlier access", first), ("second", "later access", second)):
        yield Evidence(key, label, _access(use))
        yield Evidence(f"{key}_stack", "called from", _stack(use))
    if (made := innermost(race.allocated)) is not None:
        yield Evidence("allocated", "tensor made at", f"{made.file}:{made.line}")
    yield Evidence("num_seen", "times seen", sum(one.count for one in races))
    steps = {step for one in races for step in one.steps}
    if steps:
        yield Evidence("steps", "in steps", runs(steps))
    ranks = {one.rank for one in races if one.rank is not None}
    if ranks:
        yield Evidence("ranks", "on ranks", runs(ranks))


def _access(use: Use) -> str:
    does = "writing" if use.writes else "reading"
    what = ", ".join([*use.arguments, *(["its result"] if use.output else [])])
    return f"{use.name} {does} {what} on {_stream(use)}"


def _stack(use: Use) -> str:
    """Innermost first, as in a recording: there the lines are those where functions begin."""
    frames = [f"{one.file}({one.line}): {one.function}" for one in use.own_stack]
    return " < ".join(frames[:_MOST_FRAMES]) or "no line of Python"


def _advice(second: Use, first: Use) -> Iterable[Fix]:
    yield Fix(
        f"Before the second access ({_place(second)}), let its stream wait for the one of the "
        f"first ({_place(first)}).",
        "torch.cuda.current_stream().wait_stream("
        + ("side)" if first.stream else "torch.cuda.default_stream())"),
    )
    if _is_collective(first):
        yield Fix("A collective is waited for by its work.", "work.wait()")
    yield Fix(
        "See what the sanitizer cannot: a recording with the order of events.",
        "diagnose attach --check-sync",
    )
