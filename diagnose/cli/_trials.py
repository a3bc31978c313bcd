"""``diagnose run --try``: the same job with several values of one variable, compared."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.attach.launching.retention import Limits
from diagnose.attach.launching.triggers import AfterSteps
from diagnose.cli._watched_job import Wanted, make_folder, run_job, say
from diagnose.errors import DiagnoseError, RecordingError, UsageError

if TYPE_CHECKING:
    from diagnose.collect import Options
    from diagnose.trace import Trace

WARM_UP_STEPS = 30
_VALUE = re.compile(r"[A-Za-z0-9_.:;^/+-]{0,100}")

# Each changes how fast a job is, not what it computes beyond the order of additions, and
# none names a file, a library or a host.
TUNABLE = frozenset(
    {
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "NCCL_ALGO",
        "NCCL_BUFFSIZE",
        "NCCL_CGA_CLUSTER_SIZE",
        "NCCL_CROSS_NIC",
        "NCCL_IB_QPS_PER_CONNECTION",
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        "NCCL_MAX_CTAS",
        "NCCL_MAX_NCHANNELS",
        "NCCL_MIN_CTAS",
        "NCCL_MIN_NCHANNELS",
        "NCCL_NET_GDR_LEVEL",
        "NCCL_NSOCKS_PERTHREAD",
        "NCCL_NTHREADS",
        "NCCL_NVLS_ENABLE",
        "NCCL_P2P_LEVEL",
        "NCCL_P2P_NVL_CHUNKSIZE",
        "NCCL_PROTO",
        "NCCL_PXN_DISABLE",
        "NCCL_SOCKET_NTHREADS",
        "OMP_NUM_THREADS",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "TORCH_NCCL_AVOID_RECORD_STREAMS",
        "TORCH_NCCL_CUDA_EVENT_CACHE",
        "TORCH_NCCL_HIGH_PRIORITY",
    }
)


@dataclass(frozen=True)
class Trial:
    """One value, and what came of it. Times in ns; None: not known, and ``problem`` says why."""

    value: str
    window: Path | None = None
    host_step_ns: float | None = None
    num_steps: int = 0
    spread_ns: float | None = None
    problem: str = ""


def parse(text: str) -> tuple[str, list[str]]:
    """Name and values of ``NAME=A,B``. Raises UsageError."""
    name, equals, rest = text.partition("=")
    values = list(dict.fromkeys(rest.split(",")))
    if not equals or len(values) < 2 or not all(_VALUE.fullmatch(value) for value in values):
        raise UsageError(
            f"--try {text!r} is not understood",
            hint="give a name and at least two values, as NCCL_ALGO=Ring,Tree",
        )
    if name not in TUNABLE:
        raise UsageError(
            f"--try changes only variables that tune NCCL or PyTorch, and {name} is none it knows",
            hint=f"one of: {', '.join(sorted(TUNABLE))}",
        )
    return name, values


def run_trials(
    command: Sequence[str],
    variables: Mapping[str, str],
    name: str,
    values: Sequence[str],
    folder: Path,
    steps: int,
    options: Options,
) -> str:
    """Run the job once per value and return the ranking as text.

    Raises RecordingError if no value gave a window.
    """
    make_folder(folder)
    trials = []
    for number, value in enumerate(values, 1):
        say(f"trial {number} of {len(values)}: {name}={value}")
        trials.append(_trial(command, {**variables, name: value}, value, folder, steps, options))
        if trials[-1].problem:
            say(f"{name}={value}: {trials[-1].problem}")
        if trials[-1].problem == _INTERRUPTED:
            break
    if not any(trial.window for trial in trials):
        raise RecordingError(
            f"no value of {name} gave a window",
            hint=f"each run has to reach step {WARM_UP_STEPS} and a few seconds more",
        )
    return ranking(name, trials, {t.value: _read(t.window) for t in trials if t.window})


_INTERRUPTED = "interrupted"


def _trial(
    command: Sequence[str],
    variables: Mapping[str, str],
    value: str,
    folder: Path,
    steps: int,
    options: Options,
) -> Trial:
    place = folder / (re.sub(r"[^A-Za-z0-9.+-]", "_", value) or "empty")
    make_folder(place)
    wanted = Wanted(
        [AfterSteps(WARM_UP_STEPS)],
        place,
        steps,
        options,
        Limits(),
        telemetry=False,
        stop_after_window=True,
    )
    status, seen = run_job(command, variables, wanted)
    if not seen.windows:
        if status == 130:
            return Trial(value, problem=_INTERRUPTED)
        reason = seen.problems[-1] if seen.problems else f"the job ended with status {status}"
        return Trial(value, problem=f"no window, {reason}")
    window = seen.windows[0]
    from diagnose import manifest

    outside = [
        interval
        for rank in manifest.read(window / manifest.FILE_NAME).ranks
        if rank.step_times is not None
        for interval in (*rank.step_times.before, *rank.step_times.after)
    ]
    if len(outside) < 5:
        return Trial(value, window)
    low, _, high = statistics.quantiles(outside, n=4)
    return Trial(value, window, statistics.median(outside), len(outside), (high - low) / 2)


def _read(window: Path) -> Trace | None:
    from diagnose.cli._reading import read

    try:
        return read([str(window)], None)
    except DiagnoseError as error:
        say(f"{window} cannot be read: {error}")
        return None


def ranking(name: str, trials: Sequence[Trial], traces: Mapping[str, Trace | None]) -> str:
    """The values by step time, fastest first; those without one at the end."""
    known = [trial for trial in trials if trial.host_step_ns is not None]
    known.sort(key=lambda trial: trial.host_step_ns or 0)
    lines = [f"{name}: step time by value (median of the steps outside of the window)", ""]
    width = max(len(trial.value) for trial in trials) + 2
    for trial in known:
        change = _change(trial, known[0])
        lines.append(
            f"  {trial.value:<{width}}{(trial.host_step_ns or 0) / 1e6:>10.2f} ms  "
            f"+- {(trial.spread_ns or 0) / 1e6:.2f}  {trial.num_steps:>4} steps  {change}"
        )
    for trial in trials:
        if trial.host_step_ns is None:
            why = trial.problem or "too few steps outside of the window"
            lines.append(f"  {trial.value:<{width}}{'-':>10}     {why}")
    lines += ["", *_comparisons(known, traces)]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _change(trial: Trial, best: Trial) -> str:
    if trial is best or trial.host_step_ns is None or best.host_step_ns is None:
        return "fastest"
    slower = trial.host_step_ns - best.host_step_ns
    text = f"{100 * slower / best.host_step_ns:.1f} % slower"
    if slower <= max(trial.spread_ns or 0, best.spread_ns or 0):
        return f"{text}, within the spread of the steps"
    return text


def _comparisons(known: Sequence[Trial], traces: Mapping[str, Trace | None]) -> list[str]:
    """What the recorded windows say of each value against the fastest."""
    lines = []
    for trial in known[1:]:
        first, second = traces.get(known[0].value), traces.get(trial.value)
        if first is None or second is None:
            continue
        try:
            said = _gpu_step(first, second)
        except DiagnoseError as error:
            said = f"cannot be compared ({error})"
        lines.append(f"GPU step time, {known[0].value} to {trial.value}: {said}")
        lines.append(f"  diagnose compare {known[0].window} {trial.window}")
    return lines


def _gpu_step(first: Trace, second: Trace) -> str:
    from diagnose import engine
    from diagnose.analyzers._gate import step_time_row
    from diagnose.analyzers._noise import Judgement

    requests = {"comparison": engine.Request("compare", {"other": second})}
    diagnosis = engine.diagnose(first, requests)
    if "comparison" in diagnosis.unavailable:
        return f"cannot be compared, {diagnosis.unavailable['comparison'].because}"
    table = diagnosis.tables["comparison"]
    row = step_time_row(table)
    if row is None or table["before_ns"][row] != table["before_ns"][row]:
        return "not known"
    before, after = table["before_ns"][row] / 1e6, table["after_ns"][row] / 1e6
    judgement = Judgement(int(table["judgement"][row])).name.lower().replace("_", " ")
    return f"{before:.2f} to {after:.2f} ms ({judgement} the noise of the steps)"
